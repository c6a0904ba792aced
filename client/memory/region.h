// Region: memory that the daemon lent to this session, and how this process reaches it.
//
// RegionTable and the mappings of a region share its ownership: the memory is released when the
// table has removed the region and no place maps it any more. Move-only.
#ifndef MEMTIDE_CLIENT_MEMORY_REGION_H_
#define MEMTIDE_CLIENT_MEMORY_REGION_H_

#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/memory_kind.h"
#include "client/memory/descriptor.h"

namespace memtide::client {

// A region as this process's CUDA imported it; destroying it undoes the import.
class CudaImport {
 public:
  virtual ~CudaImport() = default;
};

struct Region {
  MemoryKind kind = MemoryKind::kSharedMemory;
  Bytes size;
  Descriptor memory;       // kCudaDescriptor: invalid once imported. kCudaIpc: never valid.
  std::string ipc_handle;  // Only for kCudaIpc: 64 bytes.
  std::unique_ptr<CudaImport> import;  // Null until a CUDA address space maps the region.
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_REGION_H_
