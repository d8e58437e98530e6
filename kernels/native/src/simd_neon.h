// Sixteen lanes in four NEON registers (aarch64; with the dot product extension byte sums take one instruction).
#pragma once
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

namespace MTRUN_ISA {

struct F { float32x4_t v[4]; };
struct I { int32x4_t v[4]; };
struct B { uint8x16_t v[4]; };
struct W { int16x8_t v[4]; };

#define MTRUN_EACH for (int i = 0; i < 4; i++)
inline F load(const float* p) { F r; MTRUN_EACH r.v[i] = vld1q_f32(p + 4 * i); return r; }
inline void store(float* p, F a) { MTRUN_EACH vst1q_f32(p + 4 * i, a.v[i]); }
inline F set1(float x) { F r; MTRUN_EACH r.v[i] = vdupq_n_f32(x); return r; }
inline F add(F a, F b) { MTRUN_EACH a.v[i] = vaddq_f32(a.v[i], b.v[i]); return a; }
inline F sub(F a, F b) { MTRUN_EACH a.v[i] = vsubq_f32(a.v[i], b.v[i]); return a; }
inline F mul(F a, F b) { MTRUN_EACH a.v[i] = vmulq_f32(a.v[i], b.v[i]); return a; }
inline F div(F a, F b) { MTRUN_EACH a.v[i] = vdivq_f32(a.v[i], b.v[i]); return a; }
inline F max(F a, F b) { MTRUN_EACH a.v[i] = vmaxq_f32(a.v[i], b.v[i]); return a; }
inline F min(F a, F b) { MTRUN_EACH a.v[i] = vminq_f32(a.v[i], b.v[i]); return a; }
inline F abs(F a) { MTRUN_EACH a.v[i] = vabsq_f32(a.v[i]); return a; }
inline F round(F a) { MTRUN_EACH a.v[i] = vrndnq_f32(a.v[i]); return a; }
inline F fma(F a, F b, F c) { MTRUN_EACH a.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]); return a; }
inline F select_less(F x, F limit, F a, F b) {
  MTRUN_EACH a.v[i] = vbslq_f32(vcltq_f32(x.v[i], limit.v[i]), a.v[i], b.v[i]);
  return a;
}
inline F scale2(F a, F n) {
  MTRUN_EACH {
    const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23);
    a.v[i] = vmulq_f32(a.v[i], vreinterpretq_f32_s32(power));
  }
  return a;
}
inline F load_half(const uint16_t* p) {
  F r;
  MTRUN_EACH r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
inline F load_bfloat(const uint16_t* p) {
  F r;
  MTRUN_EACH r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return r;
}
inline I zero() { I r; MTRUN_EACH r.v[i] = vdupq_n_s32(0); return r; }
inline I add(I a, I b) { MTRUN_EACH a.v[i] = vaddq_s32(a.v[i], b.v[i]); return a; }
inline F to_float(I a) { F r; MTRUN_EACH r.v[i] = vcvtq_f32_s32(a.v[i]); return r; }
inline F raise(F a, int32_t by) {
  MTRUN_EACH a.v[i] = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a.v[i]), vdupq_n_s32(by)));
  return a;
}
inline void store_rounded(int32_t* p, F a) { MTRUN_EACH vst1q_s32(p + 4 * i, vcvtnq_s32_f32(a.v[i])); }
inline B load_bytes(const uint8_t* p) { B r; MTRUN_EACH r.v[i] = vld1q_u8(p + 16 * i); return r; }
inline B low_nibbles(B a) { MTRUN_EACH a.v[i] = vandq_u8(a.v[i], vdupq_n_u8(15)); return a; }
inline B high_nibbles(B a) { MTRUN_EACH a.v[i] = vshrq_n_u8(a.v[i], 4); return a; }
inline int8x16_t broadcast4(const int8_t* x) {
  int32_t word;
  memcpy(&word, x, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(word));
}
template <int N> inline W nibble_words(B a) {
  W r;
  MTRUN_EACH {
    const uint16x8_t pair = vreinterpretq_u16_u8(a.v[i]);
    const uint16x8_t moved = N == 0 ? pair : vshlq_u16(pair, vdupq_n_s16(-4 * N));
    r.v[i] = vreinterpretq_s16_u16(vandq_u16(moved, vdupq_n_u16(15)));
  }
  return r;
}
template <int N> inline W byte_words(B a) {
  W r;
  MTRUN_EACH {
    const uint16x8_t pair = vreinterpretq_u16_u8(a.v[i]);
    r.v[i] = vreinterpretq_s16_u16(N == 0 ? vandq_u16(pair, vdupq_n_u16(255)) : vshrq_n_u16(pair, 8));
  }
  return r;
}
inline I dot_words(I acc, W w, const int16_t* x) {
  const int16x8_t pair = vreinterpretq_s16_s8(broadcast4((const int8_t*)x));
  MTRUN_EACH {
    const int32x4_t low = vmull_s16(vget_low_s16(w.v[i]), vget_low_s16(pair));
    const int32x4_t high = vmull_s16(vget_high_s16(w.v[i]), vget_high_s16(pair));
    acc.v[i] = vaddq_s32(acc.v[i], vpaddq_s32(low, high));
  }
  return acc;
}
inline int32x4_t dot(int32x4_t acc, int8x16_t w, int8x16_t x) {
#ifdef __ARM_FEATURE_DOTPROD
  return vdotq_s32(acc, w, x);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_s8(vget_high_s8(w), vget_high_s8(x));
  return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}
inline I dot_nibbles(I acc, B w, const int8_t* x) {
  const int8x16_t b = broadcast4(x);
  MTRUN_EACH acc.v[i] = dot(acc.v[i], vreinterpretq_s8_u8(w.v[i]), b);
  return acc;
}
inline I dot_bytes(I acc, B w, const int8_t* x) {  // a signed product has no unsigned byte: in two halves
  const I high = dot_nibbles(zero(), high_nibbles(w), x);
  MTRUN_EACH acc.v[i] = vaddq_s32(acc.v[i], vshlq_n_s32(high.v[i], 4));
  return dot_nibbles(acc, low_nibbles(w), x);
}
#undef MTRUN_EACH

inline float reduce_add(F a) {  // the tree of simd_generic.h
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float reduce_max(F a) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3]))); }
inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace MTRUN_ISA
