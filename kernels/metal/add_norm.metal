// One threadgroup a row: a branch joins the residual stream, and the sum is normalised by its root mean square.
// Template T. stream, branch [R, N] of T; weight [N] of T; eps float. joined, normed [R, N] of T.
uint row = threadgroup_position_in_grid.x;
uint thread_index = thread_position_in_threadgroup.x;
uint threads = threads_per_threadgroup.x;
uint lane = thread_index_in_simdgroup;
uint simdgroup = simdgroup_index_in_threadgroup;
uint simdgroups = threads / 32;
uint width = uint(stream_shape[1]);
uint start = row * width;
threadgroup float scratch[32];

float part = 0;
for (uint i = thread_index; i < width; i += threads) {
  T both = T(float(stream[start + i]) + float(branch[start + i]));  // rounded to T: what the next layer reads
  joined[start + i] = both;
  part += float(both) * float(both);
}
float squares = group_sum(part, scratch, lane, simdgroup, simdgroups);
float inverse = rsqrt(squares / float(width) + eps);
for (uint i = thread_index; i < width; i += threads) {  // each thread reads what it wrote itself
  float both = float(T(joined[start + i]));
  normed[start + i] = T(both * inverse * float(weight[i]));
}
