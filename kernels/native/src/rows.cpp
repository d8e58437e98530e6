#include "rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mtrun {

bool RowFilter::look(const float* logits, int vocab) {
  peaks_.resize((size_t)(vocab + 63) / 64);
  peak_ = kernels_.peaks(logits, vocab, peaks_.data());
  return std::isfinite(peak_);
}

int RowFilter::best(const float* logits, int vocab) {
  if (!look(logits, vocab)) return -1;
  const size_t block = (size_t)(std::find(peaks_.begin(), peaks_.end(), peak_) - peaks_.begin());
  return (int)(std::find(logits + block * 64, logits + vocab, peak_) - logits);
}

// Fills ranked_ with the k best by (logit, lower id). The k-th largest block maximum bounds the k-th largest logit.
void RowFilter::rank(const float* logits, int vocab, int k) {
  float least = -std::numeric_limits<float>::infinity();
  if ((int)peaks_.size() > k) {
    sorted_ = peaks_;
    std::nth_element(sorted_.begin(), sorted_.begin() + (k - 1), sorted_.end(), std::greater<float>());
    least = sorted_[(size_t)k - 1];
  }
  ranked_.clear();
  for (size_t block = 0; block < peaks_.size(); block++) {
    if (peaks_[block] < least) continue;
    const int end = std::min(vocab, (int)(block + 1) * 64);
    for (int i = (int)block * 64; i < end; i++)
      if (logits[i] >= least) ranked_.push_back({logits[i], i});
  }
  const auto better = [](const Ranked& a, const Ranked& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  const size_t kept = std::min(ranked_.size(), (size_t)k);
  std::partial_sort(ranked_.begin(), ranked_.begin() + (long)kept, ranked_.end(), better);
  ranked_.resize(kept);
}

bool RowFilter::compact(const float* logits, int vocab, const Filter& how, int32_t* ids, double* probs) {
  if (!look(logits, vocab)) return false;
  rank(logits, vocab, how.top_k);
  const int count = (int)ranked_.size();
  std::vector<float>& top = sorted_;
  top.resize((size_t)count);
  weights_.resize((size_t)count);
  for (int i = 0; i < count; i++) top[(size_t)i] = ranked_[(size_t)i].logit;
  kernels_.weights(top.data(), count, peak_, how.temperature, weights_.data());
  const double limit = how.top_p < 1.0f ? (double)how.top_p * kernels_.total(logits, vocab, peak_, how.temperature)
                                        : std::numeric_limits<double>::infinity();
  double before = 0;
  for (int i = 0; i < count; i++) {
    const double weight = (double)weights_[(size_t)i];
    const bool stays = i == 0 || (weight >= (double)how.min_p && weight > 0 && before < limit);
    before += weight;
    if (!stays) weights_[(size_t)i] = 0;
  }
  for (int i = 0; i < count; i++) ranked_[(size_t)i].logit = weights_[(size_t)i];
  std::sort(ranked_.begin(), ranked_.end(), [](const Ranked& a, const Ranked& b) { return a.id < b.id; });
  double total = 0;
  for (const Ranked& each : ranked_) total += (double)each.logit;
  for (int i = 0; i < count; i++) {
    ids[i] = ranked_[(size_t)i].id;
    probs[i] = (double)ranked_[(size_t)i].logit / total;
  }
  return true;
}

// Fills ranked_ from weights_ with all that weigh more than `floor`, or enough of the largest to hold `mass`; best first.
void RowFilter::rank_down_to(const float* logits, int vocab, double mass, float floor) {
  for (float least = 1.0f / 64;; least /= 64) {
    const float from = std::max(least, floor);
    double held = 0;
    ranked_.clear();
    for (int i = 0; i < vocab; i++)
      if (weights_[(size_t)i] >= from && weights_[(size_t)i] > 0) {
        ranked_.push_back({logits[i], i});
        held += (double)weights_[(size_t)i];
      }
    if (held >= mass || least <= floor || least < std::numeric_limits<float>::min()) break;
  }
  std::sort(ranked_.begin(), ranked_.end(), [](const Ranked& a, const Ranked& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  });
}

bool RowFilter::dense(const float* logits, int vocab, const Filter& how, double* probs) {
  if (!look(logits, vocab)) return false;
  weights_.resize((size_t)vocab);
  kernels_.weights(logits, vocab, peak_, how.temperature, weights_.data());
  double total = 0;
  for (int i = 0; i < vocab; i++) total += (double)weights_[(size_t)i];
  if (how.top_p >= 1.0f && how.min_p <= 0.0f && how.top_k <= 0) {
    for (int i = 0; i < vocab; i++) probs[i] = (double)weights_[(size_t)i] / total;
    return true;
  }
  const double limit = how.top_p < 1.0f ? (double)how.top_p * total : std::numeric_limits<double>::infinity();
  if (how.top_k > 0) {
    rank(logits, vocab, std::min(how.top_k, vocab));
  } else {
    rank_down_to(logits, vocab, std::min(limit, total), how.min_p);
  }
  std::fill(probs, probs + vocab, 0.0);
  double before = 0;
  for (size_t i = 0; i < ranked_.size(); i++) {
    const double weight = (double)weights_[(size_t)ranked_[i].id];
    if (i == 0 || (weight >= (double)how.min_p && before < limit)) probs[ranked_[i].id] = weight;
    before += weight;
  }
  double kept = 0;
  for (int i = 0; i < vocab; i++) kept += probs[i];
  for (int i = 0; i < vocab; i++) probs[i] /= kept;
  return true;
}

int draw(const double* weights, int count, double uniform) {
  double total = 0;
  for (int i = 0; i < count; i++) total += weights[i];
  double sum = 0;
  int last = 0;
  for (int i = 0; i < count; i++) {
    sum += weights[i];
    if (weights[i] <= 0) continue;
    if (uniform * total < sum) return i;
    last = i;
  }
  return last;
}

}  // namespace mtrun
