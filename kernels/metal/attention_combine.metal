// One threadgroup a (query head, row), one thread a dimension: the parts of attention_split become one softmax.
// Templates: T, DIM. out [R, parts, DIM], best and sum [R, parts] float. mixed [R, DIM] of T.
uint row = threadgroup_position_in_grid.y;
uint d = thread_position_in_threadgroup.x;
uint parts = uint(out_shape[1]);
float most = -INFINITY;
for (uint i = 0; i < parts; i++) most = max(most, best[row * parts + i]);
float whole = 0;
float total = 0;
for (uint i = 0; i < parts; i++) {
  float here = best[row * parts + i];
  float weight = here > -INFINITY ? exp(here - most) : 0.0f;
  whole += weight * sum[row * parts + i];
  total += weight * out[(row * parts + i) * DIM + d];
}
mixed[row * DIM + d] = T(total / whole);
