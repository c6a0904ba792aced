// FaultLoop: the threads that answer touches of absent places, and writes to places held for
// reading.
//
// Touches come from the kernel (userfaultfd) and from the SIGSEGV handler (requests()). The threads
// listen to both; the kernel wakes one of them for each touch, which answers it itself: what a
// touch waits for is one thread. One always goes on listening, for HostSpace::Unmap needs a
// reader at all times; touches that it hears while all others answer are left to the first that is
// through. A touch that cannot be answered ends the process (EndProcess): its thread can neither go
// on nor be told.
#ifndef MEMTIDE_CLIENT_FAULT_LOOP_H_
#define MEMTIDE_CLIENT_FAULT_LOOP_H_

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/mutex.h"
#include "client/descriptor.h"
#include "client/host_space.h"
#include "client/types.h"

namespace memtide::client {

struct Touch {
  PlaceId place;
  Access access = Access::kRead;
  pid_t thread = 0;  // Waits for the answer.
};

class FaultLoop {
 public:
  static constexpr int kThreads = 4;
  // Leases and maps the place, and wakes who waits. Called from several threads. An error says why
  // that is impossible.
  using Answer = std::function<absl::Status(const Touch&)>;

  // `space` must outlive the loop.
  static absl::StatusOr<std::unique_ptr<FaultLoop>> Start(HostSpace* space, Answer answer);
  // Stops and joins. Touches that wait now are never answered.
  ~FaultLoop();
  FaultLoop(const FaultLoop&) = delete;
  FaultLoop& operator=(const FaultLoop&) = delete;

  // Where the signal handler writes its Touches, whole.
  int requests() const { return requests_in_.get(); }

 private:
  FaultLoop(HostSpace* space, Answer answer, Descriptor requests_in, Descriptor requests_out,
            Descriptor stop);
  // What one thread waits on. The kernel wakes one that waits for each thing to be read.
  absl::StatusOr<Descriptor> Listen();
  void Run(int epoll);
  // Waits for a touch. None: a move was read, or another thread was faster.
  absl::optional<Touch> Hear(int epoll);
  absl::optional<Touch> ReadFault();
  absl::optional<Touch> ReadRequest();
  // Answers what was heard, unless every other thread is at that.
  void AnswerHeard() ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerOne(const Touch& touch);

  HostSpace* const space_;
  const Answer answer_;
  const Descriptor requests_in_, requests_out_, stop_;
  std::vector<Descriptor> epolls_;  // One for each thread.
  std::atomic<bool> stopping_{false};

  Mutex mutex_;
  int listening_ ABSL_GUARDED_BY(mutex_) = kThreads;
  std::deque<Touch> heard_ ABSL_GUARDED_BY(mutex_);  // At most one for each thread that touches.
  std::vector<std::thread> threads_;
};

// Says on stderr why the touch cannot be answered, and ends the process by SIGBUS in the thread
// that touched (so that a debugger or Python's faulthandler shows the line), or by abort.
[[noreturn]] void EndProcess(const Touch& touch, const void* address, const absl::Status& why);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_FAULT_LOOP_H_
