// WorkQueue: threads that run tasks in the order of Push. With one thread, which is the default,
// tasks run one after the other. The destructor runs all queued tasks, then joins the threads.
//
// Thread safety: thread-safe.
#ifndef MEMTIDE_DAEMON_MOVER_WORK_QUEUE_H_
#define MEMTIDE_DAEMON_MOVER_WORK_QUEUE_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace memtide {

class WorkQueue {
 public:
  struct Options {
    size_t threads = 1;
    int nice = 0;           // Added to the process's nice value: higher is a lower priority.
    std::vector<int> cpus;  // Where the threads run. Empty: anywhere.
  };
  // `name` is the threads' name in tools such as top: at most 15 characters.
  explicit WorkQueue(const char* name) : WorkQueue(name, Options()) {}
  WorkQueue(const char* name, const Options& options);
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void Push(std::function<void()> task);

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_MOVER_WORK_QUEUE_H_
