// All kernels over the sixteen-lane types of one simd_*.h. Included once by each isa_*.cpp with MTRUN_ISA set.
// No C++ library here: an inline function compiled for a wide set must not be linked into code that runs elsewhere.
#include "kernels.h"

namespace mtrun { namespace MTRUN_ISA {
using namespace ::MTRUN_ISA;

// exp(x) for x <= 88: 2^n times a polynomial in the remainder (Cephes' coefficients), 0 below -87.3.
static inline F exponential(F x) {
  const F low = set1(-87.3f), clamped = max(min(x, set1(88.0f)), low);
  const F n = round(mul(clamped, set1(1.44269504088896341f)));
  const F r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), clamped));
  F p = fma(set1(1.9875691500e-4f), r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return select_less(x, low, set1(0.0f), scale2(p, n));
}

// Bytes of prefetch. The nearest cache has room for few requests at a time: what is far ahead goes into the second one.
constexpr int FAR = 16384, NEAR = 2048;

static inline F scales(const uint8_t* p, bool half) { return half ? load_half((const uint16_t*)p) : load((const float*)p); }

// 1 in each lane that is NaN or infinite.
static inline F not_finite(F x) { return select_less(abs(x), set1(__builtin_inff()), set1(0.0f), set1(1.0f)); }

// ---- quantised weights --------------------------------------------------------------------------------------------------

constexpr int R = TILE / LANES;  // vectors of outputs in a tile

constexpr int line_bytes(int bits) { return bits == 4 ? 256 : 512; }  // of one vector's integers in a block

// Sums of a few rows would wait for each of their own additions: those of neighbouring lines are kept apart. Integers, so
// that the order changes no bit.
constexpr int chains(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

// Adds the products of one block with 32 inputs of M rows of words.
template <int BITS, int M>
static inline void dot_block(I (*sums)[R][M], const uint8_t* w, const int16_t* x, int width) {
  for (int j = 0; j < (BITS == 4 ? 4 : 8); j++) {
    I(*sum)[M] = sums[j % chains(M)];
    for (int r = 0; r < R; r++) {
      const B bytes = load_bytes(w + r * line_bytes(BITS) + 64 * j);
      // One part of the line meets all rows before the next: neighbouring products do not wait for each other.
      const int16_t* at = x + 4 * j;
      if constexpr (BITS == 4) {
        const W a = nibble_words<0>(bytes), b = nibble_words<2>(bytes), c = nibble_words<1>(bytes), d = nibble_words<3>(bytes);
        for (int m = 0; m < M; m++) sum[r][m] = dot_words(sum[r][m], a, at + (long)m * width);
        for (int m = 0; m < M; m++) sum[r][m] = dot_words(sum[r][m], b, at + (long)m * width + 2);
        for (int m = 0; m < M; m++) sum[r][m] = dot_words(sum[r][m], c, at + (long)m * width + 16);
        for (int m = 0; m < M; m++) sum[r][m] = dot_words(sum[r][m], d, at + (long)m * width + 18);
      } else {
        const W a = byte_words<0>(bytes), b = byte_words<1>(bytes);
        for (int m = 0; m < M; m++) sum[r][m] = dot_words(sum[r][m], a, at + (long)m * width);
        for (int m = 0; m < M; m++) sum[r][m] = dot_words(sum[r][m], b, at + (long)m * width + 2);
      }
    }
  }
}

// The same with rows of bytes.
template <int BITS, int M>
static inline void dot_block(I (*sums)[R][M], const uint8_t* w, const int8_t* x, int width) {
  for (int j = 0; j < (BITS == 4 ? 4 : 8); j++) {
    I(*sum)[M] = sums[j % chains(M)];
    for (int r = 0; r < R; r++) {
      const B bytes = load_bytes(w + r * line_bytes(BITS) + 64 * j);
      if constexpr (BITS == 4) {
        const B low = low_nibbles(bytes), high = high_nibbles(bytes);
        for (int m = 0; m < M; m++) {
          const int8_t* at = x + (long)m * width + 4 * j;
          sum[r][m] = dot_nibbles(dot_nibbles(sum[r][m], low, at), high, at + 16);
        }
      } else {
        for (int m = 0; m < M; m++) sum[r][m] = dot_bytes(sum[r][m], bytes, x + (long)m * width + 4 * j);
      }
    }
  }
}

constexpr int block_bytes(int bits, bool half, bool centred) {
  return R * line_bytes(bits) + TILE * (half ? 2 : 4) * (centred ? 1 : 2);
}

// One tile times M rows.
template <int BITS, bool HALF, bool CENTRED, class X, int M>
static void quantised_tile(const uint8_t* w, const Rounded& x, const X* values, int row, float* y, long stride) {
  constexpr bool WORDS = sizeof(X) == 2;
  constexpr int BLOCK = block_bytes(BITS, HALF, CENTRED), SCALES = R * line_bytes(BITS), VECTOR = LANES * (HALF ? 2 : 4);
  const int groups = x.width / GROUP;
  F out[R][M];
  for (int r = 0; r < R; r++) for (int m = 0; m < M; m++) out[r][m] = set1(0.0f);
  for (int g = 0; g < groups; g++, w += BLOCK) {
    for (int line = 0; line < BLOCK; line += 64) {
      prefetch_far(w + FAR + line);
      prefetch(w + NEAR + line);
    }
    I sums[chains(M)][R][M];
    for (int c = 0; c < chains(M); c++) for (int r = 0; r < R; r++) for (int m = 0; m < M; m++) sums[c][r][m] = zero();
    dot_block<BITS, M>(sums, w, values + (long)row * x.width + g * GROUP, x.width);
    for (int r = 0; r < R; r++) {
      const F scale = scales(w + SCALES + r * VECTOR, HALF);
      const F bias = CENTRED ? scale : scales(w + SCALES + (R + r) * VECTOR, HALF);
      for (int m = 0; m < M; m++) {
        const long at = (long)(row + m) * groups + g;
        I sum = sums[0][r][m];
        for (int c = 1; c < chains(M); c++) sum = add(sum, sums[c][r][m]);
        const F whole = set1(CENTRED ? -128.0f * x.sum[at] : x.sum[at]);
        if constexpr (WORDS) out[r][m] = fma(scale, raise(to_float(sum), x.raise[at]), out[r][m]);
        else out[r][m] = fma(mul(scale, set1(x.scale[at])), to_float(sum), out[r][m]);
        out[r][m] = fma(bias, whole, out[r][m]);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int m = 0; m < M; m++)
      store(y + (long)(row + m) * stride + r * LANES, WORDS ? mul(out[r][m], set1(x.unit[row + m])) : out[r][m]);
}

template <int BITS, bool HALF, bool CENTRED, class X>
static void quantised_range(const uint8_t* tiles, int first, int last, const Rounded& x, const X* values, int rows,
                            float* y, long stride) {
  const long bytes = (long)block_bytes(BITS, HALF, CENTRED) * (x.width / GROUP);
  for (int n = first; n < last; n++) {
    const uint8_t* w = tiles + n * bytes;
    float* out = y + (long)n * TILE;
    int row = 0;
    for (; row + STRIP <= rows; row += STRIP)
      quantised_tile<BITS, HALF, CENTRED, X, STRIP>(w, x, values, row, out, stride);
    switch (rows - row) {
      case 1: quantised_tile<BITS, HALF, CENTRED, X, 1>(w, x, values, row, out, stride); break;
      case 2: quantised_tile<BITS, HALF, CENTRED, X, 2>(w, x, values, row, out, stride); break;
      case 3: quantised_tile<BITS, HALF, CENTRED, X, 3>(w, x, values, row, out, stride); break;
      default: break;
    }
  }
}

static void quantised(Format format, const uint8_t* tiles, int first, int last, const Rounded& x, int rows, float* y,
                      long stride) {
#define MTRUN_CASE(NAME, BITS, HALF, CENTRED)                                                                     \
  case NAME:                                                                                                      \
    if (x.words) return quantised_range<BITS, HALF, CENTRED>(tiles, first, last, x, x.words, rows, y, stride);    \
    return quantised_range<BITS, HALF, CENTRED>(tiles, first, last, x, x.bytes, rows, y, stride)
  switch (format) {
    MTRUN_CASE(Q4_HALF, 4, true, false);
    MTRUN_CASE(Q4_FLOAT, 4, false, false);
    MTRUN_CASE(Q8_HALF, 8, true, false);
    MTRUN_CASE(Q8_FLOAT, 8, false, false);
    MTRUN_CASE(Q8_HALF_CENTRED, 8, true, true);
    default: return;
  }
#undef MTRUN_CASE
}

// The largest absolute value of a group; NaN when one of its values is NaN or infinite, which comparisons hide.
static inline float group_peak(const float* x) {
  const F a = load(x), b = load(x + LANES);
  return reduce_add(add(not_finite(a), not_finite(b))) == 0 ? reduce_max(max(abs(a), abs(b))) : __builtin_nanf("");
}

// A group of next to nothing is 0: the inverse of its peak would overflow. So is one with NaN.
static inline bool something(float peak) { return peak > 1e-30f; }

static inline float power(int exponent) {  // 2^exponent, -126 to 127
  const int32_t bits = (exponent + 127) << 23;
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}

// The least e with peak <= 32767 * 2^e.
static inline int word_exponent(float peak) {
  int32_t bits;
  __builtin_memcpy(&bits, &peak, 4);
  const int e = (bits >> 23) - 127 - 14;
  return peak > 32767.0f * power(e) ? e + 1 : e;
}

static int32_t group_integers(const float* x, float inverse, int32_t* t) {
  store_rounded(t, mul(load(x), set1(inverse)));
  store_rounded(t + LANES, mul(load(x + LANES), set1(inverse)));
  int32_t sum = 0;
  for (int i = 0; i < GROUP; i++) sum += t[i];
  return sum;
}

static void round_bytes(const float* x, const Rounded& out, int index) {
  const int groups = out.width / GROUP;
  int8_t* to = out.bytes + (long)index * out.width;
  for (int g = 0; g < groups; g++, x += GROUP, to += GROUP) {
    const float peak = group_peak(x);
    const bool some = something(peak);
    int32_t t[GROUP] = {};
    const int32_t sum = some ? group_integers(x, 127.0f / peak, t) : 0;
    for (int i = 0; i < GROUP; i++) to[i] = (int8_t)t[i];
    const float scale = some ? peak / 127.0f : peak != peak ? peak : 0.0f;
    out.scale[(long)index * groups + g] = scale;
    out.sum[(long)index * groups + g] = scale * (float)sum;
  }
}

// The smallest exponent of the row's groups is its unit. Groups that far below the largest become 0 take that of the
// smallest one that can be raised to it.
static void round_words(const float* x, const Rounded& out, int index) {
  const int groups = out.width / GROUP;
  int16_t* to = out.words + (long)index * out.width;
  int32_t* raises = out.raise + (long)index * groups;
  float* sums = out.sum + (long)index * groups;
  int lowest = 1000, highest = -1000;
  for (int g = 0; g < groups; g++) {
    sums[g] = group_peak(x + g * GROUP);
    if (!something(sums[g])) continue;
    raises[g] = word_exponent(sums[g]);
    lowest = raises[g] < lowest ? raises[g] : lowest;
    highest = raises[g] > highest ? raises[g] : highest;
  }
  if (lowest < highest - MOST_RAISE) lowest = highest - MOST_RAISE;
  out.unit[index] = highest >= lowest ? power(lowest) : 0.0f;
  for (int g = 0; g < groups; g++, x += GROUP, to += GROUP) {
    const float peak = sums[g];
    int32_t t[GROUP] = {}, sum = 0;
    int raised = 0;
    if (something(peak)) {
      raised = raises[g] > lowest ? raises[g] - lowest : 0;
      sum = group_integers(x, power(-lowest - raised), t);
    }
    for (int i = 0; i < GROUP; i += 4) {
      to[i] = (int16_t)t[i];
      to[i + 1] = (int16_t)t[i + 2];
      to[i + 2] = (int16_t)t[i + 1];
      to[i + 3] = (int16_t)t[i + 3];
    }
    raises[g] = raised << 23;
    sums[g] = peak == peak ? power(raised) * (float)sum : peak;
  }
}

static void round_row(const float* x, const Rounded& out, int index) {
  if (out.words) round_words(x, out, index);
  else round_bytes(x, out, index);
}

// ---- dense weights ------------------------------------------------------------------------------------------------------

template <Format FORMAT>
static inline F dense_line(const uint8_t* w, long input, int vector) {
  const long at = input * TILE + vector * LANES;
  if constexpr (FORMAT == DENSE_FLOAT) return load((const float*)w + at);
  if constexpr (FORMAT == DENSE_BFLOAT) return load_bfloat((const uint16_t*)w + at);
  return load_half((const uint16_t*)w + at);
}

// T neighbouring tiles at once: one tile alone would wait for each of its own additions.
template <Format FORMAT, int T, int M>
static void dense_block(const uint8_t* w, long bytes, const float* x, long x_stride, int inputs, float* y, long stride) {
  F out[T * R][M];
  for (int r = 0; r < T * R; r++) for (int m = 0; m < M; m++) out[r][m] = set1(0.0f);
  for (int k = 0; k < inputs; k++)
    for (int r = 0; r < T * R; r++) {
      const F line = dense_line<FORMAT>(w + r / R * bytes, k, r % R);
      for (int m = 0; m < M; m++) out[r][m] = fma(line, set1(x[m * x_stride + k]), out[r][m]);
    }
  for (int r = 0; r < T * R; r++) for (int m = 0; m < M; m++) store(y + m * stride + r * LANES, out[r][m]);
}

template <Format FORMAT, int T>
static void dense_strip(const uint8_t* w, long bytes, const float* x, long x_stride, int inputs, int rows, float* y,
                        long stride) {
  int m = 0;
  for (; m + 4 <= rows; m += 4)
    dense_block<FORMAT, T, 4>(w, bytes, x + m * x_stride, x_stride, inputs, y + m * stride, stride);
  for (; m < rows; m++)
    dense_block<FORMAT, T, 1>(w, bytes, x + m * x_stride, x_stride, inputs, y + m * stride, stride);
}

template <Format FORMAT>
static void dense_tiles(const uint8_t* tiles, int first, int last, const float* x, long x_stride, int inputs, int rows,
                        float* y, long stride) {
  const long bytes = (long)inputs * TILE * (FORMAT == DENSE_FLOAT ? 4 : 2);
  int n = first;
  for (; n + 2 <= last; n += 2)
    dense_strip<FORMAT, 2>(tiles + n * bytes, bytes, x, x_stride, inputs, rows, y + (long)n * TILE, stride);
  if (n < last) dense_strip<FORMAT, 1>(tiles + n * bytes, bytes, x, x_stride, inputs, rows, y + (long)n * TILE, stride);
}

static void dense(Format format, const uint8_t* tiles, int first, int last, const float* x, long x_stride, int inputs,
                  int rows, float* y, long stride) {
  if (format == DENSE_FLOAT) return dense_tiles<DENSE_FLOAT>(tiles, first, last, x, x_stride, inputs, rows, y, stride);
  if (format == DENSE_BFLOAT) return dense_tiles<DENSE_BFLOAT>(tiles, first, last, x, x_stride, inputs, rows, y, stride);
  return dense_tiles<DENSE_HALF>(tiles, first, last, x, x_stride, inputs, rows, y, stride);
}

// ---- the small operations of a layer ------------------------------------------------------------------------------------

static inline int padded(int width) { return (width + LANES - 1) / LANES * LANES; }

static void rms_norm(const float* x, const float* weight, float eps, int width, float* out) {
  F squares = set1(0.0f);
  for (int i = 0; i < padded(width); i += LANES) squares = fma(load(x + i), load(x + i), squares);
  const F scale = set1(1.0f / __builtin_sqrtf(reduce_add(squares) / (float)width + eps));
  for (int i = 0; i < padded(width); i += LANES) store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
}

static void rope(float* head, const float* cosine, const float* sine, int half, bool traditional) {
  for (int j = 0; j < half; j++) {
    float* a = head + (traditional ? 2 * j : j);
    float* b = traditional ? a + 1 : a + half;
    const float x = *a, y = *b;
    *a = __builtin_fmaf(x, cosine[j], -(y * sine[j]));
    *b = __builtin_fmaf(x, sine[j], y * cosine[j]);
  }
}

static void silu_gate(float* gate, const float* up, int width) {
  const F one = set1(1.0f), nil = set1(0.0f);
  for (int i = 0; i < width; i += LANES) {
    const F g = load(gate + i);
    store(gate + i, mul(div(g, add(one, exponential(sub(nil, g)))), load(up + i)));
  }
}

static void add_rows(float* x, const float* y, int width) {
  for (int i = 0; i < width; i += LANES) store(x + i, add(load(x + i), load(y + i)));
}

// ---- attention ----------------------------------------------------------------------------------------------------------

// Scores of R heads at the 16 positions of one key block. Four sums a head, so that none waits for its own additions.
template <int R>
static inline void score_block(const float* const* q, const float* keys, int dim, F scale, float* const* scores) {
  F sum[R][4];
  for (int r = 0; r < R; r++) for (int c = 0; c < 4; c++) sum[r][c] = set1(0.0f);
  for (int d = 0; d < dim; d += 4)
    for (int c = 0; c < 4; c++) {
      const F line = load(keys + (d + c) * LANES);
      for (int r = 0; r < R; r++) sum[r][c] = fma(line, set1(q[r][d + c]), sum[r][c]);
    }
  for (int r = 0; r < R; r++)
    store(scores[r], mul(add(add(sum[r][0], sum[r][1]), add(sum[r][2], sum[r][3])), scale));
}

template <int R>
static void score_heads(const Attention& a, int row, int head, int page, int t) {
  const float* q[R];
  float* scores[R];
  for (int r = 0; r < R; r++) {
    q[r] = a.q + row * a.q_stride + (head + r) * a.dim;
    scores[r] = a.scores + ((long)row * a.rep + head + r) * a.capacity + (long)page * PAGE + t;
  }
  score_block<R>(q, a.keys[page] + (long)t * a.dim, a.dim, set1(a.scale), scores);
}

// Weights exp(score - peak) of the row's own positions, and their sum; the rest of the last block weighs 0.
static float soften(const Attention& a, int row, int head) {
  float* scores = a.scores + ((long)row * a.rep + head) * a.capacity;
  const int count = a.first + row + 1;
  for (int t = count; t % LANES; t++) scores[t] = -__builtin_inff();
  F peak = load(scores);
  for (int t = LANES; t < count; t += LANES) peak = max(peak, load(scores + t));
  const F most = set1(reduce_max(peak));
  F sum = set1(0.0f);
  for (int t = 0; t < count; t += LANES) {
    const F weight = exponential(sub(load(scores + t), most));
    store(scores + t, weight);
    sum = add(sum, weight);
  }
  return reduce_add(sum);
}

// Adds this page's values, C vectors of 16 dimensions of R heads.
template <int R, int C>
static inline void gather_columns(const float* const* weights, const float* values, int dim, int count, float* const* out) {
  F sum[R][C];
  for (int r = 0; r < R; r++) for (int c = 0; c < C; c++) sum[r][c] = load(out[r] + c * LANES);
  for (int t = 0; t < count; t++) {
    F line[C];
    for (int c = 0; c < C; c++) line[c] = load(values + (long)t * dim + c * LANES);
    for (int r = 0; r < R; r++) {
      const F weight = set1(weights[r][t]);
      for (int c = 0; c < C; c++) sum[r][c] = fma(weight, line[c], sum[r][c]);
    }
  }
  for (int r = 0; r < R; r++) for (int c = 0; c < C; c++) store(out[r] + c * LANES, sum[r][c]);
}

template <int R>
static void gather_heads(const Attention& a, int row, int head, int page, int t, int count) {
  const float* weights[R];
  for (int r = 0; r < R; r++)
    weights[r] = a.scores + ((long)row * a.rep + head + r) * a.capacity + (long)page * PAGE + t;
  const float* values = a.values[page] + (long)t * a.dim;
  for (int d = 0; d < a.dim;) {
    float* out[R];
    for (int r = 0; r < R; r++) out[r] = a.out + row * a.out_stride + (head + r) * a.dim + d;
    if (a.dim - d >= 4 * LANES) {
      gather_columns<R, 4>(weights, values + d, a.dim, count, out);
      d += 4 * LANES;
    } else {
      gather_columns<R, 1>(weights, values + d, a.dim, count, out);
      d += LANES;
    }
  }
}

// body(row, page, first position in the page, positions that the row sees of the `step` there), rows innermost: what is
// read of a page stays in the nearest cache for all of them.
template <class Body>
static inline void each_block(const Attention& a, int step, Body body) {
  for (int start = 0; start < a.first + a.rows; start += step)
    for (int m = 0; m < a.rows; m++) {
      const int seen = a.first + m + 1 - start;
      if (seen > 0) body(m, start / PAGE, start % PAGE, seen < step ? seen : step);
    }
}

static void attend(const Attention& a) {
  for (int m = 0; m < a.rows; m++)
    for (int i = 0; i < a.rep * a.dim; i += LANES) store(a.out + m * a.out_stride + i, set1(0.0f));
  each_block(a, LANES, [&](int m, int page, int t, int) {
    int h = 0;
    for (; h + 3 <= a.rep; h += 3) score_heads<3>(a, m, h, page, t);
    for (; h < a.rep; h++) score_heads<1>(a, m, h, page, t);
  });
  float totals[STRIP * MOST_HEADS];
  for (int m = 0; m < a.rows; m++) for (int h = 0; h < a.rep; h++) totals[m * a.rep + h] = soften(a, m, h);
  each_block(a, 2 * LANES, [&](int m, int page, int t, int count) {
    int h = 0;
    for (; h + 3 <= a.rep; h += 3) gather_heads<3>(a, m, h, page, t, count);
    for (; h < a.rep; h++) gather_heads<1>(a, m, h, page, t, count);
  });
  for (int m = 0; m < a.rows; m++)
    for (int h = 0; h < a.rep; h++) {
      float* out = a.out + m * a.out_stride + h * a.dim;
      const F total = set1(totals[m * a.rep + h]);
      for (int d = 0; d < a.dim; d += LANES) store(out + d, div(load(out + d), total));
    }
}

// ---- rows ---------------------------------------------------------------------------------------------------------------

// NaN when a logit is NaN or +infinity: comparisons alone would hide it.
static float peaks(const float* logits, int vocab, float* out) {
  const F limit = set1(__builtin_inff()), nil = set1(0.0f), one = set1(1.0f);
  F wrong = nil;
  float best = -__builtin_inff();
  int block = 0;
  for (; (block + 1) * 64 <= vocab; block++) {
    F most = set1(-__builtin_inff());
    for (int i = 0; i < 64; i += LANES) {
      const F x = load(logits + block * 64 + i);
      wrong = add(wrong, select_less(x, limit, nil, one));
      most = max(most, x);
    }
    out[block] = reduce_max(most);
    best = out[block] > best ? out[block] : best;
  }
  bool right = reduce_add(wrong) == 0;
  if (block * 64 < vocab) {
    out[block] = -__builtin_inff();
    for (int i = block * 64; i < vocab; i++) {
      right = right && logits[i] < __builtin_inff();
      out[block] = logits[i] > out[block] ? logits[i] : out[block];
    }
    best = out[block] > best ? out[block] : best;
  }
  return right ? best : __builtin_nanf("");
}

static inline F weigh(F logits, F peak, F temperature) { return exponential(div(sub(logits, peak), temperature)); }

// The last, partial vector of a row, filled up with weightless logits.
static inline F tail(const float* logits, int count) {
  float padded[LANES];
  for (int i = 0; i < LANES; i++) padded[i] = i < count ? logits[i] : -__builtin_inff();
  return load(padded);
}

static double total(const float* logits, int vocab, float peak, float temperature) {
  const F p = set1(peak), t = set1(temperature);
  double sum = 0;
  for (int start = 0; start < vocab; start += 512) {
    const int end = vocab - start < 512 ? vocab : start + 512;
    F part = set1(0.0f);
    int i = start;
    for (; i + LANES <= end; i += LANES) part = add(part, weigh(load(logits + i), p, t));
    if (i < end) part = add(part, weigh(tail(logits + i, end - i), p, t));
    sum += (double)reduce_add(part);
  }
  return sum;
}

static void weights(const float* logits, int n, float peak, float temperature, float* out) {
  const F p = set1(peak), t = set1(temperature);
  int i = 0;
  for (; i + LANES <= n; i += LANES) store(out + i, weigh(load(logits + i), p, t));
  if (i < n) {
    float last[LANES];
    store(last, weigh(tail(logits + i, n - i), p, t));
    for (int j = 0; i + j < n; j++) out[i + j] = last[j];
  }
}

static const Kernels table = {MTRUN_NAME, quantised, dense, round_row, rms_norm, rope,  silu_gate,
                              add_rows,   attend,    peaks, total,     weights};

} }  // namespace mtrun::MTRUN_ISA
