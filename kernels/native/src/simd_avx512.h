// Sixteen lanes in one AVX-512 register. With MTRUN_VNNI byte products take one instruction instead of three.
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace MTRUN_ISA {

struct F { __m512 v; };
struct I { __m512i v; };
struct B { __m512i v; };
struct W { __m512i v; };

inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline F set1(float x) { return {_mm512_set1_ps(x)}; }
inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F abs(F a) { return {_mm512_abs_ps(a.v)}; }
inline F round(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F select_less(F x, F limit, F a, F b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), b.v, a.v)};
}
inline F scale2(F a, F n) {
  const __m512i power = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
  return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(power))};
}
inline F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline F load_bfloat(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline I zero() { return {_mm512_setzero_si512()}; }
inline I add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline F raise(F a, int32_t by) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), _mm512_set1_epi32(by)))};
}
inline void store_rounded(int32_t* p, F a) { _mm512_storeu_si512(p, _mm512_cvtps_epi32(a.v)); }
inline B load_bytes(const uint8_t* p) {
  __m512i v = _mm512_loadu_si512(p);
  __asm__("" : "+v"(v));  // read once: compilers put the load into each of its uses
  return {v};
}
inline B low_nibbles(B a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline B high_nibbles(B a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }
inline __m512i broadcast4(const int8_t* x) {
  int32_t word;
  memcpy(&word, x, 4);
  return _mm512_set1_epi32(word);
}
template <int N> inline W nibble_words(B a) {
  if constexpr (N == 0) return {_mm512_and_si512(a.v, _mm512_set1_epi16(15))};
  if constexpr (N == 3) return {_mm512_srli_epi16(a.v, 12)};
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4 * N), _mm512_set1_epi16(15))};
}
template <int N> inline W byte_words(B a) {
  if constexpr (N == 0) return {_mm512_and_si512(a.v, _mm512_set1_epi16(255))};
  return {_mm512_srli_epi16(a.v, 8)};
}
inline __m512i broadcast_pair(const int16_t* x) { return broadcast4((const int8_t*)x); }
#ifdef MTRUN_VNNI
// The broadcast as a part of the instruction: compilers make two of the intrinsics, and run out of registers.
inline I dot_words(I acc, W w, const int16_t* x) {
  __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc.v) : "v"(w.v), "m"(*(const int32_t(*)[1])x));
  return acc;
}
inline I dot_bytes(I acc, B w, const int8_t* x) {
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc.v) : "v"(w.v), "m"(*(const int32_t(*)[1])x));
  return acc;
}
inline I dot_nibbles(I acc, B w, const int8_t* x) { return dot_bytes(acc, w, x); }
#else
inline I dot_words(I acc, W w, const int16_t* x) {
  return {_mm512_add_epi32(acc.v, _mm512_madd_epi16(w.v, broadcast_pair(x)))};
}
inline __m512i nibble_sums(B w, __m512i x) {  // 15 * 127 * 2 fits 16 bits
  return _mm512_madd_epi16(_mm512_maddubs_epi16(w.v, x), _mm512_set1_epi16(1));
}
inline I dot_nibbles(I acc, B w, const int8_t* x) { return {_mm512_add_epi32(acc.v, nibble_sums(w, broadcast4(x)))}; }
inline I dot_bytes(I acc, B w, const int8_t* x) {  // 255 * 127 * 2 does not: in two halves
  const __m512i b = broadcast4(x), high = _mm512_slli_epi32(nibble_sums(high_nibbles(w), b), 4);
  return {_mm512_add_epi32(acc.v, _mm512_add_epi32(high, nibble_sums(low_nibbles(w), b)))};
}
#endif

inline float reduce_add(F a) {  // the tree of simd_generic.h
  const __m256 high = _mm512_extractf32x8_ps(a.v, 1), eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float reduce_max(F a) { return _mm512_reduce_max_ps(a.v); }
inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
inline void prefetch_far(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }

}  // namespace MTRUN_ISA
