// FaultLoop: the threads that answer touches of absent places, and writes to places held for
// reading.
//
// Touches come from the kernel (userfaultfd) and from the SIGSEGV handler (requests()). One thread
// at a time waits for them; when some arrive it leaves the waiting to an idle one and answers one
// itself, so a touch is answered by the thread that heard of it, up to kThreads - 1 at a time.
// While all others answer it goes on waiting, for AddressSpace::Unmap needs a reader at all times.
// A touch that cannot be answered ends the process (EndProcess): its thread can neither go on nor
// be told.
#ifndef MEMTIDE_CLIENT_FAULT_LOOP_H_
#define MEMTIDE_CLIENT_FAULT_LOOP_H_

#include <sys/types.h>

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/address_space.h"
#include "client/descriptor.h"
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
  static absl::StatusOr<std::unique_ptr<FaultLoop>> Start(AddressSpace* space, Answer answer);
  // Stops and joins. Touches that wait now are never answered.
  ~FaultLoop();
  FaultLoop(const FaultLoop&) = delete;
  FaultLoop& operator=(const FaultLoop&) = delete;

  // Where the signal handler writes its Touches, whole.
  int requests() const { return requests_in_.get(); }

 private:
  FaultLoop(AddressSpace* space, Answer answer, Descriptor requests_in, Descriptor requests_out,
            Descriptor stop);
  void Run();
  void WaitAndHear() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Touch> WaitForTouches();
  void ReadFaults(std::vector<Touch>* touches);
  void ReadRequests(std::vector<Touch>* touches);

  AddressSpace* const space_;
  const Answer answer_;
  const Descriptor requests_in_, requests_out_, stop_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Touch> heard_ ABSL_GUARDED_BY(mutex_);  // At most what one wait returned, and rest.
  bool somebody_waits_ ABSL_GUARDED_BY(mutex_) = false;
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Says on stderr why the touch cannot be answered, and ends the process by SIGBUS in the thread
// that touched (so that a debugger or Python's faulthandler shows the line), or by abort.
[[noreturn]] void EndProcess(const Touch& touch, const void* address, const absl::Status& why);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_FAULT_LOOP_H_
