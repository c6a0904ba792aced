#include "daemon/mover/work_queue.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/numa.h"

namespace memtide {

WorkQueue::WorkQueue(const char* name, const Options& options) : drops_rest_(options.drops_rest) {
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

void WorkQueue::Finish() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkQueue::Push(JobId job, Bytes cost, std::function<void()> task) {
  PushPieces(job, cost, [task = std::move(task)] {
    task();
    return true;
  });
}

void WorkQueue::PushPieces(JobId job, Bytes cost, std::function<bool()> piece) {
  MutexLock lock(&mutex_);
  tasks_.Push(job, {job, std::max(cost, kLeastCost), std::move(piece)});
  changed_.Signal();
}

absl::optional<WorkQueue::Task> WorkQueue::Next() {
  MutexLock lock(&mutex_);
  while (tasks_.empty() && !closing_) changed_.Wait(&mutex_);
  // A closing queue still runs its tasks, because each ends with an event that the engine awaits,
  // unless nothing awaits it any more.
  if (tasks_.empty() || (closing_ && drops_rest_)) return absl::nullopt;
  const Bytes cost = tasks_.First().cost;
  tasks_.Charge(cost);
  return tasks_.Pop();
}

void WorkQueue::Run() {
  while (absl::optional<Task> task = Next()) {
    if (task->piece()) continue;
    MutexLock lock(&mutex_);
    // No signal is needed: this thread takes a task next.
    const JobId job = task->job;
    tasks_.PushRest(job, *std::move(task));
  }
}

}  // namespace memtide
