// One threadgroup a row of a drafted path of D tokens. Row i gives the surplus g under w_i, its replacement weights,
// and one decision: row 0 that of the whole path (h_D = w_D), row i > 0 that of its first i drafts (h_i).
// p, q [D, U] float; drafted [D] int slots; coins [D] float. succeeded [D] bool; replacement [D, U] float.
uint row = threadgroup_position_in_grid.x;
uint thread_index = thread_position_in_threadgroup.x;
uint threads = threads_per_threadgroup.x;
uint lane = thread_index_in_simdgroup;
uint simdgroup = simdgroup_index_in_threadgroup;
uint simdgroups = threads / 32;
uint depth = uint(p_shape[0]);
uint slots = uint(p_shape[1]);
uint start = row * slots;
threadgroup float scratch[32];

float path = 1;    // w_i after i drafts
float weight = 1;  // w_row
for (uint i = 0; i < depth; i++) {
  if (i == row) weight = path;
  uint at = i * slots + uint(drafted[i]);
  float draft = q[at];
  float ratio = draft > 0 ? p[at] / draft : 0.0f;
  path = min(path * ratio, 1.0f);
}

float part = 0;
for (uint i = thread_index; i < slots; i += threads) part += max(weight * p[start + i] - q[start + i], 0.0f);
float surplus = group_sum(part, scratch, lane, simdgroup, simdgroups);

for (uint i = thread_index; i < slots; i += threads) {
  float target = p[start + i];
  replacement[start + i] = surplus > 0 ? max(weight * target - q[start + i], 0.0f) : target;
}

if (thread_index == 0) {
  float rest = surplus + (1 - weight);  // in this order: a small surplus survives where w = 1
  float inner = rest > 0 ? surplus / rest : 1.0f;
  uint decided = row == 0 ? depth - 1 : row - 1;
  succeeded[decided] = coins[decided] < (row == 0 ? path : inner);
}
