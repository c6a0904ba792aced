// AddressSpace: places of one chunk each, and what is mapped at each of them.
//
// Three kinds. HostSpace (host_space.h): one range of addresses over shared memory, where a touch
// of what is not mapped becomes an event. CudaSpace (cuda_space.h): one range of GPU addresses,
// where such a touch is fatal. CudaPointers (likewise): memory by legacy CUDA IPC, at addresses
// that CUDA chooses anew for each lease.
//
// The caller sees to it that no two threads change the same place at once (LeaseCache does); all
// else may be called from any thread. The mappings end with the object.
#ifndef MEMTIDE_CLIENT_ADDRESS_SPACE_H_
#define MEMTIDE_CLIENT_ADDRESS_SPACE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "client/region.h"
#include "client/types.h"

namespace memtide::client {

class AddressSpace {
 public:
  struct Options {
    Bytes chunk_size;  // A multiple of 2 MiB, not zero.
    uint32_t places = 0;
  };
  // How tensors over the addresses are named in DLPack: what memory, and which one of it.
  struct DlDevice {
    int32_t type = 1;  // kDLCPU. 2: kDLCUDA.
    int32_t id = 0;
  };

  virtual ~AddressSpace() = default;
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  Bytes chunk_size() const { return options_.chunk_size; }
  uint32_t places() const { return options_.places; }
  // Where place 0 begins, the others following; null where places have no fixed addresses.
  virtual char* base() const = 0;
  // Of a place without a fixed address: while it is mapped.
  virtual char* address(PlaceId place) const = 0;
  virtual DlDevice device() const { return {}; }

  // The place holds a chunk from now on: shut -> absent. And absent -> shut.
  virtual absl::Status Open(PlaceRange range) = 0;
  virtual void Shut(PlaceRange range) = 0;
  // absent -> read or write: the chunk at `offset` of `region`. Who waits is not yet let on.
  virtual absl::Status Map(PlaceId place, Region* region, Bytes offset, Access access) = 0;
  // read -> write. Who waits is not yet let on.
  virtual absl::Status MakeWritable(PlaceId place) = 0;
  // Lets those on who wait for a place that has been mapped for `access`. Does not block.
  virtual void LetOn(PlaceId place, Access access) = 0;
  // A use of these places ends: what the program began with them, also on a GPU, it began before.
  // The use has ended also where this fails, and Unmap waits for it all the same.
  virtual absl::Status EndUse(absl::Span<const PlaceId> places) = 0;
  // A number for all work that the program has begun on these addresses so far, and whether that
  // work is done. Programs on CPUs do nothing later.
  virtual uint64_t BegunSoFar() { return 0; }
  virtual bool IsDone(uint64_t work) { return true; }
  // read or write -> absent, when all that was begun before the last EndUse is done.
  virtual void Unmap(PlaceId place) = 0;
  // Lets those retry who touched the place while it was absent.
  virtual void Wake(PlaceId place) = 0;

 protected:
  explicit AddressSpace(const Options& options) : options_(options) {}

 private:
  const Options options_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_ADDRESS_SPACE_H_
