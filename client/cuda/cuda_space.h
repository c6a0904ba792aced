// Address spaces on a GPU: the daemon's memory, mapped into this process by CUDA.
//
// CudaSpace: one range of GPU addresses (cuMemAddressReserve) into which slots are mapped whole, so
// that a chunk's address never changes. CudaPointers: memory by legacy IPC handles
// (cuIpcOpenMemHandle) at addresses that CUDA chooses, for programs that want a plain pointer and
// for drivers without descriptors.
//
// A GPU has no page faults that could be handled (decision 8): a kernel that accesses an unmapped
// place ends the process's CUDA context. So unmapping must wait for all work that may use the
// place:
//   1. The program launches its work between Acquire and Release of a chunk, on any stream.
//   2. Release calls EndUse before the lease counts as idle. EndUse notes the open epoch
//      (cuda_context.h). The event of that epoch is recorded later, and so includes all work of the
//      context up to EndUse, on every stream (cuCtxRecordEvent; with drivers before CUDA 12.5, on
//      those that CoverStreams has named, or step 3 waits for the whole context instead).
//   3. Unmap waits for the event of that epoch or a later one, then unmaps, or keeps the mapping
//      for the next lease of the same slot (kept_mappings.h). Only then does the lease return to
//      the daemon, whose copy therefore finds every byte written, and whose next tenant of the slot
//      is not disturbed.
//   4. The daemon waits for its own copies before it grants a lease, and mapping is complete before
//      Acquire returns; so work launched after Acquire finds the bytes.
//   5. If the context is lost, the work that it still had is never done, and Unmap says so. The
//      lease must not return then, as if the chunk were written: LeaseClient ends the session, and
//      the daemon marks the chunks of its write leases as torn.
// Work launched outside of step 1 is an error of the program, like an access to freed memory.
//
// Places are mapped for reading and writing, whatever the lease permits (decision 21): to change
// the access of a mapping CUDA unmaps it for a moment, and kernels may be reading it. With the
// environment variable MEMTIDE_PROTECT=1, a tool for debugging, CudaSpace maps leases for reading
// read-only, so that a kernel's write which was not acquired ends the context; making one writable
// then waits for all work of the context.
//
// Where a GPU does not bear that mappings change while it has work of the process
// (Options::maps_when_idle), mapping and unmapping wait for all of it.
//
// In builds without the CUDA toolkit all functions return UNIMPLEMENTED.
#ifndef MEMTIDE_CLIENT_CUDA_CUDA_SPACE_H_
#define MEMTIDE_CLIENT_CUDA_CUDA_SPACE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/memory/address_space.h"

namespace memtide::client {

// `uuid`: the UUID of the daemon's GPU, 16 bytes. FAILED_PRECONDITION: this process cannot use that
// GPU; the message names the reason (CUDA_VISIBLE_DEVICES hides it, no driver, mapping refused).
// RESOURCE_EXHAUSTED: the addresses cannot be reserved.
absl::StatusOr<std::unique_ptr<AddressSpace>> ReserveCudaSpace(const AddressSpace::Options& options,
                                                               const std::string& uuid);
absl::StatusOr<std::unique_ptr<AddressSpace>> OpenCudaPointers(const AddressSpace::Options& options,
                                                               const std::string& uuid);

// The UUID, 16 bytes, of the GPU with this number in this process. Creates no context.
// FAILED_PRECONDITION: this process sees no such GPU.
absl::StatusOr<std::string> CudaDeviceUuid(uint32_t ordinal);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CUDA_CUDA_SPACE_H_
