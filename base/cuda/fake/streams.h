// Stream: a queue of work and the thread that does it, late; Event: a mark in such queues.
//
// Everything here is guarded by the lock of the Process, which is a parameter so that Clang can
// tell that it is the one that the caller holds.
#ifndef MEMTIDE_BASE_CUDA_FAKE_STREAMS_H_
#define MEMTIDE_BASE_CUDA_FAKE_STREAMS_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/cuda/fake/process.h"

namespace memtide::fake_cuda {

// How many streams have not come to it yet.
struct Mark {
  int awaited = 0;
};

struct Event {
  std::shared_ptr<Mark> last;  // Null: never recorded.
};

class Stream {
 public:
  explicit Stream(Process* process);
  // Finishes what is queued, unless it was dropped. REQUIRES: without the lock.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Does `work` after the process's delay; not at all once something broke.
  void Push(Process* process, std::function<void()> work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);
  void Push(Process* process, std::shared_ptr<Mark> mark)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);
  void Drop(Process* process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);

 private:
  struct Task {
    Instant due;
    std::function<void()> work;  // Null: the mark.
    std::shared_ptr<Mark> mark;
  };

  void Run();
  void AwaitDue(Instant due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process_->mutex);

  Process* const process_;
  std::deque<Task> queue_;
  bool ending_ = false;
  std::thread thread_;
};

// The stream of that name, the default one included. Null: there is none.
Stream* FindStream(Process* process, cudaStream_t stream)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);

// Waits until the mark was reached or something broke, which it returns.
cudaError_t Await(Process* process, const std::shared_ptr<Mark>& mark)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);
// A mark at the end of every stream's queue.
std::shared_ptr<Mark> MarkAll(Process* process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_STREAMS_H_
