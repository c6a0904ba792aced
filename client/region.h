// Region: memory that a session was lent, and how this process reaches it.
//
// A region's table may let go of it while somebody still maps it: then its memory goes with the
// last of both. Move-only.
#ifndef MEMTIDE_CLIENT_REGION_H_
#define MEMTIDE_CLIENT_REGION_H_

#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/memory_kind.h"
#include "client/descriptor.h"

namespace memtide::client {

// What a region is to the CUDA of this process, once taken in.
class CudaImport {
 public:
  virtual ~CudaImport() = default;
};

struct Region {
  MemoryKind kind = MemoryKind::kSharedMemory;
  Bytes size;
  Descriptor memory;                   // Of CUDA descriptors: until it has been taken in.
  std::string ipc_handle;              // Of kCudaIpc.
  std::unique_ptr<CudaImport> import;  // The CUDA spaces' own.
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_REGION_H_
