// FaultLoop: the threads that handle page faults: accesses to absent places, and writes to places
// mapped for reading.
//
// Faults arrive from the kernel (userfaultfd) and from the SIGSEGV handler (request_fd()). All
// threads wait on both; the kernel wakes one of them per fault, which handles it, so a slow fetch
// delays one thread only. One thread always stays in the wait, because HostSpace::Unmap blocks
// until its remap event is read. Faults that this last thread reads while all others are busy wait
// in a queue for the first that is free.
//
// A fault that cannot be handled ends the process (EndProcess): the faulting thread can neither
// continue nor receive an error.
#ifndef MEMTIDE_CLIENT_MEMORY_FAULT_LOOP_H_
#define MEMTIDE_CLIENT_MEMORY_FAULT_LOOP_H_

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
#include "client/memory/descriptor.h"
#include "client/memory/host_space.h"
#include "client/memory/place.h"

namespace memtide::client {

struct PageFault {
  PlaceId place;
  Access access = Access::kRead;
  pid_t thread = 0;  // The faulting thread, which is blocked; zero: unknown.
};

class FaultLoop {
 public:
  static constexpr int kThreads = 4;
  // Leases and maps the place, and resumes the threads blocked on it. Called from several threads.
  // An error ends the process, with its message.
  using Handler = std::function<absl::Status(const PageFault&)>;

  // `space` must outlive the loop.
  static absl::StatusOr<std::unique_ptr<FaultLoop>> Start(HostSpace* space, Handler handler);
  // Stops and joins the threads. Faults that are still queued are never handled.
  ~FaultLoop();
  FaultLoop(const FaultLoop&) = delete;
  FaultLoop& operator=(const FaultLoop&) = delete;

  // The pipe into which the SIGSEGV handler writes PageFault structs, each in one write.
  int request_fd() const { return request_writer_.get(); }

 private:
  FaultLoop(HostSpace* space, Handler handler, Descriptor request_writer, Descriptor request_reader,
            Descriptor stop);
  // An epoll descriptor for one thread. EPOLLEXCLUSIVE: the kernel wakes one waiting thread per
  // event.
  absl::StatusOr<Descriptor> MakeEpoll();
  void Run(int epoll);
  // Waits for an event. Returns none if it was a remap, or if another thread read it first.
  absl::optional<PageFault> WaitForFault(int epoll);
  absl::optional<PageFault> ReadUserfault();
  absl::optional<PageFault> ReadSegvRequest();
  // Handles queued faults, unless this is the last thread that still waits for events.
  void HandlePending() ABSL_LOCKS_EXCLUDED(mutex_);
  void HandleFault(const PageFault& fault);

  HostSpace* const space_;
  const Handler handler_;
  const Descriptor request_writer_, request_reader_, stop_;
  std::vector<Descriptor> epolls_;  // One for each thread.
  std::atomic<bool> stopping_{false};

  Mutex mutex_;
  int listening_ ABSL_GUARDED_BY(mutex_) = kThreads;
  std::deque<PageFault> pending_
      ABSL_GUARDED_BY(mutex_);  // At most one for each thread that touches.
  std::vector<std::thread> threads_;
};

// Writes to stderr why the fault cannot be handled, and ends the process: by SIGBUS in the faulting
// thread, so that a debugger or Python's faulthandler shows the line, or by abort().
[[noreturn]] void EndProcess(const PageFault& fault, const void* address, const absl::Status& why);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_FAULT_LOOP_H_
