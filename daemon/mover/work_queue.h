// WorkQueue: one thread that runs tasks one after the other, first come, first served.
//
// Thread-safe. The destructor runs what is queued, then joins.
#ifndef MEMTIDE_DAEMON_MOVER_WORK_QUEUE_H_
#define MEMTIDE_DAEMON_MOVER_WORK_QUEUE_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace memtide {

class WorkQueue {
 public:
  // `name` is the thread's, as tools show it: at most 15 characters.
  explicit WorkQueue(const char* name);
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
  std::thread thread_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_MOVER_WORK_QUEUE_H_
