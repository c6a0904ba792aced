// Places on a GPU: memory of the daemon's, mapped into this process by CUDA.
//
// CudaSpace: one range of GPU addresses (cuMemAddressReserve), into which slots are mapped whole
// and out of which they are taken again; a chunk's address never changes. CudaPointers: memory by
// legacy handles (cudaIpcOpenMemHandle), at addresses that CUDA chooses, for programs that ask for
// a plain pointer and for drivers without descriptors.
//
// A GPU has no faults that could be answered: a kernel that touches what is not mapped, or writes
// to what is mapped for reading, ends the process's context. So unmapping waits for whatever may
// still use the place, and the order is this:
//   1  the program launches its work between Acquire and Release of a chunk, on any stream;
//   2  Release comes to EndUse before the lease counts as idle, and there an event is recorded that
//      holds all work of the context so far, of every stream (cuCtxRecordEvent; with drivers before
//      CUDA 12.5 the whole device is waited for in 3 instead);
//   3  Unmap waits for that event, then unmaps; only then does the lease go back to the daemon,
//   whose
//      copy out therefore finds every byte written, and whose next tenant of the slot disturbs
//      nobody;
//   4  the daemon waits for its copies before it grants a lease, and mapping is complete when Map
//      returns, before Acquire does; so work launched after Acquire finds the bytes.
// What a program launches outside of 1 is its own fault, as a touch of freed memory is.
//
// In builds without the CUDA toolkit both functions return UNIMPLEMENTED.
#ifndef MEMTIDE_CLIENT_CUDA_SPACE_H_
#define MEMTIDE_CLIENT_CUDA_SPACE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/address_space.h"

namespace memtide::client {

// `uuid`: the 16 bytes that name the daemon's GPU. FAILED_PRECONDITION: this process cannot use it,
// and why (hidden by CUDA_VISIBLE_DEVICES, no driver, mapping refused). RESOURCE_EXHAUSTED: the
// addresses cannot be had.
absl::StatusOr<std::unique_ptr<AddressSpace>> ReserveCudaSpace(const AddressSpace::Options& options,
                                                               const std::string& uuid);
absl::StatusOr<std::unique_ptr<AddressSpace>> OpenCudaPointers(const AddressSpace::Options& options,
                                                               const std::string& uuid);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CUDA_SPACE_H_
