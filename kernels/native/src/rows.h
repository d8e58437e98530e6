// From logits to a filtered row and a drawn token: temperature, softmax, top-k, top-p, min-p, without sorting the row.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace mtrun {

// What a request does to a row. top_k 0, top_p 1 and min_p 0 are off. temperature > 0.
struct Filter {
  float temperature, top_p, min_p;
  int top_k;
};

class RowFilter {
 public:
  explicit RowFilter(const Kernels& kernels) : kernels_(kernels) {}

  // The lowest id that attains the maximum of logits [vocab]; -1 when no logit is finite.
  int best(const float* logits, int vocab);
  // The top_k ids of logits [vocab], ascending, and their probabilities, 0 where the filter took them out.
  // 0 < top_k < vocab. False when no logit is finite.
  bool compact(const float* logits, int vocab, const Filter& filter, int32_t* ids, double* probs);
  // Probabilities of all ids [vocab]. False when no logit is finite.
  bool dense(const float* logits, int vocab, const Filter& filter, double* probs);

 private:
  struct Ranked {
    float logit;
    int32_t id;
  };
  bool look(const float* logits, int vocab);
  void rank(const float* logits, int vocab, int k);
  void rank_down_to(const float* logits, int vocab, double mass, float floor);

  const Kernels& kernels_;
  float peak_ = 0;
  std::vector<float> peaks_, sorted_, weights_;
  std::vector<Ranked> ranked_;  // candidates, best first
};

// The first slot of positive weight with u * total < cumulated weight, the last of positive weight where rounding leaves none.
int draw(const double* weights, int count, double uniform);

}  // namespace mtrun
