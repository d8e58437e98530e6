// One threadgroup a (query head, part of the keys). Simdgroups take keys in turn and keep an online softmax for each of
// ROWS query rows; their states meet in threadgroup memory. Row r sees the keys up to length - ROWS + r.
// Templates: T, ROWS, DIM (a multiple of 32). queries [1, H, ROWS, DIM], keys and values [1, G, S, DIM] of T, with any
// strides; scale float; length int, at most S. out [H * ROWS, parts, DIM], best and sum [H * ROWS, parts] float.
constexpr int EACH = DIM / 32;  // dimensions of one lane
uint head = threadgroup_position_in_grid.y;
uint part = threadgroup_position_in_grid.z;
uint parts = threadgroups_per_grid.z;
uint thread_index = thread_position_in_threadgroup.x;
uint threads = threads_per_threadgroup.x;
uint lane = thread_index_in_simdgroup;
uint simdgroup = simdgroup_index_in_threadgroup;
uint simdgroups = threads / 32;
uint kv_head = head / uint(queries_shape[1] / keys_shape[1]);
int span = (length + int(parts) - 1) / int(parts);
int first = int(part) * span;
int last = min(first + span, length);

threadgroup float part_best[8];
threadgroup float part_sum[8];
threadgroup float part_out[8 * DIM];

float query[ROWS * EACH];
float mixed[ROWS * EACH];
float row_best[ROWS];
float row_sum[ROWS];
for (int r = 0; r < ROWS; r++) {
  row_best[r] = -INFINITY;
  row_sum[r] = 0;
  for (int c = 0; c < EACH; c++) {
    int64_t at = head * queries_strides[1] + r * queries_strides[2] + (lane + 32 * c) * queries_strides[3];
    query[r * EACH + c] = scale * float(queries[at]);
    mixed[r * EACH + c] = 0;
  }
}

for (int j = first + int(simdgroup); j < last; j += int(simdgroups)) {
  float key[EACH];
  float value[EACH];
  for (int c = 0; c < EACH; c++) {
    key[c] = float(keys[kv_head * keys_strides[1] + j * keys_strides[2] + (lane + 32 * c) * keys_strides[3]]);
    value[c] = float(values[kv_head * values_strides[1] + j * values_strides[2] + (lane + 32 * c) * values_strides[3]]);
  }
  for (int r = 0; r < ROWS; r++) {
    float dot = 0;
    for (int c = 0; c < EACH; c++) dot += query[r * EACH + c] * key[c];
    float score = simd_sum(dot);
    if (j <= length - ROWS + r) {
      float most = max(row_best[r], score);
      float fade = exp(row_best[r] - most);
      float weight = exp(score - most);
      row_best[r] = most;
      row_sum[r] = row_sum[r] * fade + weight;
      for (int c = 0; c < EACH; c++) mixed[r * EACH + c] = mixed[r * EACH + c] * fade + weight * value[c];
    }
  }
}

for (int r = 0; r < ROWS; r++) {
  if (lane == 0) {
    part_best[simdgroup] = row_best[r];
    part_sum[simdgroup] = row_sum[r];
  }
  for (int c = 0; c < EACH; c++) part_out[simdgroup * DIM + lane + 32 * c] = mixed[r * EACH + c];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float most = -INFINITY;
  for (uint s = 0; s < simdgroups; s++) most = max(most, part_best[s]);
  uint at = (head * ROWS + uint(r)) * parts + part;
  float whole = 0;
  for (uint s = 0; s < simdgroups; s++)
    if (part_best[s] > -INFINITY) whole += part_sum[s] * exp(part_best[s] - most);
  for (uint d = thread_index; d < uint(DIM); d += threads) {
    float total = 0;
    for (uint s = 0; s < simdgroups; s++)
      if (part_best[s] > -INFINITY) total += part_out[s * DIM + d] * exp(part_best[s] - most);
    out[at * DIM + d] = total;
  }
  if (thread_index == 0) {
    best[at] = most;  // -inf where the row sees no key of this part
    sum[at] = whole;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}
