// One simdgroup a head of one token, query heads before key heads: optional RMSNorm over the head, then rotary
// positions, written where attention reads them.
// Templates: T, DIM, ROTATED (even, at most DIM), NORM, TRADITIONAL. queries [M, H, DIM], keys [M, G, DIM] of T;
// query_weight, key_weight [DIM] of T (unread without NORM); periods [ROTATED / 2] float; offset int; scale, eps float.
// rotated_queries [H, M, DIM], rotated_keys [G, M, DIM] of T.
uint lane = thread_index_in_simdgroup;
uint head = thread_position_in_grid.y;
uint token = thread_position_in_grid.z;
uint tokens = uint(queries_shape[0]);
uint query_heads = uint(queries_shape[1]);
uint key_heads = uint(keys_shape[1]);
bool query = head < query_heads;
uint own = query ? head : head - query_heads;
const device T* from = query ? queries + (token * query_heads + own) * DIM : keys + (token * key_heads + own) * DIM;
device T* to = query ? rotated_queries + (own * tokens + token) * DIM : rotated_keys + (own * tokens + token) * DIM;

float inverse = 1;
if (NORM) {
  float part = 0;
  for (uint i = lane; i < uint(DIM); i += 32) part += float(from[i]) * float(from[i]);
  inverse = rsqrt(simd_sum(part) / float(DIM) + eps);
}

float position = scale * float(offset + int(token));
for (uint i = lane; i < uint(ROTATED / 2); i += 32) {
  uint a = TRADITIONAL ? 2 * i : i;
  uint b = TRADITIONAL ? 2 * i + 1 : i + uint(ROTATED / 2);
  float x = float(from[a]) * inverse;
  float y = float(from[b]) * inverse;
  if (NORM) {
    x *= query ? float(query_weight[a]) : float(key_weight[a]);
    y *= query ? float(query_weight[b]) : float(key_weight[b]);
  }
  float angle = position * (1.0f / periods[i]);
  float c = cos(angle);
  float s = sin(angle);
  to[a] = T(x * c - y * s);
  to[b] = T(x * s + y * c);
}
for (uint i = uint(ROTATED) + lane; i < uint(DIM); i += 32) {
  float x = float(from[i]) * inverse;
  if (NORM) x *= query ? float(query_weight[i]) : float(key_weight[i]);
  to[i] = T(x);
}
