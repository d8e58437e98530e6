// Keys and values of a stack of layers, in pages of 256 positions for all layers at once.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "kernels.h"

namespace mtrun {

// Page blocks of one shape, reused from request to request: fresh memory costs a fault for each 4 KB.
class PagePool {
 public:
  PagePool() = default;
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  void resize(size_t floats) { floats_ = floats; }  // of one block; before the first is taken
  float* take();  // null when memory is out
  void give(float* block);
  size_t bytes() const { return floats_ * sizeof(float); }

 private:
  size_t floats_ = 0;
  std::mutex mutex_;  // a cache may be collected on another thread than the one that decodes
  std::vector<float*> free_;
};

class Kv {
 public:
  // The pool is shared: a stack and its caches may be freed in any order.
  Kv(std::shared_ptr<PagePool> pool, int layers, int heads, int dim);
  ~Kv();
  Kv(const Kv&) = delete;
  Kv& operator=(const Kv&) = delete;

  int length() const { return length_; }
  bool of(const PagePool& pool) const { return pool_.get() == &pool; }
  bool reserve(int positions);  // pages for so many positions; false when memory is out
  void advance(int count) { length_ += count; }
  int trim(int count);  // forgets the last `count` positions, returns how many that were

  // Pages of one layer and head, in order of position.
  float* const* keys(int layer, int head) const { return keys_.at(index(layer, head)).data(); }
  float* const* values(int layer, int head) const { return values_.at(index(layer, head)).data(); }
  // Writes the key and value of a position: `width` floats each, padded with zeros to `dim`.
  void put(int layer, int head, int position, const float* key, const float* value, int width);
  int capacity() const { return (int)blocks_.size() * PAGE; }
  size_t bytes() const { return blocks_.size() * pool_->bytes(); }

 private:
  size_t index(int layer, int head) const { return (size_t)(layer * heads_ + head); }

  std::shared_ptr<PagePool> pool_;
  int layers_, heads_, dim_, length_ = 0;
  std::vector<float*> blocks_;
  std::vector<std::vector<float*>> keys_, values_;
};

}  // namespace mtrun
