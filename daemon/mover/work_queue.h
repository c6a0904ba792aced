// WorkQueue: threads that run tasks, fair between jobs.
//
// The tasks of a job run in the order of Push, and jobs take turns by the cost of their tasks
// (FairQueue). A long task is run in pieces, between which other jobs have their turns. With one
// thread, which is the default, tasks run one after the other.
//
// Thread safety: thread-safe.
#ifndef MEMTIDE_DAEMON_MOVER_WORK_QUEUE_H_
#define MEMTIDE_DAEMON_MOVER_WORK_QUEUE_H_

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/fair_queue.h"
#include "base/ids.h"
#include "base/mutex.h"

namespace memtide {

class WorkQueue {
 public:
  struct Options {
    size_t threads = 1;
    int nice = 0;           // Added to the process's nice value: higher is a lower priority.
    std::vector<int> cpus;  // Where the threads run. Empty: anywhere.
    // Whether Finish() drops the tasks and pieces that have not begun, instead of running them.
    bool drops_rest = false;
  };
  // A task is about as long as working on this much memory, at least.
  static constexpr Bytes kLeastCost = MiB(1);
  // A long task is cut into pieces of about this size.
  static constexpr Bytes kPiece = MiB(64);

  // `name` is the threads' name in tools such as top: at most 15 characters.
  explicit WorkQueue(const char* name) : WorkQueue(name, Options()) {}
  WorkQueue(const char* name, const Options& options);
  ~WorkQueue() { Finish(); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // `cost`: the memory that the task works on. REQUIRES (both): Finish() has not been called.
  void Push(JobId job, Bytes cost, std::function<void()> task);
  // A task in pieces of that cost: it is called until it returns true, the task being done.
  void PushPieces(JobId job, Bytes cost, std::function<bool()> piece);

  // Runs all queued tasks, those included that they push here, and ends the threads.
  void Finish();

 private:
  struct Task {
    JobId job;
    Bytes cost;
    std::function<bool()> piece;
  };

  void Run();
  // Waits for the next task. nullopt: the thread is to end.
  absl::optional<Task> Next() ABSL_LOCKS_EXCLUDED(mutex_);

  const bool drops_rest_;
  Mutex mutex_;
  CondVar changed_;
  FairQueue<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_MOVER_WORK_QUEUE_H_
