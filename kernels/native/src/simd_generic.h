// Sixteen lanes in plain C++: the reference for every other set, and what runs where no better one does.
#pragma once
#include <stdint.h>
#include <string.h>

namespace MTRUN_ISA {

struct F { float v[16]; };      // 16 floats
struct I { int32_t v[16]; };    // 16 int32
struct B { uint8_t v[64]; };    // 16 lanes of 4 unsigned bytes
struct W { int16_t v[32]; };    // 16 lanes of 2 words

#define MTRUN_EACH for (int i = 0; i < 16; i++)
inline F load(const float* p) { F r; memcpy(r.v, p, 64); return r; }
inline void store(float* p, F a) { memcpy(p, a.v, 64); }
inline F set1(float x) { F r; MTRUN_EACH r.v[i] = x; return r; }
inline F add(F a, F b) { MTRUN_EACH a.v[i] += b.v[i]; return a; }
inline F sub(F a, F b) { MTRUN_EACH a.v[i] -= b.v[i]; return a; }
inline F mul(F a, F b) { MTRUN_EACH a.v[i] *= b.v[i]; return a; }
inline F div(F a, F b) { MTRUN_EACH a.v[i] /= b.v[i]; return a; }
inline F max(F a, F b) { MTRUN_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
inline F min(F a, F b) { MTRUN_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
inline F abs(F a) { MTRUN_EACH a.v[i] = __builtin_fabsf(a.v[i]); return a; }
inline F round(F a) { MTRUN_EACH a.v[i] = __builtin_rintf(a.v[i]); return a; }
inline F fma(F a, F b, F c) { MTRUN_EACH a.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]); return a; }
// x < limit ? a : b
inline F select_less(F x, F limit, F a, F b) { MTRUN_EACH a.v[i] = x.v[i] < limit.v[i] ? a.v[i] : b.v[i]; return a; }
// a * 2^n for whole n in [-126, 127]
inline F scale2(F a, F n) {
  MTRUN_EACH {
    const int32_t bits = ((int32_t)n.v[i] + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    a.v[i] *= power;
  }
  return a;
}
inline float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  uint32_t bits;
  float f;
  if (exponent == 0) {
    f = (float)mantissa * 5.9604644775390625e-8f;
    return sign ? -f : f;
  }
  bits = exponent == 31 ? sign | 0x7f800000u | (mantissa << 13) : sign | ((exponent + 112) << 23) | (mantissa << 13);
  memcpy(&f, &bits, 4);
  return f;
}
inline F load_half(const uint16_t* p) { F r; MTRUN_EACH r.v[i] = half_to_float(p[i]); return r; }
inline F load_bfloat(const uint16_t* p) {
  F r;
  MTRUN_EACH {
    const uint32_t bits = (uint32_t)p[i] << 16;
    memcpy(&r.v[i], &bits, 4);
  }
  return r;
}
inline I zero() { I r; memset(r.v, 0, 64); return r; }
inline I add(I a, I b) { MTRUN_EACH a.v[i] += b.v[i]; return a; }
inline F to_float(I a) { F r; MTRUN_EACH r.v[i] = (float)a.v[i]; return r; }
// Adds `by` to the bits of each float: a multiple of 2^23 multiplies it by a power of two. 0 becomes next to nothing.
inline F raise(F a, int32_t by) {
  MTRUN_EACH {
    int32_t bits;
    memcpy(&bits, &a.v[i], 4);
    bits += by;
    memcpy(&a.v[i], &bits, 4);
  }
  return a;
}
inline void store_rounded(int32_t* p, F a) { MTRUN_EACH p[i] = (int32_t)__builtin_rintf(a.v[i]); }
inline B load_bytes(const uint8_t* p) { B r; memcpy(r.v, p, 64); return r; }
inline B low_nibbles(B a) { for (int i = 0; i < 64; i++) a.v[i] &= 15; return a; }
inline B high_nibbles(B a) { for (int i = 0; i < 64; i++) a.v[i] >>= 4; return a; }
// One of the four nibbles of each pair of bytes as words: bits 4 n .. 4 n + 3 of its 16. One of the two bytes, likewise.
template <int N> inline W nibble_words(B a) {
  W r;
  for (int i = 0; i < 32; i++) r.v[i] = (int16_t)((a.v[2 * i] | a.v[2 * i + 1] << 8) >> (4 * N) & 15);
  return r;
}
template <int N> inline W byte_words(B a) {
  W r;
  for (int i = 0; i < 32; i++) r.v[i] = a.v[2 * i + N];
  return r;
}
// acc + the two products of each lane with the words of x
inline I dot_words(I acc, W w, const int16_t* x) {
  MTRUN_EACH acc.v[i] += (int32_t)w.v[2 * i] * x[0] + (int32_t)w.v[2 * i + 1] * x[1];
  return acc;
}
// acc + sum of 4 products a lane: unsigned weights (below 16 in `dot_nibbles`) by the 4 signed bytes of x, in each lane
inline I dot_bytes(I acc, B w, const int8_t* x) {
  MTRUN_EACH for (int b = 0; b < 4; b++) acc.v[i] += (int32_t)w.v[4 * i + b] * x[b];
  return acc;
}
inline I dot_nibbles(I acc, B w, const int8_t* x) { return dot_bytes(acc, w, x); }
#undef MTRUN_EACH

inline float reduce_add(F a) {
  for (int half = 8; half; half /= 2) for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
  return a.v[0];
}
inline float reduce_max(F a) {
  float m = a.v[0];
  for (int i = 1; i < 16; i++) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace MTRUN_ISA
