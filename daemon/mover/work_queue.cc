#include "daemon/mover/work_queue.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/numa.h"

namespace memtide {

WorkQueue::WorkQueue(const char* name, const Options& options) {
  for (size_t i = 0; i < options.threads; ++i) {
    threads_.emplace_back([this, nice = options.nice, cpus = options.cpus] {
      RunOn(cpus);
      // A hint: where the limits forbid it, the thread is as urgent as the others. On Linux, a
      // thread has a priority of its own, named by its id.
      if (nice != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice);
      Run();
    });
    pthread_setname_np(threads_.back().native_handle(), name);
  }
}

WorkQueue::~WorkQueue() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkQueue::Push(std::function<void()> task) {
  MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
  changed_.Signal();
}

void WorkQueue::Run() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mutex_);
      while (tasks_.empty() && !closing_) changed_.Wait(&mutex_);
      // A closing queue still runs its tasks, because each ends with an event that the engine
      // awaits.
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace memtide
