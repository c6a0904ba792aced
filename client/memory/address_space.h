// AddressSpace: a range of places, and which chunk of memory is mapped at each of them.
//
// Three implementations:
//   HostSpace (memory/host_space.h)   one range of addresses over shared memory; an access to an
//                                     unmapped place raises a page fault that FaultLoop handles
//   CudaSpace (cuda/cuda_space.h)     one range of GPU addresses; such an access is fatal
//   CudaPointers (same file)          memory by legacy CUDA IPC, at an address that CUDA chooses
//                                     anew for each lease
//
// A place is in one of these states:
//
//   unbound --Bind--> absent --Map--> read --MakeWritable--> write
//           <-Unbind-        <-Unmap----------------------------
//
// Thread safety: all methods may be called from any thread, but no two threads may change the same
// place at the same time; LeaseCache guarantees that. Destroying the space unmaps all places.
#ifndef MEMTIDE_CLIENT_MEMORY_ADDRESS_SPACE_H_
#define MEMTIDE_CLIENT_MEMORY_ADDRESS_SPACE_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "client/memory/place.h"
#include "client/memory/region.h"

namespace memtide::client {

class AddressSpace {
 public:
  struct Options {
    Bytes chunk_size;     // A multiple of 2 MiB; not zero.
    uint32_t places = 0;  // Not zero.
    // Whether a GPU's memory may be mapped and unmapped only while it has no work of this process.
    bool maps_when_idle = false;
  };
  // The device of tensors over these addresses, as DLPack encodes it.
  struct DlDevice {
    int32_t type = 1;  // 1: kDLCPU, 2: kDLCUDA, 12: kDLExtDev, a backend of another library.
    int32_t id = 0;    // The ordinal of the GPU in this process.
  };

  virtual ~AddressSpace() = default;
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  Bytes chunk_size() const { return options_.chunk_size; }
  uint32_t places() const { return options_.places; }
  // The address of place 0; place i is at base() + i * chunk_size(). Null if places have no fixed
  // addresses.
  virtual char* base() const = 0;
  // A place without a fixed address has one only while it is mapped; otherwise null.
  virtual char* address(PlaceId place) const = 0;
  virtual DlDevice device() const { return {}; }

  // Bind: unbound -> absent, as the places hold chunks from now on. Unbind: absent -> unbound; an
  // access is then the program's own segmentation fault.
  virtual absl::Status Bind(PlaceRange range) = 0;
  virtual void Unbind(PlaceRange range) = 0;
  // Map and MakeWritable return UNAVAILABLE if the process has lost the device.
  // absent -> read or write: maps the chunk at `offset` of `region`. Threads blocked on a fault of
  // the place stay blocked until ResumeWaiters.
  virtual absl::Status Map(PlaceId place, Region* region, Bytes offset, Access access) = 0;
  // read -> write. Blocked threads stay blocked until ResumeWaiters. PERMISSION_DENIED: the mapped
  // memory can only be read, so that the chunk must be mapped where it can be written.
  virtual absl::Status MakeWritable(PlaceId place) = 0;
  // Resumes the threads blocked on a fault of this place. Does not block. REQUIRES: the place is
  // mapped for `access`.
  virtual void ResumeWaiters(PlaceId place, Access access) = 0;
  // Ends one use of these places. REQUIRES: the program has launched all work of this use,
  // including work on a GPU, before the call.
  virtual void EndUse(absl::Span<const PlaceId> places) = 0;
  // A fence stands for all work that the program has launched on these addresses so far; IsDone
  // says whether that work is complete. Later fences are not smaller. The work of a CPU is complete
  // when its instructions are, so host memory needs no fence.
  virtual uint64_t RecordFence() { return 0; }
  virtual bool IsDone(uint64_t fence) { return true; }
  // The fence that Unmap of this place waits for.
  virtual uint64_t FenceOf(PlaceId place) const { return 0; }
  // Whether the space wants to know the CUDA streams on which the program launches work: its driver
  // has no event for the work of all streams.
  virtual bool needs_streams() const { return false; }
  // From now on the program launches work on these CUstreams, and on those of earlier calls, only;
  // or, by the second method and at first, on any. REQUIRES: needs_streams().
  virtual void CoverStreams(absl::Span<const uint64_t> streams) {}
  virtual void CoverAllStreams() {}
  // The program begins its next moment: a good time to record what the work so far is waited by.
  virtual void BeginMoment() {}
  // read or write -> absent, once all work launched before the last EndUse is complete.
  // UNAVAILABLE: the process has lost the device, and with it work that should have written the
  // chunk; the place is absent all the same.
  virtual absl::Status Unmap(PlaceId place) = 0;
  // Makes the threads that are blocked on a fault of this place retry their access.
  virtual void Wake(PlaceId place) = 0;

  // A space may keep the mapping of an absent place for the next lease of the same region. Forget
  // ends all mappings of the region. REQUIRES: no lease is in the region.
  virtual void Forget(const Region& region) {}
  // The program ends an iteration, or does something that it has not done before: what is absent
  // then stays inaccessible until two iterations have ended.
  virtual void EndIteration() {}
  virtual void Protect() {}
  // The iterations in which no absent place was accessible.
  virtual uint64_t protected_iterations() const { return 0; }
  // How often a place was mapped by a call of the system or the driver.
  uint64_t maps() const { return maps_.load(std::memory_order_relaxed); }

 protected:
  explicit AddressSpace(const Options& options) : options_(options) {}
  void CountMap() { maps_.fetch_add(1, std::memory_order_relaxed); }

 private:
  const Options options_;
  std::atomic<uint64_t> maps_{0};
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_ADDRESS_SPACE_H_
