// A few threads that take chunks of a loop from a counter: one that the system has put aside delays its own chunk alone.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mtrun {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return (int)helpers_.size() + 1; }
  // body(i) for i in [0, chunks), the caller among the workers; returns when all are done. Not reentrant.
  void run(int chunks, const std::function<void(int)>& body);

 private:
  void help();
  void work();

  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int)>* body_ = nullptr;
  int chunks_ = 0;
  std::atomic<int> next_{0}, done_{0}, inside_{0};
  std::atomic<unsigned> generation_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace mtrun
