#include "model.h"

#include <cstring>

namespace mtrun {

Trunk::Trunk(Stack* s, int e, int p, int v, std::vector<float> n)
    : stack(s), embedding(e), projection(p), vocab(v), norm(std::move(n)) {
  x.shape(ROWS, stack->shape.hidden);
  last.shape(ROWS, stack->shape.hidden);
}

bool Trunk::forward(Kv& kv, const int32_t* ids, int count, Want want, float* hidden, float* logits) {
  Engine& engine = stack->engine;
  const int width = stack->shape.hidden, outputs = engine.matrix(projection).outputs;
  for (int start = 0; start < count; start += ROWS) {
    const int rows = count - start < ROWS ? count - start : ROWS;
    for (int m = 0; m < rows; m++) unpack_row(engine.matrix(embedding), ids[start + m], x.row(m));
    if (!stack->forward(x, rows, kv)) return false;
    for (int m = 0; m < rows; m++) {
      stack->norm(x.row(m), norm, last.row(m));
      std::memcpy(hidden + (long)(start + m) * width, last.row(m), sizeof(float) * (size_t)width);
    }
    if (want == WANT_ALL) {
      engine.multiply({projection}, last.data(), last.stride(), rows, logits + (long)start * outputs, outputs);
    } else if (want == WANT_LAST && start + rows == count) {
      engine.multiply({projection}, last.row(rows - 1), last.stride(), 1, logits, outputs);
    }
  }
  return true;
}

Head::Head(Trunk* t, Stack* s, int p, std::vector<float> h, std::vector<float> e, std::vector<float> n)
    : trunk(t), stack(s), projection(p), hidden_norm(std::move(h)), embed_norm(std::move(e)), norm(std::move(n)) {
  const int width = stack->shape.hidden;
  pair.shape(ROWS, 2 * width);
  x.shape(ROWS, width);
}

bool Head::forward(Kv& kv, const float* hidden, const float* embedded, int count, float* out) {
  Engine& engine = stack->engine;
  const int width = stack->shape.hidden;
  std::vector<float> one((size_t)padded(width), 0.0f), normed((size_t)padded(width), 0.0f);
  const auto norm_into = [&](const float* from, const std::vector<float>& weight, float* to) {
    std::memcpy(one.data(), from, sizeof(float) * (size_t)width);
    stack->norm(one.data(), weight, normed.data());
    std::memcpy(to, normed.data(), sizeof(float) * (size_t)width);
  };
  for (int start = 0; start < count; start += ROWS) {
    const int rows = count - start < ROWS ? count - start : ROWS;
    for (int m = 0; m < rows; m++) {
      norm_into(hidden + (long)(start + m) * width, hidden_norm, pair.row(m));
      norm_into(embedded + (long)(start + m) * width, embed_norm, pair.row(m) + width);
    }
    engine.multiply({projection}, pair.data(), pair.stride(), rows, x.data(), x.stride());
    if (!stack->forward(x, rows, kv)) return false;
    for (int m = 0; m < rows; m++) {
      stack->norm(x.row(m), norm, normed.data());
      std::memcpy(out + (long)(start + m) * width, normed.data(), sizeof(float) * (size_t)width);
    }
  }
  return true;
}

DraftStatus draft(Head& head, Kv& kv, RowFilter& rows, const float* state, int scorer, const int32_t* vocabulary,
                  int vocabulary_size, int depth, const Filter& filter, const double* uniforms, Drafts& out) {
  Engine& engine = head.stack->engine;
  const int width = head.stack->shape.hidden, outputs = engine.matrix(scorer).outputs;
  std::vector<float> current((size_t)padded(width), 0.0f), logits((size_t)outputs), embedded((size_t)width);
  std::memcpy(current.data(), state, sizeof(float) * (size_t)width);
  for (int step = 0; step < depth; step++) {
    engine.multiply({scorer}, current.data(), padded(width), 1, logits.data(), outputs);
    int32_t* ids = out.ids + (long)step * out.slots;
    double* probs = out.probs + (long)step * out.slots;
    int slot = 0;
    if (filter.temperature == 0.0f) {
      slot = rows.best(logits.data(), vocabulary_size);
      if (slot < 0) return DRAFT_LOGITS;
      ids[0] = slot;
      probs[0] = 1.0;
      slot = 0;
    } else if (out.slots < vocabulary_size) {
      if (!rows.compact(logits.data(), vocabulary_size, filter, ids, probs)) return DRAFT_LOGITS;
      slot = draw(probs, out.slots, uniforms[step]);
    } else {
      if (!rows.dense(logits.data(), vocabulary_size, filter, probs)) return DRAFT_LOGITS;
      for (int i = 0; i < vocabulary_size; i++) ids[i] = i;
      slot = draw(probs, out.slots, uniforms[step]);
    }
    if (vocabulary)
      for (int i = 0; i < out.slots; i++) ids[i] = vocabulary[ids[i]];
    out.tokens[step] = ids[slot];
    if (step + 1 == depth) break;
    unpack_row(engine.matrix(head.trunk->embedding), out.tokens[step], embedded.data());
    if (!head.forward(kv, current.data(), embedded.data(), 1, current.data())) return DRAFT_MEMORY;
  }
  return DRAFT_OK;
}

}  // namespace mtrun
