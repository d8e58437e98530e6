// One threadgroup a drafted position, on shared slots. Template LAW: a value of enum Law.
// p, q [D, U] float; drafted [D] int slots; coins [D] float; strength, cap float.
// keep, deferred [D] bool; replacement [D, U] float; divergence, target_mass, draft_mass [D] float.
uint position = threadgroup_position_in_grid.x;
uint thread_index = thread_position_in_threadgroup.x;
uint threads = threads_per_threadgroup.x;
uint lane = thread_index_in_simdgroup;
uint simdgroup = simdgroup_index_in_threadgroup;
uint simdgroups = threads / 32;
uint slots = uint(p_shape[1]);
uint start = position * slots;
threadgroup float scratch[32];

float peak_p = -INFINITY;
float peak_q = -INFINITY;
float apart = 0;
float nats = 0;
for (uint i = thread_index; i < slots; i += threads) {
  float target = p[start + i];
  float draft = q[start + i];
  peak_p = max(peak_p, target);
  peak_q = max(peak_q, draft);
  apart += max(target - draft, 0.0f);
  if (target > 0) nats -= target * log(target);
}
peak_p = group_max(peak_p, scratch, lane, simdgroup, simdgroups);
peak_q = group_max(peak_q, scratch, lane, simdgroup, simdgroups);
apart = group_sum(apart, scratch, lane, simdgroup, simdgroups);
nats = group_sum(nats, scratch, lane, simdgroup, simdgroups);

float level = peak_p - strength;  // tokenv1, tokenv2: strength is alpha
if (LAW == TOKEN_V3) level = strength * peak_p;  // 1 - alpha
if (LAW == TYPICAL || LAW == TYPICAL_PI) level = min(strength * exp(-nats), cap);  // the threshold, and eps

float eta = 0;  // draft mass on deferred tokens
for (uint i = thread_index; i < slots; i += threads)
  if (!in_keep_set(LAW, p[start + i], q[start + i], level)) eta += q[start + i];
eta = group_sum(eta, scratch, lane, simdgroup, simdgroups);

// Where rounding leaves no positive weight the token comes from p.
float heaviest = 0;
for (uint i = thread_index; i < slots; i += threads)
  heaviest = max(heaviest, replacement_weight(LAW, p[start + i], q[start + i], level, eta));
heaviest = group_max(heaviest, scratch, lane, simdgroup, simdgroups);
for (uint i = thread_index; i < slots; i += threads) {
  float target = p[start + i];
  float weight = replacement_weight(LAW, target, q[start + i], level, eta);
  replacement[start + i] = heaviest > 0 ? weight : target;
}

if (thread_index == 0) {
  uint at = start + uint(drafted[position]);
  float target = p[at];
  float draft = q[at];
  bool kept = in_keep_set(LAW, target, draft, level);
  bool decided_by_target = !kept;
  float pi = eta * target;
  if (LAW == EXACT || LAW == OPT) {
    pi = target;
    decided_by_target = LAW == EXACT || peak_q < peak_p - strength * apart;
  }
  float chance = draft > 0 ? min(pi / draft, 1.0f) : 0.0f;
  bool coin = LAW != TYPICAL && coins[position] < chance;
  keep[position] = !decided_by_target || coin;
  deferred[position] = decided_by_target;
  divergence[position] = apart;
  target_mass[position] = target;
  draft_mass[position] = draft;
}
