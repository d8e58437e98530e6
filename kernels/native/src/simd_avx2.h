// Sixteen lanes in two AVX2 registers (with FMA and F16C).
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace MTRUN_ISA {

struct F { __m256 a, b; };
struct I { __m256i a, b; };
struct B { __m256i a, b; };
struct W { __m256i a, b; };

inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F round(F x) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, nearest), _mm256_round_ps(x.b, nearest)};
}
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F select_less(F x, F limit, F y, F z) {
  return {_mm256_blendv_ps(z.a, y.a, _mm256_cmp_ps(x.a, limit.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(z.b, y.b, _mm256_cmp_ps(x.b, limit.b, _CMP_LT_OQ))};
}
inline __m256 power2(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F scale2(F x, F n) { return {_mm256_mul_ps(x.a, power2(n.a)), _mm256_mul_ps(x.b, power2(n.b))}; }
inline __m256 half8(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline F load_half(const uint16_t* p) { return {half8(p), half8(p + 8)}; }
inline __m256 bfloat8(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline F load_bfloat(const uint16_t* p) { return {bfloat8(p), bfloat8(p + 8)}; }
inline I zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I add(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline __m256 raise8(__m256 x, __m256i by) { return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), by)); }
inline F raise(F x, int32_t by) { return {raise8(x.a, _mm256_set1_epi32(by)), raise8(x.b, _mm256_set1_epi32(by))}; }
inline void store_rounded(int32_t* p, F x) {
  _mm256_storeu_si256((__m256i*)p, _mm256_cvtps_epi32(x.a));
  _mm256_storeu_si256((__m256i*)(p + 8), _mm256_cvtps_epi32(x.b));
}
inline B load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
inline B low_nibbles(B x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline B high_nibbles(B x) { return low_nibbles({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
inline __m256i nibble_sums(__m256i w, __m256i x) {  // 15 * 127 * 2 fits 16 bits
  return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
}
inline __m256i broadcast4(const int8_t* x) {
  int32_t word;
  memcpy(&word, x, 4);
  return _mm256_set1_epi32(word);
}
template <int N> inline W nibble_words(B x) {
  const __m256i mask = _mm256_set1_epi16(15);
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4 * N), mask), _mm256_and_si256(_mm256_srli_epi16(x.b, 4 * N), mask)};
}
template <int N> inline W byte_words(B x) {
  const __m256i mask = _mm256_set1_epi16(255);
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, 8 * N), mask), _mm256_and_si256(_mm256_srli_epi16(x.b, 8 * N), mask)};
}
inline I dot_words(I acc, W w, const int16_t* x) {
  const __m256i pair = broadcast4((const int8_t*)x);
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(w.a, pair)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(w.b, pair))};
}
inline I dot_nibbles(I acc, B w, const int8_t* x) {
  const __m256i b = broadcast4(x);
  return {_mm256_add_epi32(acc.a, nibble_sums(w.a, b)), _mm256_add_epi32(acc.b, nibble_sums(w.b, b))};
}
inline I dot_bytes(I acc, B w, const int8_t* x) {  // 255 * 127 * 2 does not: in two halves
  const __m256i b = broadcast4(x);
  const B low = low_nibbles(w), high = high_nibbles(w);
  acc.a = _mm256_add_epi32(acc.a, _mm256_slli_epi32(nibble_sums(high.a, b), 4));
  acc.b = _mm256_add_epi32(acc.b, _mm256_slli_epi32(nibble_sums(high.b, b), 4));
  return {_mm256_add_epi32(acc.a, nibble_sums(low.a, b)), _mm256_add_epi32(acc.b, nibble_sums(low.b, b))};
}

inline float reduce_add(F x) {  // the tree of simd_generic.h
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float reduce_max(F x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
inline void prefetch_far(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }

}  // namespace MTRUN_ISA
