#include <metal_stdlib>
using namespace metal;

// One value of every thread to one value that every thread gets. scratch holds 32 floats and may be used again at
// once. Every thread of the group must call, and groups are whole simdgroups.
inline float group_sum(float value, threadgroup float* scratch, uint lane, uint simdgroup, uint simdgroups) {
  float part = simd_sum(value);
  if (lane == 0) scratch[simdgroup] = part;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = simd_sum(lane < simdgroups ? float(scratch[lane]) : 0.0f);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return total;
}

inline float group_max(float value, threadgroup float* scratch, uint lane, uint simdgroup, uint simdgroups) {
  float part = simd_max(value);
  if (lane == 0) scratch[simdgroup] = part;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float most = simd_max(lane < simdgroups ? float(scratch[lane]) : -INFINITY);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return most;
}
