// What the layers of one model share: the instruction set, the threads, the weights and scratch memory.
#pragma once
#include <memory>
#include <vector>

#include "arena.h"
#include "kernels.h"
#include "matrix.h"
#include "pool.h"

namespace mtrun {

constexpr int ROWS = 64;  // rows that go through a layer together; longer inputs go in such strips

// Rounded activations that own their memory.
class RoundedRows {
 public:
  Rounded view(int rows, int width, Activation how);

 private:
  std::vector<int16_t> words_;
  std::vector<int8_t> bytes_;
  std::vector<int32_t> raise_;
  std::vector<float> scale_, unit_, sum_;
};

class Engine {
 public:
  Engine(const Kernels& kernels, int threads, size_t arena_bytes, Activation activation);

  // The index of a new matrix, or -1 when memory is out. One that the arena has no room for gets an arena of its own.
  int add(const Stored& stored, bool four_bits);
  const Matrix& matrix(int index) const { return matrices_.at((size_t)index); }
  bool holds(int index) const { return index >= 0 && index < (int)matrices_.size(); }

  // y [rows, stride] = x [rows, x_stride] times each matrix, side by side from column 0, each padded to 32 outputs.
  void multiply(const std::vector<int>& matrices, const float* x, long x_stride, int rows, float* y, long stride);
  // body(i) on all threads.
  template <class Body> void each(int count, Body body) {
    if (threads() == 1 || count == 1) {
      for (int i = 0; i < count; i++) body(i);
    } else {
      pool_->run(count, body);
    }
  }

  const Kernels& kernels;
  Activation activation;
  const Arena& arena() const { return *arenas_.front(); }
  int threads() const { return pool_->threads(); }
  void set_threads(int threads) { pool_ = std::make_unique<Pool>(threads); }

 private:
  uint8_t* take(size_t bytes);

  std::vector<std::unique_ptr<Arena>> arenas_;
  std::unique_ptr<Pool> pool_;
  std::vector<Matrix> matrices_;
  RoundedRows rounded_;
};

// Rows of floats, zero at first, each padded to 32: as wide as a matrix writes them.
class Buffer {
 public:
  Buffer() = default;
  void shape(int rows, int width);
  float* row(int i) { return data_.data() + (long)i * stride_; }
  float* data() { return data_.data(); }
  long stride() const { return stride_; }

 private:
  std::vector<float> data_;
  long stride_ = 0;
};

}  // namespace mtrun
