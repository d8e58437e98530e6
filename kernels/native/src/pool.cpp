#include "pool.h"

namespace mtrun {
namespace {

constexpr int SPINS = 4000;  // some tens of microseconds, longer than the gap between two loops of one step

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

}  // namespace

Pool::Pool(int threads) {
  for (int i = 1; i < threads; i++) helpers_.emplace_back([this] { help(); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void Pool::work() {
  for (int i; (i = next_.fetch_add(1)) < chunks_;) {
    (*body_)(i);
    done_.fetch_add(1, std::memory_order_release);
  }
}

void Pool::help() {
  unsigned seen = 0;
  for (;;) {
    for (int spin = 0; generation_.load(std::memory_order_acquire) == seen && !stop_; spin++) {
      if (spin < SPINS) {
        relax();
        continue;
      }
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return generation_ != seen || stop_; });
    }
    if (stop_) return;
    // Announced before the generation is read again: `run` changes a loop only while nobody is inside.
    inside_.fetch_add(1);
    seen = generation_.load(std::memory_order_acquire);
    work();
    inside_.fetch_sub(1);
  }
}

void Pool::run(int chunks, const std::function<void(int)>& body) {
  if (helpers_.empty() || chunks <= 1) {
    for (int i = 0; i < chunks; i++) body(i);
    return;
  }
  next_ = 1 << 30;  // a helper that comes late finds no chunk of the old loop
  while (inside_.load() > 0) relax();
  body_ = &body;
  chunks_ = chunks;
  done_ = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    next_ = 0;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  work();
  while (done_.load(std::memory_order_acquire) < chunks) relax();
}

}  // namespace mtrun
