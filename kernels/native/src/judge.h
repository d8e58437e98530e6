// One cycle's decision on the host: D drafts against D + 1 target rows under an acceptance law.
//
// Notation as in runtime/acceptance: p target row, q draft row, v drafted token, A keep set, eta = q(not A).
#pragma once
#include <cstdint>
#include <vector>

namespace mtrun {

enum Law { EXACT, BLOCK, TYPICAL, TYPICAL_PI, OPT, TOKENV1, TOKENV2, TOKENV3 };

// Rows on explicit token ids, ascending: ids [R, width], probs [R, width].
struct SlotRows {
  const int32_t* ids;
  const double* probs;
  int width;
};

struct Cycle {
  int depth;
  SlotRows target;        // depth + 1 rows
  SlotRows draft;         // depth rows
  const int32_t* drafts;  // [depth] token ids
  const double* coins;    // [depth] uniforms
  double residual, bonus; // uniforms of the token that replaces a rejected draft, and of the one after the last
  int law;
  double knob, eps;       // alpha or threshold; eps of the typical laws
};

struct Decided {
  int32_t kept, token;
  uint8_t* deferred;   // [depth]
  double* divergence;  // [depth] D_TV(p, q)
  double* mass;        // [depth] q(v): 0 is a broken contract
};

// Judges every position, as the laws do; entries past the first rejection carry values that nobody may count.
class Judge {
 public:
  void decide(const Cycle& cycle, Decided& out);

 private:
  struct Position {
    std::vector<int32_t> ids;  // union of both supports, ascending
    std::vector<double> p, q, replacement;
    double at_p, at_q;  // p(v), q(v)
    int slot;           // of v, -1 where no row holds it
  };
  void align(const Cycle& cycle, int position);
  bool keeps(const Cycle& cycle, int position, Decided& out);
  bool token_rule(Position& x, const std::vector<uint8_t>& keep_set, double coin, bool& deferred);
  int block(const Cycle& cycle);

  std::vector<Position> positions_;
  std::vector<uint8_t> keep_set_;
};

}  // namespace mtrun
