// One threadgroup a row: the k best logits by (logit, lower id), filtered by top-p and min-p, on ascending ids.
// logits [R, V] float; temperature, top_p, min_p float; top_k int, 1 to 256 and below V.
// ids [R, K] int, probs [R, K] float; peak, entropy, total [R] float.
uint row = threadgroup_position_in_grid.x;
uint thread_index = thread_position_in_threadgroup.x;
uint threads = threads_per_threadgroup.x;
uint lane = thread_index_in_simdgroup;
uint simdgroup = simdgroup_index_in_threadgroup;
uint simdgroups = threads / 32;
uint vocab = uint(logits_shape[1]);
uint start = row * vocab;
uint k = uint(top_k);

threadgroup float scratch[32];
threadgroup atomic_uint bins[256];
threadgroup uint found[2];
threadgroup uint larger_in[32];
threadgroup uint equal_in[32];
threadgroup uint slot_id[256];
threadgroup uint slot_key[256];
threadgroup float slot_weight[256];
threadgroup float slot_kept[256];

// The full row: its peak, and its total relative to that peak.
float best = -INFINITY;
for (uint i = thread_index; i < vocab; i += threads) best = max(best, logits[start + i]);
best = group_max(best, scratch, lane, simdgroup, simdgroups);
float part = 0;
for (uint i = thread_index; i < vocab; i += threads) part += exp((logits[start + i] - best) / temperature);
float whole = group_sum(part, scratch, lane, simdgroup, simdgroups);

// The k-th largest key, eight bits at a time from the top: `above` keys are larger than every key that still begins
// with `threshold`.
uint threshold = 0;
uint above = 0;
for (int shift = 24; shift >= 0; shift -= 8) {
  for (uint bin = thread_index; bin < 256; bin += threads) atomic_store_explicit(&bins[bin], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint decided = shift == 24 ? 0u : 0xFFFFFFFFu << (shift + 8);
  for (uint i = thread_index; i < vocab; i += threads) {
    uint key = order_key(logits[start + i]);
    if ((key & decided) == threshold)
      atomic_fetch_add_explicit(&bins[(key >> shift) & 255u], 1u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {  // lane 0 holds the eight highest bins
    uint top = 255u - 8u * lane;
    uint mine = 0;
    for (uint j = 0; j < 8; j++) mine += atomic_load_explicit(&bins[top - j], memory_order_relaxed);
    uint before = above + simd_prefix_exclusive_sum(mine);
    if (before < k && before + mine >= k) {
      uint bin = top;
      uint here = atomic_load_explicit(&bins[bin], memory_order_relaxed);
      while (before + here < k) {
        before += here;
        bin--;
        here = atomic_load_explicit(&bins[bin], memory_order_relaxed);
      }
      found[0] = bin;
      found[1] = before;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threshold |= found[0] << shift;
  above = found[1];
}
uint ties = k - above;  // how many keys equal to the threshold stay: the lowest ids

// Each simdgroup walks its own stretch of the row twice: to count, and, knowing what lies before it, to place.
uint stretch = ((vocab + simdgroups - 1) / simdgroups + 31u) / 32u * 32u;
uint first = simdgroup * stretch;
uint last = min(first + stretch, vocab);
uint larger = 0;
uint equal = 0;
for (uint i = first + lane; i < last; i += 32) {
  uint key = order_key(logits[start + i]);
  larger += key > threshold ? 1u : 0u;
  equal += key == threshold ? 1u : 0u;
}
larger = simd_sum(larger);
equal = simd_sum(equal);
if (lane == 0) {
  larger_in[simdgroup] = larger;
  equal_in[simdgroup] = equal;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
uint larger_before = 0;
uint equal_before = 0;
for (uint s = 0; s < simdgroup; s++) {
  larger_before += larger_in[s];
  equal_before += equal_in[s];
}
for (uint base = first; base < last; base += 32) {
  uint i = base + lane;
  float logit = i < last ? logits[start + i] : 0.0f;
  uint key = i < last ? order_key(logit) : 0u;
  uint flags = key > threshold ? 1u : key == threshold ? 0x10000u : 0u;  // two counts in one word, 32 of each at most
  uint ahead = simd_prefix_exclusive_sum(flags);
  uint equal_ahead = equal_before + (ahead >> 16);
  if (flags == 1u || (flags != 0u && equal_ahead < ties)) {
    uint slot = larger_before + (ahead & 0xFFFFu) + min(equal_ahead, ties);
    slot_id[slot] = i;
    slot_key[slot] = key;
    slot_weight[slot] = exp((logit - best) / temperature);
  }
  uint seen = simd_broadcast(ahead + flags, 31);
  larger_before += seen & 0xFFFFu;
  equal_before += seen >> 16;
}
threadgroup_barrier(mem_flags::mem_threadgroup);

// Every slot sums the weights that rank before it; sums of more terms are never smaller, so the cut is a prefix.
part = 0;
for (uint j = thread_index; j < k; j += threads) {
  uint key = slot_key[j];
  float weight = slot_weight[j];
  float before = 0;
  uint rank = 0;
  for (uint i = 0; i < k; i++) {
    uint other = slot_key[i];
    if (other > key || (other == key && i < j)) {
      before += slot_weight[i];
      rank++;
    }
  }
  bool inside = weight > 0 && weight >= min_p && (top_p >= 1 || before < top_p * whole);
  float kept = rank == 0 || inside ? weight : 0.0f;
  slot_kept[j] = kept;
  part += kept;
}
float sum = group_sum(part, scratch, lane, simdgroup, simdgroups);

part = 0;
for (uint j = thread_index; j < k; j += threads) {
  float p = slot_kept[j] / sum;
  ids[row * k + j] = int(slot_id[j]);
  probs[row * k + j] = p;
  if (p > 0) part -= p * log(p);
}
float nats = group_sum(part, scratch, lane, simdgroup, simdgroups);
if (thread_index == 0) {
  peak[row] = 1 / sum;  // the argmax weighs exactly 1
  entropy[row] = nats;
  total[row] = whole;
}
