// Weight matrices in tiles of 32 outputs, made from MLX's own layouts.
#pragma once
#include <cstdint>

#include "arena.h"
#include "kernels.h"

namespace mtrun {

enum Source { SOURCE_FLOAT, SOURCE_HALF, SOURCE_BFLOAT };  // how floats come in

// A [outputs, inputs] matrix as MLX stores it: dense, or an affine triple whose rows are packed least bits first.
struct Stored {
  int bits;        // 0 = dense
  int group;       // inputs that share a scale: 32, 64 or 128
  int outputs, inputs;
  const void* weight;
  const void* scales;
  const void* biases;
  Source source;   // of the dense weights, or of scales and biases
  const int32_t* rows;  // outputs to take, null = all in order
  int row_count;
};

struct Matrix {
  Format format = DENSE_FLOAT;
  int outputs = 0, inputs = 0;  // outputs padded to 32
  const uint8_t* tiles = nullptr;

  bool quantised() const { return format < DENSE_FLOAT; }
  int tile_count() const { return outputs / TILE; }
};

constexpr int padded(int n) { return (n + LANES - 1) / LANES * LANES; }  // floats of a row
constexpr int tiled(int n) { return (n + TILE - 1) / TILE * TILE; }      // outputs of a matrix

// Null when `stored` can be packed, as it is or rounded to 4 bits; else why not.
const char* refuse(const Stored& stored, bool four_bits);
// The format that keeps every stored value exactly.
Format format_of(const Stored& stored);
size_t packed_bytes(const Stored& stored, Format format);
// Writes `stored` as tiles at `out`; the rows that fill up the last tile are zero.
void pack(const Stored& stored, Format format, uint8_t* out);
// Row `output` of the matrix as floats [inputs].
void unpack_row(const Matrix& matrix, int output, float* out);
// Rounds 8-bit triples to 4 bits per 32 inputs (a lossy form): tiles of Q4_FLOAT at `out`.
void requantise(const Stored& stored, uint8_t* out);

}  // namespace mtrun
