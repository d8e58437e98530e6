#include "stack.h"

#include <cmath>
#include <cstring>

namespace mtrun {

std::vector<float> padded_copy(const float* values, int width) {
  std::vector<float> out((size_t)padded(width), 0.0f);
  std::memcpy(out.data(), values, sizeof(float) * (size_t)width);
  return out;
}

Stack::Stack(Engine& e, const Shape& s, const float* cosine, const float* sine)
    : engine(e), shape(s), dim_(padded(s.head_dim)) {
  const size_t entries = (size_t)s.positions * (size_t)(s.head_dim / 2);
  cosine_.assign(cosine, cosine + entries);
  sine_.assign(sine, sine + entries);
  normed_.shape(ROWS, s.hidden);
  qkv_.shape(ROWS, tiled(s.heads * s.head_dim) + 2 * tiled(s.kv_heads * s.head_dim));
  query_.shape(ROWS, s.heads * dim_);
  attended_.shape(ROWS, s.heads * dim_);
  gathered_.shape(ROWS, s.heads * s.head_dim);
  gate_up_.shape(ROWS, 2 * tiled(s.feed_forward));
  out_.shape(ROWS, s.hidden);
}

Kv* Stack::new_kv() {
  pool_->resize((size_t)layers_.size() * (size_t)shape.kv_heads * 2 * PAGE * (size_t)dim_);
  return new Kv(pool_, (int)layers_.size(), shape.kv_heads, dim_);
}

bool Stack::forward(Buffer& x, int rows, Kv& kv) {
  if (!kv.reserve(kv.length() + rows)) return false;
  const Kernels& k = engine.kernels;
  const int hidden = padded(shape.hidden), ffn = tiled(shape.feed_forward);
  for (size_t i = 0; i < layers_.size(); i++) {
    const Layer& layer = layers_[i];
    for (int m = 0; m < rows; m++) norm(x.row(m), layer.attention_norm, normed_.row(m));
    attention(layer, (int)i, rows, kv);
    for (int m = 0; m < rows; m++) {
      k.add(x.row(m), out_.row(m), hidden);
      norm(x.row(m), layer.mlp_norm, normed_.row(m));
    }
    engine.multiply(layer.gate_up, normed_.data(), normed_.stride(), rows, gate_up_.data(), gate_up_.stride());
    engine.each(rows, [&](int m) { k.silu_gate(gate_up_.row(m), gate_up_.row(m) + ffn, ffn); });
    engine.multiply(layer.down, gate_up_.data(), gate_up_.stride(), rows, out_.data(), out_.stride());
    for (int m = 0; m < rows; m++) k.add(x.row(m), out_.row(m), hidden);
  }
  kv.advance(rows);
  return true;
}

void Stack::attention(const Layer& layer, int index, int rows, Kv& kv) {
  engine.multiply(layer.qkv, normed_.data(), normed_.stride(), rows, qkv_.data(), qkv_.stride());
  rotate_and_store(index, rows, kv);
  attend(index, rows, kv);
  for (int m = 0; m < rows; m++)
    for (int h = 0; h < shape.heads; h++)
      std::memcpy(gathered_.row(m) + h * shape.head_dim, attended_.row(m) + h * dim_,
                  sizeof(float) * (size_t)shape.head_dim);
  engine.multiply(layer.output, gathered_.data(), gathered_.stride(), rows, out_.data(), out_.stride());
}

void Stack::rotate_and_store(int index, int rows, Kv& kv) {
  const int half = shape.head_dim / 2, keys = tiled(shape.heads * shape.head_dim);
  const int values = keys + tiled(shape.kv_heads * shape.head_dim);
  for (int m = 0; m < rows; m++) {
    const int position = kv.length() + m;
    const float* cosine = cosine_.data() + (long)position * half;
    const float* sine = sine_.data() + (long)position * half;
    float* row = qkv_.row(m);
    for (int h = 0; h < shape.heads + shape.kv_heads; h++) {
      float* head = h < shape.heads ? row + h * shape.head_dim : row + keys + (h - shape.heads) * shape.head_dim;
      engine.kernels.rope(head, cosine, sine, half, shape.rope_traditional != 0);
    }
    for (int h = 0; h < shape.heads; h++)
      std::memcpy(query_.row(m) + h * dim_, row + h * shape.head_dim, sizeof(float) * (size_t)shape.head_dim);
    for (int h = 0; h < shape.kv_heads; h++)
      kv.put(index, h, position, row + keys + h * shape.head_dim, row + values + h * shape.head_dim, shape.head_dim);
  }
}

void Stack::attend(int index, int rows, Kv& kv) {
  const int rep = shape.heads / shape.kv_heads, strips = (rows + STRIP - 1) / STRIP, jobs = shape.kv_heads * strips;
  const size_t need = (size_t)(STRIP * rep) * (size_t)kv.capacity();
  if (scores_.size() < (size_t)jobs) scores_.resize((size_t)jobs);
  const bool alone = engine.threads() == 1;
  engine.each(jobs, [&](int job) {
    std::vector<float>& scores = scores_[alone ? 0 : (size_t)job];
    if (scores.size() < need) scores.resize(need);
    const int head = job % shape.kv_heads, first = job / shape.kv_heads * STRIP;
    const int count = rows - first < STRIP ? rows - first : STRIP, at = head * rep * dim_;
    engine.kernels.attend({query_.row(first) + at, query_.stride(), count, rep, dim_, kv.length() + first,
                           1.0f / std::sqrt((float)shape.head_dim), kv.keys(index, head), kv.values(index, head),
                           scores.data(), kv.capacity(), attended_.row(first) + at, attended_.stride()});
  });
}

}  // namespace mtrun
