// The SIGSEGV handler: forwards writes to places in state kRead to a FaultLoop.
//
// userfaultfd reports accesses to absent memory only, so a write to memory mapped for reading
// arrives here. Any other segmentation fault belongs to the program and is passed to the handler
// that was installed before, as the kernel would have called it. The handler is process-wide; the
// first SegvRegistration installs it. It takes no lock, allocates nothing and preserves errno.
#ifndef MEMTIDE_CLIENT_MEMORY_SEGV_HANDLER_H_
#define MEMTIDE_CLIENT_MEMORY_SEGV_HANDLER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/memory/host_space.h"

namespace memtide::client {

// Installs the handler unless it is installed. The handler that it replaces receives the program's
// own faults.
absl::Status InstallSegvHandler();

// While it lives, the handler writes faults of `space` to the descriptor `requests` as PageFault
// structs. Move-only. The destructor waits for handlers that are running for this space, so the
// FaultLoop must still handle their requests.
class SegvRegistration {
 public:
  static constexpr int kMaxSpaces = 64;

  // RESOURCE_EXHAUSTED: kMaxSpaces registrations are alive.
  static absl::StatusOr<SegvRegistration> Create(HostSpace* space, int requests);
  SegvRegistration(SegvRegistration&& other) noexcept;
  SegvRegistration& operator=(SegvRegistration&&) = delete;
  ~SegvRegistration();

 private:
  explicit SegvRegistration(int index) : index_(index) {}

  int index_;  // Into the handler's table; negative after a move.
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_SEGV_HANDLER_H_
