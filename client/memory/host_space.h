// HostSpace: places at fixed addresses over shared memory, with page faults for unmapped places.
//
// A place in each of its states is
//   kUnbound        inaccessible; an access is the program's own segmentation fault
//   kAbsent         anonymous memory registered with userfaultfd; an access is an event on uffd()
//   kRead, kWrite   a slot of shared memory
//
// A write to a place in state kRead raises SIGSEGV; the signal handler reads the state from
// page_state() without a lock (decision 6). A system call that writes there gets EFAULT, because
// the kernel raises no signal for its own accesses.
//
// A forked child inherits nothing of the space: each mapping is MADV_DONTFORK.
//
// Costs by client/client_benchmark.cc, in CPU time on a busy 2-core virtual machine, of a slot
// whose pages are populated (Unmap additionally waits 10 to 100 us for a fault thread to read the
// remap event):
//   huge pages    Map 14 us for 4 MiB,  76 us for 64 MiB;   Unmap 20 us and 40 us
//   4 KiB pages   Map 0.4 ms for 4 MiB, 7.7 ms for 64 MiB;  Unmap 0.16 ms and 4.2 ms
#ifndef MEMTIDE_CLIENT_MEMORY_HOST_SPACE_H_
#define MEMTIDE_CLIENT_MEMORY_HOST_SPACE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/memory/address_space.h"
#include "client/memory/descriptor.h"

namespace memtide::client {

// The state of a place; see above. The value of a futex word.
enum class PageState : uint32_t { kUnbound, kAbsent, kRead, kWrite };

class HostSpace : public AddressSpace {
 public:
  // RESOURCE_EXHAUSTED: the addresses cannot be reserved (ulimit -v). UNIMPLEMENTED: the kernel
  // offers no userfaultfd to this process.
  static absl::StatusOr<std::unique_ptr<HostSpace>> Reserve(const Options& options);
  ~HostSpace() override;

  char* base() const override { return base_; }
  char* address(PlaceId place) const override {
    return base_ + place.value() * chunk_size().count();
  }
  bool Contains(const void* address) const;
  // REQUIRES: Contains(address).
  PlaceId place(const void* address) const;

  // The userfaultfd that reports accesses to absent places.
  int uffd() const { return uffd_.get(); }
  // Whether accesses by system calls are reported too. If not, they fail with EFAULT.
  bool kernel_faults() const { return kernel_faults_; }

  absl::Status Bind(PlaceRange range) override;
  void Unbind(PlaceRange range) override;
  absl::Status Map(PlaceId place, Region* region, Bytes offset, Access access) override;
  absl::Status MakeWritable(PlaceId place) override;
  void ResumeWaiters(PlaceId place, Access access) override;
  // A CPU has no work in flight after its instructions.
  void EndUse(absl::Span<const PlaceId> places) override {}
  // Atomic: a concurrent access either reaches the slot or becomes an event. When it returns, no
  // thread of this process can reach the slot. It blocks until the remap event has been read from
  // uffd(), so REQUIRES: another thread reads uffd(), as FaultLoop does.
  absl::Status Unmap(PlaceId place) override;
  void Wake(PlaceId place) override;

  // Async-signal-safe.
  PageState page_state(PlaceId place) const;
  // Blocks while the place is in `state`; may also return early. Async-signal-safe.
  void WaitWhile(PlaceId place, PageState state);

 private:
  HostSpace(char* base, const Options& options, Descriptor uffd, bool kernel_faults);
  void SetPageState(PlaceId place, PageState state);
  // Registers anonymous memory with uffd() and makes it accessible.
  absl::Status RegisterForFaults(char* at, size_t size);

  char* const base_;
  const Descriptor uffd_;
  const bool kernel_faults_;
  std::unique_ptr<std::atomic<uint32_t>[]> page_states_;
  std::atomic<uint32_t> waiting_{0};  // Threads in WaitWhile; at zero SetPageState skips the wake.
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_HOST_SPACE_H_
