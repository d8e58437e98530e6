// One block of memory for all weights, in the order of their use, on huge pages where the system gives them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mtrun {

class Arena {
 public:
  explicit Arena(size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `bytes` more, on a cache line; null when the arena is full.
  uint8_t* take(size_t bytes);
  bool valid() const { return base_ != nullptr; }
  size_t used() const { return used_; }
  uint8_t* base() const { return base_; }
  size_t mapped() const { return mapped_; }

 private:
  uint8_t* base_ = nullptr;
  size_t mapped_ = 0, used_ = 0;
};

}  // namespace mtrun
