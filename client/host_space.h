// HostSpace: places at fixed addresses over shared memory, and touches of those that are not
// mapped.
//
//   shut    inaccessible; a touch is the program's own segmentation fault
//   absent  anonymous memory registered with userfaultfd; a touch becomes an event on uffd()
//   read, write   a slot of shared memory
//
// A write to a place mapped for reading raises SIGSEGV; shown() tells a signal handler so, without
// a lock. (A system call that writes there gets EFAULT: nothing can be put in its way.)
//
// Nothing here is inherited by a forked child: each mapping is MADV_DONTFORK.
//
// Cost by client/client_benchmark.cc, CPU time on a busy 2-core virtual machine, of a slot whose
// pages are there (Unmap waits besides for a fault thread to read the move: 10 to 100 us):
//   huge pages    Map 14 us of 4 MiB,  76 us of 64 MiB;   Unmap 20 us and 40 us
//   4 KiB pages   Map 0.4 ms of 4 MiB, 7.7 ms of 64 MiB;  Unmap 0.16 ms and 4.2 ms
#ifndef MEMTIDE_CLIENT_HOST_SPACE_H_
#define MEMTIDE_CLIENT_HOST_SPACE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/address_space.h"
#include "client/descriptor.h"

namespace memtide::client {

// What a place shows to whoever touches it. The values of a futex word.
enum class Shown : uint32_t { kShut, kAbsent, kRead, kWrite };

class HostSpace : public AddressSpace {
 public:
  // RESOURCE_EXHAUSTED: the addresses cannot be had (ulimit -v). UNIMPLEMENTED: no userfaultfd.
  static absl::StatusOr<std::unique_ptr<HostSpace>> Reserve(const Options& options);
  ~HostSpace() override;

  char* base() const override { return base_; }
  char* address(PlaceId place) const override {
    return base_ + place.value() * chunk_size().count();
  }
  bool Contains(const void* address) const;
  // REQUIRES: Contains(address).
  PlaceId place(const void* address) const;

  // Where touches of absent places are read from.
  int uffd() const { return uffd_.get(); }
  // Whether touches by system calls become events too, or fail with EFAULT.
  bool kernel_faults() const { return kernel_faults_; }

  absl::Status Open(PlaceRange range) override;
  void Shut(PlaceRange range) override;
  absl::Status Map(PlaceId place, Region* region, Bytes offset, Access access) override;
  absl::Status MakeWritable(PlaceId place) override;
  void LetOn(PlaceId place, Access access) override;
  // Programs on CPUs do nothing later.
  absl::Status EndUse(absl::Span<const PlaceId> places) override { return absl::OkStatus(); }
  // In one step: a touch finds either the slot or becomes an event. Once it returns, no thread of
  // this process sees the slot. Waits until the move has been read from uffd(), so REQUIRES:
  // another thread reads it (FaultLoop does).
  void Unmap(PlaceId place) override;
  void Wake(PlaceId place) override;

  // Async-signal-safe.
  Shown shown(PlaceId place) const;
  // Returns when the place shows something else than `shown`, or at any time. Async-signal-safe.
  void WaitWhile(PlaceId place, Shown shown);

 private:
  HostSpace(char* base, const Options& options, Descriptor uffd, bool kernel_faults);
  void Show(PlaceId place, Shown shown);
  absl::Status Watch(char* at, size_t size);

  char* const base_;
  const Descriptor uffd_;
  const bool kernel_faults_;
  std::unique_ptr<std::atomic<uint32_t>[]> shown_;
  std::atomic<uint32_t> waiting_{0};  // Threads in WaitWhile: without any, Show wakes nobody.
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_HOST_SPACE_H_
