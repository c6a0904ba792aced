// The SIGSEGV handler: hands touches that userfaultfd does not see to a FaultLoop.
//
// These are writes to places held for reading. Any other segmentation fault is the program's own,
// and goes to the handler that was there before, as the kernel would have called it. Process-wide;
// installed by the first WatchedSpace. The handler takes no lock, allocates nothing and keeps
// errno.
#ifndef MEMTIDE_CLIENT_SEGV_HANDLER_H_
#define MEMTIDE_CLIENT_SEGV_HANDLER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/host_space.h"

namespace memtide::client {

// Puts the handler in place unless it is there. What is there instead becomes the one that the
// program's own faults go to.
absl::Status InstallSegvHandler();

// While it lives, the handler knows `space` and writes Touches to `requests`. Move-only. Destroying
// it waits for handlers that are at work on the space; their requests must be answered meanwhile.
class WatchedSpace {
 public:
  static constexpr int kMaxSpaces = 64;

  // RESOURCE_EXHAUSTED: kMaxSpaces live already.
  static absl::StatusOr<WatchedSpace> Watch(HostSpace* space, int requests);
  WatchedSpace(WatchedSpace&& other) noexcept;
  WatchedSpace& operator=(WatchedSpace&&) = delete;
  ~WatchedSpace();

 private:
  explicit WatchedSpace(int index) : index_(index) {}

  int index_;  // Of the handler's table; negative: moved from.
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_SEGV_HANDLER_H_
