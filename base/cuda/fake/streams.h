// Stream: a queue of work, and the thread that performs it with a delay. Event: a mark in such
// queues.
//
// The lock of the Process guards everything here. It is a parameter, so that Clang can check that
// the caller holds that lock.
#ifndef MEMTIDE_BASE_CUDA_FAKE_STREAMS_H_
#define MEMTIDE_BASE_CUDA_FAKE_STREAMS_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/cuda/fake/process.h"

namespace memtide::fake_cuda {

// A position in queues; `awaited` streams have not reached it yet.
struct Mark {
  int awaited = 0;
  uint64_t pushed = 0;  // Pieces of work that the process had queued before.
};

struct Event {
  std::shared_ptr<Mark> last;  // Null: not recorded yet.
};

// Memory that a piece of work accesses.
struct Range {
  uintptr_t address = 0;
  uint64_t size = 0;
};

// When work ends that begins at this time. Asked once, when its turn comes.
using EndOf = std::function<Instant(Instant begin)>;

class Stream {
 public:
  explicit Stream(Process* process);
  // Performs what is still queued. REQUIRES: the calling thread does not hold the lock.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Queues `work`, to be done after the process's delay, or never if an error becomes sticky first.
  // `accessed`: the memory that it will access. `end`: until when it occupies the stream, before
  // the bytes move.
  void Push(Process* process, std::function<void()> work, std::vector<Range> accessed,
            EndOf end = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);
  void Push(Process* process, std::shared_ptr<Mark> mark)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);
  // Queued work that accesses any of the range ends with an illegal address.
  void BreakWorkOn(Process* process, Range range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);
  // Whether work is queued or runs.
  bool IsBusy(Process* process) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
    return working_ || !queue_.empty();
  }
  // Removes all queued work.
  void Drop(Process* process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);

 private:
  struct Task {
    Instant due;
    EndOf end;                   // Null: it occupies the stream for no time.
    std::function<void()> work;  // Null: reaches the mark.
    std::shared_ptr<Mark> mark;
    std::vector<Range> accessed;
    bool broken = false;
  };

  void Run();
  // Waits for the time slice of other processes that are at work.
  void AwaitTimeSlice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(process_->mutex);
  void AwaitDue(Instant due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process_->mutex);

  Process* const process_;
  std::deque<Task> queue_;
  Instant free_at_;  // When the last work that occupied the stream ended.
  bool working_ = false, ending_ = false;
  std::thread thread_;
};

// Finds a stream, the default one included. Null: there is none.
Stream* FindStream(Process* process, CUstream stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);

// The time of a kernel; null where no card is played.
EndOf OfKernel(Process* process, const KernelWork& work);

// Waits until all streams have reached the mark, or an error is sticky, which it returns.
CUresult Await(Process* process, const std::shared_ptr<Mark>& mark)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);
// The range was unmapped, if only for a moment: queued work of any stream that accesses it is
// broken.
void BreakWorkOn(Process* process, Range range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);
// Appends a mark to every stream's queue.
std::shared_ptr<Mark> MarkAll(Process* process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_STREAMS_H_
