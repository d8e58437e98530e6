#include "engine.h"

#include <algorithm>

namespace mtrun {
namespace {

// Enough work to be worth waking a thread for, in weights.
constexpr long PARALLEL_FROM = 100000;

}  // namespace

Rounded RoundedRows::view(int rows, int width, Activation how) {
  const size_t values = (size_t)rows * (size_t)width, groups = values / GROUP;
  if (how == WIDE && words_.size() < values) words_.resize(values);
  if (how == INT8 && bytes_.size() < values) bytes_.resize(values);
  if (how == WIDE && raise_.size() < groups) raise_.resize(groups);
  if (how == INT8 && scale_.size() < groups) scale_.resize(groups);
  if (unit_.size() < (size_t)rows) unit_.resize((size_t)rows);
  if (sum_.size() < groups) sum_.resize(groups);
  return {how == WIDE ? words_.data() : nullptr, how == INT8 ? bytes_.data() : nullptr, scale_.data(), raise_.data(),
          unit_.data(), sum_.data(), width};
}

void Buffer::shape(int rows, int width) {
  stride_ = tiled(width);
  data_.assign((size_t)rows * (size_t)stride_, 0.0f);
}

Engine::Engine(const Kernels& table, int threads, size_t arena_bytes, Activation how)
    : kernels(table), activation(how), pool_(std::make_unique<Pool>(threads)) {
  arenas_.push_back(std::make_unique<Arena>(arena_bytes));
}

uint8_t* Engine::take(size_t bytes) {
  if (uint8_t* at = arenas_.back()->take(bytes)) return at;
  arenas_.push_back(std::make_unique<Arena>(bytes));
  return arenas_.back()->take(bytes);
}

int Engine::add(const Stored& stored, bool four_bits) {
  const Format format = four_bits ? Q4_FLOAT : format_of(stored);
  uint8_t* at = take(packed_bytes(stored, format));
  if (!at) return -1;
  if (four_bits) {
    requantise(stored, at);
  } else {
    pack(stored, format, at);
  }
  const int count = stored.rows ? stored.row_count : stored.outputs;
  matrices_.push_back({format, tiled(count), stored.inputs, at});
  return (int)matrices_.size() - 1;
}

void Engine::multiply(const std::vector<int>& indices, const float* x, long x_stride, int rows, float* y, long stride) {
  int tiles = 0;
  bool any_quantised = false;
  for (int i : indices) {
    tiles += matrix(i).tile_count();
    any_quantised |= matrix(i).quantised();
  }
  const int width = matrix(indices[0]).inputs;
  Rounded rounded{};
  if (any_quantised) {
    rounded = rounded_.view(rows, width, activation);
    for (int m = 0; m < rows; m++) kernels.round_row(x + m * x_stride, rounded, m);
  }
  const auto part = [&](int first, int last) {  // tiles of all matrices in a row
    int before = 0;
    for (int i : indices) {
      const Matrix& w = matrix(i);
      const int from = std::max(first - before, 0), to = std::min(last - before, w.tile_count());
      if (from < to) {
        float* out = y + (long)before * TILE;
        if (w.quantised()) {
          kernels.quantised(w.format, w.tiles, from, to, rounded, rows, out, stride);
        } else {
          kernels.dense(w.format, w.tiles, from, to, x, x_stride, w.inputs, rows, out, stride);
        }
      }
      before += w.tile_count();
    }
  };
  const long work = (long)tiles * TILE * width * rows;
  if (threads() == 1 || work < PARALLEL_FROM) return part(0, tiles);
  const int chunks = std::min(tiles, threads() * 4), step = (tiles + chunks - 1) / chunks;
  pool_->run(chunks, [&](int i) { part(i * step, std::min(tiles, (i + 1) * step)); });
}

}  // namespace mtrun
