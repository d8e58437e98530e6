#include "judge.h"

#include <algorithm>
#include <cmath>

#include "rows.h"

namespace mtrun {
namespace {

double peak(const std::vector<double>& row) { return *std::max_element(row.begin(), row.end()); }

// Residuals that rounding has left empty are replaced by p, as `exact.usable` does.
void make_usable(std::vector<double>& weights, const std::vector<double>& p) {
  if (std::none_of(weights.begin(), weights.end(), [](double w) { return w > 0; })) weights = p;
}

// min(1, pi(v) / q(v)), 0 where q(v) = 0
double keep_probability(double pi, double q) { return q > 0 ? std::min(pi / q, 1.0) : 0.0; }

double entropy(const std::vector<double>& p) {
  double sum = 0;
  for (double each : p) if (each > 0) sum -= each * std::log(each);
  return sum;
}

}  // namespace

// Merges two ascending lists of ids. Slots that a filter emptied stay: they weigh nothing.
void Judge::align(const Cycle& c, int position) {
  Position& x = positions_[(size_t)position];
  const int32_t *a = c.target.ids + (long)position * c.target.width, *b = c.draft.ids + (long)position * c.draft.width;
  const double *p = c.target.probs + (long)position * c.target.width, *q = c.draft.probs + (long)position * c.draft.width;
  x.ids.clear();
  x.p.clear();
  x.q.clear();
  for (int i = 0, j = 0; i < c.target.width || j < c.draft.width;) {
    const bool first = j == c.draft.width || (i < c.target.width && a[i] <= b[j]);
    const bool both = first && j < c.draft.width && a[i] == b[j];
    x.ids.push_back(first ? a[i] : b[j]);
    x.p.push_back(first ? p[i] : 0.0);
    x.q.push_back(!first || both ? q[j] : 0.0);
    i += first;
    j += !first || both;
  }
  const auto found = std::lower_bound(x.ids.begin(), x.ids.end(), c.drafts[position]);
  x.slot = found != x.ids.end() && *found == c.drafts[position] ? (int)(found - x.ids.begin()) : -1;
  x.at_p = x.slot < 0 ? 0.0 : x.p[(size_t)x.slot];
  x.at_q = x.slot < 0 ? 0.0 : x.q[(size_t)x.slot];
}

// Speculative cascades, Algorithm 6 (arXiv 2405.19261): pi(v) = q(v) 1[v in A] + eta p(v).
bool Judge::token_rule(Position& x, const std::vector<uint8_t>& keep_set, double coin, bool& deferred) {
  const size_t slots = x.ids.size();
  double eta = 0;
  for (size_t i = 0; i < slots; i++) eta += keep_set[i] ? 0.0 : x.q[i];
  for (size_t i = 0; i < slots; i++)
    x.replacement[i] = keep_set[i] ? eta * x.p[i] : std::max(eta * x.p[i] - x.q[i], 0.0);
  make_usable(x.replacement, x.p);
  deferred = x.slot < 0 || !keep_set[(size_t)x.slot];
  return !deferred || coin < keep_probability(eta * x.at_p, x.at_q);
}

bool Judge::keeps(const Cycle& c, int position, Decided& out) {
  Position& x = positions_[(size_t)position];
  const size_t slots = x.ids.size();
  const double coin = c.coins[position], most = peak(x.p);
  bool deferred = true, keep = false;
  x.replacement.resize(slots);
  keep_set_.assign(slots, 0);
  const auto set_of = [&](auto member) {
    for (size_t i = 0; i < slots; i++) keep_set_[i] = member(i);
  };
  const auto typical = [&] {
    const double floor = std::min(c.knob * std::exp(-entropy(x.p)), c.eps);
    set_of([&](size_t i) { return x.p[i] > floor; });
  };
  switch (c.law) {
    case TYPICAL:  // Medusa (arXiv 2401.10774): no coin, the first untypical draft is replaced from p
      typical();
      keep = x.slot >= 0 && keep_set_[(size_t)x.slot];
      deferred = !keep;
      x.replacement = x.p;
      break;
    case TYPICAL_PI: typical(); keep = token_rule(x, keep_set_, coin, deferred); break;
    case TOKENV1:
      set_of([&](size_t i) { return x.q[i] >= most - c.knob; });
      keep = token_rule(x, keep_set_, coin, deferred);
      break;
    case TOKENV2:
      set_of([&](size_t i) { return x.p[i] >= most - c.knob && x.p[i] > 0; });
      keep = token_rule(x, keep_set_, coin, deferred);
      break;
    case TOKENV3:
      set_of([&](size_t i) { return x.p[i] >= (1 - c.knob) * most; });
      keep = token_rule(x, keep_set_, coin, deferred);
      break;
    default:  // EXACT (arXiv 2211.17192, Algorithm 1), and OPT (arXiv 2405.19261, eq. 10), which defers whole rows to it
      if (c.law == OPT) deferred = peak(x.q) < most - c.knob * out.divergence[position];
      keep = !deferred || coin < keep_probability(x.at_p, x.at_q);
      for (size_t i = 0; i < slots; i++) x.replacement[i] = std::max(x.p[i] - x.q[i], 0.0);
      make_usable(x.replacement, x.p);
  }
  out.deferred[position] = deferred;
  return keep;
}

// Block verification (arXiv 2403.10444, Algorithm 2): the largest i whose coin succeeds.
int Judge::block(const Cycle& c) {
  int kept = 0;
  double weight = 1;  // w_i of the path so far
  for (int i = 0; i <= c.depth; i++) {
    double surplus = 0;
    if (i < c.depth) {
      Position& x = positions_[(size_t)i];
      x.replacement.resize(x.ids.size());
      for (size_t s = 0; s < x.ids.size(); s++) {
        x.replacement[s] = std::max(weight * x.p[s] - x.q[s], 0.0);
        surplus += x.replacement[s];
      }
      if (!(surplus > 0)) x.replacement = x.p;
    }
    if (i > 0) {
      const double rest = surplus + (1 - weight);
      const double keep = i == c.depth ? weight : rest > 0 ? surplus / rest : 1.0;
      if (c.coins[i - 1] < keep) kept = i;
    }
    if (i < c.depth) {
      const Position& x = positions_[(size_t)i];
      weight = x.at_q > 0 ? std::min(weight * (x.at_p / x.at_q), 1.0) : 0.0;
    }
  }
  return kept;
}

void Judge::decide(const Cycle& c, Decided& out) {
  if ((int)positions_.size() < c.depth) positions_.resize((size_t)c.depth);
  for (int i = 0; i < c.depth; i++) {
    align(c, i);
    const Position& x = positions_[(size_t)i];
    out.divergence[i] = 0;
    for (size_t s = 0; s < x.ids.size(); s++) out.divergence[i] += std::max(x.p[s] - x.q[s], 0.0);
    out.mass[i] = x.at_q;
    out.deferred[i] = 1;
  }
  if (c.law == BLOCK) {
    out.kept = block(c);
  } else {
    bool all = true;
    out.kept = 0;
    for (int i = 0; i < c.depth; i++) {
      const bool keep = keeps(c, i, out);
      all = all && keep;
      out.kept += all;
    }
  }
  if (out.kept < c.depth) {
    const Position& x = positions_[(size_t)out.kept];
    out.token = x.ids[(size_t)draw(x.replacement.data(), (int)x.replacement.size(), c.residual)];
  } else {
    const long row = (long)c.depth * c.target.width;
    out.token = c.target.ids[row + draw(c.target.probs + row, c.target.width, c.bonus)];
  }
}

}  // namespace mtrun
