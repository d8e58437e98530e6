// A stack of llama decoder layers with its key-value caches: a trunk, or the one layer of an MTP head.
#pragma once
#include <vector>

#include "engine.h"
#include "kv.h"

namespace mtrun {

struct Shape {
  int hidden, feed_forward, heads, kv_heads, head_dim;
  float eps;
  int rope_traditional;  // pairs are neighbours, not halves
  int positions;         // rows of the rope table
};

struct Layer {
  std::vector<float> attention_norm, mlp_norm;  // padded to 16
  std::vector<int> qkv, output, gate_up, down;  // matrices of the engine
};

class Stack {
 public:
  // cosine, sine: [positions, head_dim / 2]
  Stack(Engine& engine, const Shape& shape, const float* cosine, const float* sine);

  void add(Layer layer) { layers_.push_back(std::move(layer)); }
  Kv* new_kv();
  bool owns(const Kv& kv) const { return kv.of(*pool_); }
  // x [rows, stride of x] at the next `rows` (<= ROWS) positions of `kv`, in place. False when memory is out.
  bool forward(Buffer& x, int rows, Kv& kv);
  void norm(const float* x, const std::vector<float>& weight, float* out) const {
    engine.kernels.rms_norm(x, weight.data(), shape.eps, shape.hidden, out);
  }

  Engine& engine;
  const Shape shape;

 private:
  void attention(const Layer& layer, int index, int rows, Kv& kv);
  void rotate_and_store(int index, int rows, Kv& kv);
  void attend(int index, int rows, Kv& kv);

  int dim_;  // head_dim padded to 16
  std::shared_ptr<PagePool> pool_ = std::make_shared<PagePool>();
  std::vector<float> cosine_, sine_;
  std::vector<Layer> layers_;
  Buffer normed_, qkv_, query_, attended_, gathered_, gate_up_, out_;
  std::vector<std::vector<float>> scores_;  // one a job of attention
};

// Copies `width` floats into a vector padded with zeros to 16.
std::vector<float> padded_copy(const float* values, int width);

}  // namespace mtrun
