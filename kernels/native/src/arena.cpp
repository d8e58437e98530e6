#include "arena.h"

#include <sys/mman.h>

namespace mtrun {
namespace {

constexpr size_t HUGE_PAGE = 2u << 20, LINE = 64, AHEAD = 20480;  // kernels prefetch past the last tile

size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

Arena::Arena(size_t bytes) {
  // A private anonymous map: a shared one, and a file, get no transparent huge pages. One page more, so that the start
  // can be moved to a huge page's boundary.
  mapped_ = rounded(bytes + AHEAD, HUGE_PAGE);
  void* at = mmap(nullptr, mapped_ + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    mapped_ = 0;
    return;
  }
  uint8_t* start = (uint8_t*)at;
  uint8_t* aligned = (uint8_t*)rounded((size_t)start, HUGE_PAGE);
  if (aligned > start) munmap(start, (size_t)(aligned - start));
  const size_t tail = (size_t)(start + mapped_ + HUGE_PAGE - (aligned + mapped_));
  if (tail) munmap(aligned + mapped_, tail);
  base_ = aligned;
#ifdef MADV_HUGEPAGE
  madvise(base_, mapped_, MADV_HUGEPAGE);
#endif
}

Arena::~Arena() {
  if (base_) munmap(base_, mapped_);
}

uint8_t* Arena::take(size_t bytes) {
  const size_t need = rounded(bytes, LINE);
  if (!base_ || used_ + need + AHEAD > mapped_) return nullptr;
  uint8_t* at = base_ + used_;
  used_ += need;
  return at;
}

}  // namespace mtrun
