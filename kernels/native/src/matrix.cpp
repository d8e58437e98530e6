#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace mtrun {
namespace {

float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)mantissa * 5.9604644775390625e-8f;
  const uint32_t bits = exponent == 31 ? sign | 0x7f800000u | (mantissa << 13)
                                       : sign | ((exponent + 112) << 23) | (mantissa << 13);
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

float bfloat_to_float(uint16_t h) {
  const uint32_t bits = (uint32_t)h << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

float read(const void* p, long i, Source source) {
  if (source == SOURCE_FLOAT) return ((const float*)p)[i];
  const uint16_t h = ((const uint16_t*)p)[i];
  return source == SOURCE_HALF ? half_to_float(h) : bfloat_to_float(h);
}

int rows(const Stored& s) { return s.rows ? s.row_count : s.outputs; }

long stored_row(const Stored& s, int output) { return s.rows ? s.rows[output] : output; }

// Integer `input` of row `row` of a packed triple.
unsigned integer(const Stored& s, long row, int input) {
  const uint8_t* bytes = (const uint8_t*)s.weight + row * ((long)s.inputs * s.bits / 8);
  return s.bits == 8 ? bytes[input] : (bytes[input / 2] >> (4 * (input & 1))) & 15u;
}

float scale_at(const Stored& s, long row, int input) { return read(s.scales, row * (s.inputs / s.group) + input / s.group, s.source); }
float bias_at(const Stored& s, long row, int input) { return read(s.biases, row * (s.inputs / s.group) + input / s.group, s.source); }

int line_bytes(int bits) { return bits == 4 ? 256 : 512; }

// The integers of one block of 32 outputs x 32 inputs; `value(lane, k)` gives them.
template <class Value>
void write_lines(int bits, uint8_t* out, Value value) {
  for (int lane = 0; lane < TILE; lane++) {
    uint8_t* to = out + lane / LANES * line_bytes(bits) + 4 * (lane % LANES);
    for (int k = 0; k < (bits == 4 ? 16 : 32); k++)
      to[64 * (k / 4) + k % 4] = (uint8_t)(bits == 4 ? value(lane, k) | value(lane, 16 + k) << 4 : value(lane, k));
  }
}

// The integers of one output and group of 32 inputs, from MLX's packing to a block's lines.
void copy_group(const Stored& s, long row, int group, int lane, uint8_t* out) {
  const uint8_t* from = (const uint8_t*)s.weight + (row * s.inputs + (long)group * GROUP) * s.bits / 8;
  uint8_t* to = out + lane / LANES * line_bytes(s.bits) + 4 * (lane % LANES);
  if (s.bits == 8) {
    for (int line = 0; line < 8; line++) std::memcpy(to + 64 * line, from + 4 * line, 4);
    return;
  }
  for (int i = 0; i < 8; i++) {  // byte i holds inputs 2 i and 2 i + 1, byte 8 + i those 16 further
    uint8_t* pair = to + 64 * (i / 2) + 2 * (i % 2);
    pair[0] = (uint8_t)((from[i] & 15) | from[8 + i] << 4);
    pair[1] = (uint8_t)(from[i] >> 4 | (from[8 + i] & 0xf0));
  }
}

void write_dense(const Stored& s, Format format, uint8_t* out) {
  const int width = format == DENSE_FLOAT ? 4 : 2, count = rows(s);
  std::memset(out, 0, packed_bytes(s, format));
  for (int n = 0; n < count; n++)
    for (int k = 0; k < s.inputs; k++) {
      const long to = ((long)(n / TILE) * s.inputs + k) * TILE + n % TILE, from = stored_row(s, n) * s.inputs + k;
      std::memcpy(out + to * width, (const uint8_t*)s.weight + from * width, (size_t)width);
    }
}

}  // namespace

long tile_bytes(Format format, int inputs) {
  const long groups = inputs / GROUP;
  switch (format) {
    case Q4_HALF: return groups * (512 + 128);
    case Q4_FLOAT: return groups * (512 + 256);
    case Q8_HALF: return groups * (1024 + 128);
    case Q8_FLOAT: return groups * (1024 + 256);
    case Q8_HALF_CENTRED: return groups * (1024 + 64);
    case DENSE_FLOAT: return (long)inputs * TILE * 4;
    default: return (long)inputs * TILE * 2;
  }
}

const char* refuse(const Stored& s, bool four_bits) {
  if (s.outputs < 1 || s.inputs < 1) return "a matrix needs at least one output and one input";
  if (four_bits && s.inputs % GROUP) return "rounding to 4 bits takes inputs in groups of 32";
  if (s.bits == 0) return nullptr;
  if (s.bits != 4 && s.bits != 8) return "quantised weights have 4 or 8 bits";
  if (s.group != 32 && s.group != 64 && s.group != 128) return "a scale stands for 32, 64 or 128 inputs";
  if (s.inputs % s.group) return "the inputs do not divide into groups";
  return nullptr;
}

Format format_of(const Stored& s) {
  if (s.bits == 0) return s.source == SOURCE_FLOAT ? DENSE_FLOAT : s.source == SOURCE_HALF ? DENSE_HALF : DENSE_BFLOAT;
  const bool half = s.source == SOURCE_HALF;
  if (s.bits == 4) return half ? Q4_HALF : Q4_FLOAT;
  if (!half) return Q8_FLOAT;
  const long groups = (long)s.outputs * (s.inputs / s.group);
  for (long i = 0; i < groups; i++)
    if (read(s.biases, i, s.source) != -128.0f * read(s.scales, i, s.source)) return Q8_HALF;
  return Q8_HALF_CENTRED;
}

size_t packed_bytes(const Stored& s, Format format) {
  return (size_t)(tiled(rows(s)) / TILE) * (size_t)tile_bytes(format, s.inputs);
}

void pack(const Stored& s, Format format, uint8_t* out) {
  if (format >= DENSE_FLOAT) return write_dense(s, format, out);
  const int count = rows(s), lines = 2 * line_bytes(s.bits);
  const bool half = format == Q4_HALF || format == Q8_HALF || format == Q8_HALF_CENTRED;
  for (int tile = 0; tile < tiled(count) / TILE; tile++)
    for (int g = 0; g < s.inputs / GROUP; g++) {
      const auto row = [&](int lane) { return stored_row(s, tile * TILE + lane); };
      const auto real = [&](int lane) { return tile * TILE + lane < count; };
      std::memset(out, 0, (size_t)lines);
      for (int lane = 0; lane < TILE && real(lane); lane++) copy_group(s, row(lane), g, lane, out);
      out += lines;
      for (int part = 0; part < (format == Q8_HALF_CENTRED ? 1 : 2); part++) {
        const void* from = part ? s.biases : s.scales;
        for (int lane = 0; lane < TILE; lane++) {
          const long at = real(lane) ? row(lane) * (s.inputs / s.group) + g * GROUP / s.group : 0;
          if (half) {
            ((uint16_t*)out)[lane] = real(lane) ? ((const uint16_t*)from)[at] : (uint16_t)0;
          } else {
            ((float*)out)[lane] = real(lane) ? read(from, at, s.source) : 0.0f;
          }
        }
        out += TILE * (half ? 2 : 4);
      }
    }
}

void unpack_row(const Matrix& m, int output, float* out) {
  const uint8_t* tile = m.tiles + (long)(output / TILE) * tile_bytes(m.format, m.inputs);
  const int lane = output % TILE;
  if (!m.quantised()) {
    const Source source = m.format == DENSE_FLOAT ? SOURCE_FLOAT : m.format == DENSE_HALF ? SOURCE_HALF : SOURCE_BFLOAT;
    for (int k = 0; k < m.inputs; k++) out[k] = read(tile, (long)k * TILE + lane, source);
    return;
  }
  const bool four = m.format == Q4_HALF || m.format == Q4_FLOAT;
  const Source source = m.format == Q4_FLOAT || m.format == Q8_FLOAT ? SOURCE_FLOAT : SOURCE_HALF;
  const int lines = line_bytes(four ? 4 : 8);
  const long block = tile_bytes(m.format, GROUP);
  for (int g = 0; g < m.inputs / GROUP; g++, tile += block) {
    const float scale = read(tile + 2 * lines, lane, source);
    const float bias = m.format == Q8_HALF_CENTRED ? -128.0f * scale : read(tile + 2 * lines, TILE + lane, source);
    for (int k = 0; k < GROUP; k++) {
      const int within = four ? k % 16 : k;
      const uint8_t byte = tile[lane / LANES * lines + 64 * (within / 4) + 4 * (lane % LANES) + within % 4];
      const int stored = four ? (k < 16 ? byte & 15 : byte >> 4) : byte;
      out[g * GROUP + k] = scale * (float)stored + bias;
    }
  }
}

void requantise(const Stored& s, uint8_t* out) {
  const int count = rows(s);
  for (int tile = 0; tile < tiled(count) / TILE; tile++)
    for (int g = 0; g < s.inputs / GROUP; g++) {
      float scale[TILE] = {}, low[TILE] = {};
      unsigned stored[TILE][GROUP] = {};
      for (int lane = 0; lane < TILE && tile * TILE + lane < count; lane++) {
        const long row = stored_row(s, tile * TILE + lane);
        float value[GROUP];
        for (int k = 0; k < GROUP; k++) {
          const int input = g * GROUP + k;
          value[k] = s.bits == 0 ? read(s.weight, row * s.inputs + input, s.source)
                                 : scale_at(s, row, input) * (float)integer(s, row, input) + bias_at(s, row, input);
        }
        low[lane] = *std::min_element(value, value + GROUP);
        scale[lane] = (*std::max_element(value, value + GROUP) - low[lane]) / 15.0f;
        for (int k = 0; k < GROUP; k++)
          stored[lane][k] = scale[lane] > 0 ? (unsigned)std::lround((value[k] - low[lane]) / scale[lane]) : 0u;
      }
      write_lines(4, out, [&](int lane, int k) { return stored[lane][k]; });
      std::memcpy(out + 512, scale, sizeof scale);
      std::memcpy(out + 512 + sizeof scale, low, sizeof low);
      out += 768;
    }
}

}  // namespace mtrun
