#include "kv.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace mtrun {

PagePool::~PagePool() {
  for (float* block : free_) std::free(block);
}

float* PagePool::take() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      float* block = free_.back();
      free_.pop_back();
      return block;
    }
  }
  void* block = nullptr;
  if (posix_memalign(&block, 2u << 20, bytes()) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
  madvise(block, bytes(), MADV_HUGEPAGE);
#endif
  return (float*)block;
}

void PagePool::give(float* block) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(block);
}

Kv::Kv(std::shared_ptr<PagePool> pool, int layers, int heads, int dim)
    : pool_(std::move(pool)), layers_(layers), heads_(heads), dim_(dim), keys_((size_t)(layers * heads)),
      values_((size_t)(layers * heads)) {}

Kv::~Kv() {
  for (float* block : blocks_) pool_->give(block);
}

bool Kv::reserve(int positions) {
  while (capacity() < positions) {
    float* block = pool_->take();
    if (!block) return false;
    blocks_.push_back(block);
    for (size_t i = 0; i < keys_.size(); i++, block += 2 * (size_t)PAGE * (size_t)dim_) {
      keys_[i].push_back(block);
      values_[i].push_back(block + (size_t)PAGE * (size_t)dim_);
    }
  }
  return true;
}

int Kv::trim(int count) {
  const int dropped = count < 0 ? 0 : count < length_ ? count : length_;
  length_ -= dropped;
  return dropped;
}

void Kv::put(int layer, int head, int position, const float* key, const float* value, int width) {
  const size_t page = (size_t)(position / PAGE);
  const int within = position % PAGE;
  float* keys = keys_[index(layer, head)][page] + (size_t)(within / LANES) * (size_t)(dim_ * LANES) + within % LANES;
  float* values = values_[index(layer, head)][page] + (size_t)within * (size_t)dim_;
  for (int d = 0; d < dim_; d++) keys[(size_t)d * LANES] = d < width ? key[d] : 0.0f;
  std::memcpy(values, value, sizeof(float) * (size_t)width);
  for (int d = width; d < dim_; d++) values[d] = 0.0f;
}

}  // namespace mtrun
