// The C interface that Python calls through ctypes: plain pointers, no MLX and no Python in it.
//
// One engine serves one thread at a time. Functions return 0 for success or a code of `Status`; sizes and indices are
// checked by the caller in Python, which knows their names.
#include <algorithm>
#include <cstring>
#include <memory>

#include "dispatch.h"
#include "judge.h"
#include "model.h"

#define MTRUN_API extern "C" __attribute__((visibility("default")))

using namespace mtrun;

namespace {

enum Status { OK = 0, MEMORY = 1, POSITIONS = 2, LOGITS = 3, TOKENS = 4, CACHE = 5 };

bool fits(const Stack& stack, const Kv& kv, int count) { return kv.length() + count <= stack.shape.positions; }

bool knows(const Trunk& trunk, const int32_t* ids, int count) {
  return std::all_of(ids, ids + count, [&](int32_t id) { return id >= 0 && id < trunk.vocab; });
}

}  // namespace

// Changes with any change of a signature here: Python compares it before the first call.
MTRUN_API int mtrun_native_version() { return 1; }

MTRUN_API const char* mtrun_native_isa(const char* name) {
  const Kernels* found = find_kernels(name);
  return found ? found->name : nullptr;
}

MTRUN_API const char* mtrun_native_refuse(const Stored* stored, int four_bits) {
  return refuse(*stored, four_bits != 0);
}

MTRUN_API size_t mtrun_native_packed_bytes(const Stored* stored, int four_bits) {
  return (packed_bytes(*stored, four_bits ? Q4_FLOAT : format_of(*stored)) + 63) / 64 * 64;
}

MTRUN_API Engine* mtrun_engine_new(const char* isa, int threads, size_t arena_bytes, int activation) {
  const Kernels* kernels = find_kernels(isa);
  if (!kernels) return nullptr;
  auto engine = std::make_unique<Engine>(*kernels, threads, arena_bytes, (Activation)activation);
  return engine->arena().valid() ? engine.release() : nullptr;
}
MTRUN_API void mtrun_engine_free(Engine* engine) { delete engine; }
MTRUN_API int mtrun_engine_add(Engine* engine, const Stored* stored, int four_bits) {
  return engine->add(*stored, four_bits != 0);
}
// For all later calls; the loop of one thread has no barriers.
MTRUN_API void mtrun_engine_set_threads(Engine* engine, int threads) { engine->set_threads(threads); }
MTRUN_API void mtrun_engine_set_activation(Engine* engine, int activation) { engine->activation = (Activation)activation; }
MTRUN_API int mtrun_engine_outputs(const Engine* engine, int matrix) { return engine->matrix(matrix).outputs; }
MTRUN_API void mtrun_engine_arena(const Engine* engine, size_t* base, size_t* mapped, size_t* used) {
  *base = (size_t)engine->arena().base();
  *mapped = engine->arena().mapped();
  *used = engine->arena().used();
}
// y [rows, padded outputs] = x [rows, inputs] times the matrix's rows
MTRUN_API void mtrun_engine_multiply(Engine* engine, int matrix, const float* x, int rows, float* y) {
  const Matrix& w = engine->matrix(matrix);
  engine->multiply({matrix}, x, w.inputs, rows, y, w.outputs);
}
MTRUN_API void mtrun_engine_row(const Engine* engine, int matrix, int output, float* out) {
  unpack_row(engine->matrix(matrix), output, out);
}

MTRUN_API Stack* mtrun_stack_new(Engine* engine, const Shape* shape, const float* cosine, const float* sine) {
  return new Stack(*engine, *shape, cosine, sine);
}
MTRUN_API void mtrun_stack_free(Stack* stack) { delete stack; }
// matrices: q, k, v, output, gate, up, down
MTRUN_API void mtrun_stack_add(Stack* stack, const float* attention_norm, const float* mlp_norm, const int* matrices) {
  const int* m = matrices;
  stack->add({padded_copy(attention_norm, stack->shape.hidden), padded_copy(mlp_norm, stack->shape.hidden),
              {m[0], m[1], m[2]}, {m[3]}, {m[4], m[5]}, {m[6]}});
}
MTRUN_API Kv* mtrun_kv_new(Stack* stack) { return stack->new_kv(); }
MTRUN_API void mtrun_kv_free(Kv* kv) { delete kv; }
MTRUN_API int mtrun_kv_length(const Kv* kv) { return kv->length(); }
MTRUN_API int mtrun_kv_trim(Kv* kv, int count) { return kv->trim(count); }
MTRUN_API size_t mtrun_kv_bytes(const Kv* kv) { return kv->bytes(); }

MTRUN_API Trunk* mtrun_trunk_new(Stack* stack, int embedding, int projection, int vocab, const float* norm) {
  return new Trunk(stack, embedding, projection, vocab, padded_copy(norm, stack->shape.hidden));
}
MTRUN_API void mtrun_trunk_free(Trunk* trunk) { delete trunk; }
MTRUN_API int mtrun_trunk_forward(Trunk* trunk, Kv* kv, const int32_t* ids, int count, int want, float* hidden,
                                  float* logits) {
  if (!trunk->stack->owns(*kv)) return CACHE;
  if (!fits(*trunk->stack, *kv, count)) return POSITIONS;
  if (!knows(*trunk, ids, count)) return TOKENS;
  return trunk->forward(*kv, ids, count, (Want)want, hidden, logits) ? OK : MEMORY;
}
// Which matrix later forwards use as the lm_head
MTRUN_API void mtrun_trunk_set_projection(Trunk* trunk, int matrix) { trunk->projection = matrix; }
MTRUN_API int mtrun_trunk_embed(const Trunk* trunk, const int32_t* ids, int count, float* out) {
  if (!knows(*trunk, ids, count)) return TOKENS;
  const Matrix& table = trunk->stack->engine.matrix(trunk->embedding);
  for (int i = 0; i < count; i++) unpack_row(table, ids[i], out + (long)i * table.inputs);
  return OK;
}

MTRUN_API Head* mtrun_head_new(Trunk* trunk, Stack* stack, int projection, const float* hidden_norm,
                               const float* embed_norm, const float* norm) {
  const int width = stack->shape.hidden;
  return new Head(trunk, stack, projection, padded_copy(hidden_norm, width), padded_copy(embed_norm, width),
                  padded_copy(norm, width));
}
MTRUN_API void mtrun_head_free(Head* head) { delete head; }
MTRUN_API int mtrun_head_forward(Head* head, Kv* kv, const float* hidden, const float* embedded, int count,
                                 float* out) {
  if (!head->stack->owns(*kv)) return CACHE;
  if (!fits(*head->stack, *kv, count)) return POSITIONS;
  return head->forward(*kv, hidden, embedded, count, out) ? OK : MEMORY;
}

MTRUN_API RowFilter* mtrun_rows_new(const char* isa) {
  const Kernels* kernels = find_kernels(isa);
  return kernels ? new RowFilter(*kernels) : nullptr;
}
MTRUN_API void mtrun_rows_free(RowFilter* rows) { delete rows; }
// count rows of logits [count, stride], of which the first `vocab` count. slots = 1 at temperature 0, top_k for compact
// rows, vocab for dense ones (ids is then not written).
MTRUN_API int mtrun_rows_filter(RowFilter* rows, const float* logits, int count, long stride, int vocab,
                                const Filter* filter, int slots, int32_t* ids, double* probs) {
  for (int i = 0; i < count; i++, logits += stride, ids += slots, probs += slots) {
    bool ok;
    if (filter->temperature == 0.0f) {
      ids[0] = rows->best(logits, vocab);
      probs[0] = 1.0;
      ok = ids[0] >= 0;
    } else {
      ok = slots < vocab ? rows->compact(logits, vocab, *filter, ids, probs) : rows->dense(logits, vocab, *filter, probs);
    }
    if (!ok) return LOGITS;
  }
  return OK;
}
MTRUN_API int mtrun_rows_draw(const double* weights, int count, double uniform) { return draw(weights, count, uniform); }

MTRUN_API Judge* mtrun_judge_new() { return new Judge; }
MTRUN_API void mtrun_judge_free(Judge* judge) { delete judge; }
MTRUN_API void mtrun_judge_decide(Judge* judge, const Cycle* cycle, Decided* out) { judge->decide(*cycle, *out); }

MTRUN_API int mtrun_head_draft(Head* head, Kv* kv, RowFilter* rows, const float* state, int scorer,
                               const int32_t* vocabulary, int vocabulary_size, int depth, const Filter* filter,
                               const double* uniforms, int slots, int32_t* tokens, int32_t* ids, double* probs) {
  if (!head->stack->owns(*kv)) return CACHE;
  if (!fits(*head->stack, *kv, depth - 1)) return POSITIONS;
  Drafts out{slots, tokens, ids, probs};
  switch (draft(*head, *kv, *rows, state, scorer, vocabulary, vocabulary_size, depth, *filter, uniforms, out)) {
    case DRAFT_OK: return OK;
    case DRAFT_MEMORY: return MEMORY;
    default: return LOGITS;
  }
}
