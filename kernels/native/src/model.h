// A llama-family trunk and its recursive MTP head, each a whole forward in one call.
#pragma once
#include <vector>

#include "rows.h"
#include "stack.h"

namespace mtrun {

enum Want { WANT_NONE, WANT_LAST, WANT_ALL };  // which rows are projected to logits

struct Trunk {
  Stack* stack;
  int embedding;   // matrix whose rows are the input embeddings
  int projection;  // matrix of the lm_head
  int vocab;       // token ids below it
  std::vector<float> norm;
  Buffer x, last;

  Trunk(Stack* stack, int embedding, int projection, int vocab, std::vector<float> norm);
  // ids [count] at the next positions. hidden [count, H] after the final norm; logits [count or 1, outputs of the
  // projection, padded to 32], as `want` says. False when memory is out.
  bool forward(Kv& kv, const int32_t* ids, int count, Want want, float* hidden, float* logits);
};

// y = norm(layer(proj([hidden_norm(h); embed_norm(e)]))), DeepSeek-V3's MTP module (arXiv 2412.19437, section 2.2).
struct Head {
  Trunk* trunk;
  Stack* stack;  // one layer
  int projection;
  std::vector<float> hidden_norm, embed_norm, norm;
  Buffer pair, x;

  Head(Trunk* trunk, Stack* stack, int projection, std::vector<float> hidden_norm, std::vector<float> embed_norm,
       std::vector<float> norm);
  // Pairs (hidden [count, H] of a position, embedding [count, H] of the token after it) at the next positions -> out
  // [count, H], which may be `hidden` itself.
  bool forward(Kv& kv, const float* hidden, const float* embedded, int count, float* out);
};

// What a chain of drafts writes: `slots` ids and probabilities a draft, the drawn tokens.
struct Drafts {
  int slots;
  int32_t* tokens;  // [depth]
  int32_t* ids;     // [depth, slots] token ids, ascending
  double* probs;    // [depth, slots]
};

enum DraftStatus { DRAFT_OK, DRAFT_MEMORY, DRAFT_LOGITS };

// Draws `depth` tokens in a row with the head. `state` [H] is its output for the last verified pair; `scorer` the matrix
// of the draft vocabulary whose token ids are `vocabulary` (null = slot i is token i). Greedy where temperature is 0.
// Leaves the chain's own depth - 1 positions in `kv`: the caller trims them.
DraftStatus draft(Head& head, Kv& kv, RowFilter& rows, const float* state, int scorer, const int32_t* vocabulary,
                  int vocabulary_size, int depth, const Filter& filter, const double* uniforms, Drafts& out);

}  // namespace mtrun
