// `small_matmul`: a packed matrix of the native library as a node of MLX's lazy graph, on the CPU.
//
// The library is reached by the addresses of its functions, which Python took from the copy that made the engine: there
// is no second copy, and no symbol to bind.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/version.h"

namespace nb = nanobind;
namespace mx = mlx::core;

namespace mtrun_mlx {

constexpr int INTERFACE = 1;  // of the C functions below: extension.py compares it with VERSION of library.py
constexpr int ROWS = 64;      // rows a call: the library keeps a rounded copy of them, which should stay in the cache

// api.cpp: y [rows, padded outputs] = x [rows, inputs] times the matrix
using Multiply = void (*)(void* engine, int matrix, const float* x, int rows, float* y);
using Free = void (*)(void* engine);

struct Matrix {
  int index, inputs, outputs, padded;  // the library writes rows of `padded` outputs
};

// An engine of the library, owned: pending graphs share it, and the last of them or of Python's references frees it. No
// Python object is in it, since MLX drops graphs on its own threads.
class Engine {
 public:
  Engine(void* handle, Multiply multiply, Free free) : handle_(handle), multiply_(multiply), free_(free) {}
  ~Engine() { free_(handle_); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // y [rows, outputs] = x [rows, inputs] times the matrix. Streams run on threads of their own, an engine serves one.
  void multiply(const Matrix& w, const float* x, long rows, float* y) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (w.padded != w.outputs) scratch_.resize((size_t)ROWS * (size_t)w.padded);
    for (long row = 0; row < rows; row += ROWS) {
      const int count = (int)std::min<long>(ROWS, rows - row);
      float* out = y + row * w.outputs;
      multiply_(handle_, w.index, x + row * w.inputs, count, w.padded == w.outputs ? out : scratch_.data());
      if (w.padded == w.outputs) continue;
      for (int i = 0; i < count; i++)
        std::memcpy(out + (long)i * w.outputs, scratch_.data() + (long)i * w.padded, sizeof(float) * (size_t)w.outputs);
    }
    calls_.fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

 private:
  void* handle_;
  Multiply multiply_;
  Free free_;
  std::mutex mutex_;
  std::vector<float> scratch_;
  std::atomic<uint64_t> calls_{0};
};

class SmallMatmul : public mx::UnaryPrimitive {
 public:
  SmallMatmul(mx::Stream stream, std::shared_ptr<Engine> engine, const Matrix& matrix)
      : UnaryPrimitive(stream), engine_(std::move(engine)), matrix_(matrix) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    const long rows = (long)(inputs[0].size() / (size_t)matrix_.inputs);
    // The evaluator holds both arrays until the task has run.
    mx::cpu::get_command_encoder(stream()).dispatch(
        [engine = engine_, w = matrix_, x = inputs[0].data<float>(), rows, y = out.data<float>()] {
          engine->multiply(w, x, rows, y);
        });
  }
  void eval_gpu(const std::vector<mx::array>&, mx::array&) override {
    throw std::runtime_error("small_matmul runs on the CPU alone");
  }

  const char* name() const override { return "SmallMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& same = static_cast<const SmallMatmul&>(other);
    return same.engine_ == engine_ && same.matrix_.index == matrix_.index;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    auto shape = inputs[0].shape();
    shape.back() = matrix_.outputs;
    return {shape};
  }

 private:
  std::shared_ptr<Engine> engine_;
  Matrix matrix_;
};

// What Python holds of an engine: by value, so that Python's own counting never guards what a graph needs.
struct Handle {
  std::shared_ptr<Engine> engine;
};

mx::array small_matmul(const mx::array& x, const Handle& handle, int index, int inputs, int outputs, int padded) {
  if (x.dtype() != mx::float32) throw std::invalid_argument("small_matmul takes float32");
  if (x.ndim() == 0 || x.shape(-1) != inputs)
    throw std::invalid_argument("small_matmul takes rows of " + std::to_string(inputs) + " inputs");
  const auto stream = mx::default_stream(mx::Device(mx::Device::cpu));
  auto shape = x.shape();
  shape.back() = outputs;
  return mx::array(std::move(shape), mx::float32,
                   std::make_shared<SmallMatmul>(stream, handle.engine, Matrix{index, inputs, outputs, padded}),
                   {mx::contiguous(x, false, stream)});
}

std::string built_against() {
  return std::to_string(MLX_VERSION_MAJOR) + "." + std::to_string(MLX_VERSION_MINOR) + "." +
         std::to_string(MLX_VERSION_PATCH);
}

}  // namespace mtrun_mlx

NB_MODULE(_primitive, m) {
  using namespace mtrun_mlx;
  m.attr("INTERFACE") = INTERFACE;
  m.def("built_against", &built_against, "The MLX version whose headers this was compiled with.");
  m.def(
      "array_type",
      [] {
        const nb::handle type = nb::type<mx::array>();
        return type.is_valid() ? nb::borrow(type) : nb::none();
      },
      "The Python type that stands for an MLX array here; None where mlx.core keeps its types in another table.");
  nb::class_<Handle>(m, "Engine", "An engine of the native library, shared with the graphs that use it.")
      .def(
          "__init__",
          [](Handle* self, uintptr_t handle, uintptr_t multiply, uintptr_t free) {
            new (self) Handle{std::make_shared<Engine>((void*)handle, (Multiply)multiply, (Free)free)};
          },
          nb::arg("handle"), nb::arg("multiply"), nb::arg("free"))
      .def_prop_ro("calls", [](const Handle& self) { return self.engine->calls(); }, "Products that have run.");
  m.def("small_matmul", &small_matmul, nb::arg("x"), nb::arg("engine"), nb::arg("index"), nb::arg("inputs"),
        nb::arg("outputs"), nb::arg("padded"));
}
