// The table of instruction-set dependent functions: one instance a set, all from kernels.inl, chosen at run time.
//
// Every function computes each row by itself and in one order of operations, whatever the number of rows or the set:
// row i of a verify of D + 1 rows has the bits of the same row alone, on every processor with fused multiply-add.
#pragma once
#include <stdint.h>

namespace mtrun {

constexpr int LANES = 16;   // floats of a vector
constexpr int TILE = 32;    // outputs of a weight tile: each broadcast activation meets two vectors of weights
constexpr int GROUP = 32;   // inputs that share a scale
constexpr int PAGE = 256;   // positions of a KV page
constexpr int STRIP = 4;    // most rows that share one pass over a weight tile
constexpr int MOST_RAISE = 60;  // a sum of 31 bits raised so far, times any half, is still finite
constexpr int MOST_HEADS = 64;  // query heads that may share one key-value head

// How a tile of 32 outputs is stored. The quantised forms are blocks of 32 outputs x 32 inputs, in the order of inputs,
// one stream from end to end. First the integers of outputs 0..15, then those of 16..31:
//   4 bits: four lines of 64 bytes; byte 4 r + b of line j holds inputs 4 j + b (low nibble) and 16 + 4 j + b of output r
//   8 bits: eight lines of 64 bytes; byte 4 r + b of line j holds input 4 j + b of output r
// then 32 scales, then 32 biases (none where bias = -128 scale): weight = scale * stored + bias.
// The dense forms are 32 values for each input.
enum Format { Q4_HALF, Q4_FLOAT, Q8_HALF, Q8_FLOAT, Q8_HALF_CENTRED, DENSE_FLOAT, DENSE_BFLOAT, DENSE_HALF, FORMATS };

// How activations meet quantised weights.
enum Activation {
  WIDE,  // int16 with a power of two per 32 values: float32-grade
  INT8,  // int8 with a scale per 32 values: llama.cpp's precision
};

// Rows rounded for quantised weights; one of `words` and `bytes` is null. A byte stands for scale * byte, a word for
// unit * 2^raise * word: a power of two is an addition to a sum's exponent, which leaves the multipliers to the products.
// Four neighbouring words stand in the order 0, 2, 1, 3: the two bytes of a pair of weights are taken apart by a mask and
// a shift.
struct Rounded {
  int16_t* words;  // [M, K]
  int8_t* bytes;   // [M, K]
  float* scale;    // [M, K / 32] of bytes
  int32_t* raise;  // [M, K / 32] of words, 0 to MOST_RAISE, at the place of a float's exponent
  float* unit;     // [M] of words
  float* sum;      // [M, K / 32] the group's sum: scale * sum of bytes, 2^raise * sum of words
  int width;       // K
};

// Attention of M <= STRIP rows at positions first .. first + M - 1 on one key-value head that `rep` <= MOST_HEADS query
// heads share.
struct Attention {
  const float* q;             // [M, q_stride], `rep` heads of `dim` at its start
  long q_stride;
  int rows, rep, dim, first;  // dim: width of a head, padded to 16
  float scale;
  float* const* keys;         // pages [PAGE / 16, dim, 16]
  float* const* values;       // pages [PAGE, dim]
  float* scores;              // scratch [M, rep, capacity], capacity a multiple of PAGE
  long capacity;
  float* out;                 // [M, out_stride], `rep` heads of `dim`
  long out_stride;
};

struct Kernels {
  const char* name;
  // y[m, 32 n .. 32 n + 31] of tiles [first, last): rounded activations on quantised weights
  void (*quantised)(Format, const uint8_t* tiles, int first, int last, const Rounded&, int rows, float* y, long stride);
  // the same on dense weights: x [rows, x_stride], K inputs
  void (*dense)(Format, const uint8_t* tiles, int first, int last, const float* x, long x_stride, int inputs, int rows,
                float* y, long stride);
  // row `index` of x into row `index` of the rounded rows
  void (*round_row)(const float* x, const Rounded&, int index);
  // out = x / rms(x) * weight over `width` values; buffers are padded to 16 and the padding is zero
  void (*rms_norm)(const float* x, const float* weight, float eps, int width, float* out);
  // rotates one head in place: table holds cos, sin of `half` pairs; neighbours (traditional) or halves are a pair
  void (*rope)(float* head, const float* cosine, const float* sine, int half, bool traditional);
  // gate = silu(gate) * up over `width` values, a multiple of 16
  void (*silu_gate)(float* gate, const float* up, int width);
  void (*add)(float* x, const float* y, int width);
  void (*attend)(const Attention&);
  // maxima of blocks of 64 logits into peaks [ceil(V / 64)], and the largest of all; NaN when one is NaN or +infinity
  float (*peaks)(const float* logits, int vocab, float* peaks);
  // sum of exp((logits - peak) / temperature)
  double (*total)(const float* logits, int vocab, float peak, float temperature);
  // weights = exp((logits - peak) / temperature), n values
  void (*weights)(const float* logits, int n, float peak, float temperature, float* weights);
};

const Kernels* generic_kernels();
const Kernels* avx2_kernels();         // null where not built for
const Kernels* avx512_kernels();
const Kernels* avx512_vnni_kernels();
const Kernels* neon_kernels();

long tile_bytes(Format format, int inputs);

}  // namespace mtrun
