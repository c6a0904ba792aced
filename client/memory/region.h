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

// A host region as it is mapped in this process, whole; destroying it unmaps the region.
class HostMapping {
 public:
  HostMapping() = default;
  // Null on failure; errno says why. Writable if the descriptor is. A forked child does not have
  // the mapping.
  static HostMapping Of(int memory, Bytes size);
  HostMapping(HostMapping&& other) noexcept;
  HostMapping& operator=(HostMapping&& other) noexcept;
  ~HostMapping();

  char* base() const { return base_; }

 private:
  char* base_ = nullptr;
  Bytes size_;
};

struct Region {
  MemoryKind kind = MemoryKind::kSharedMemory;
  Bytes size;
  Descriptor memory;       // kCudaDescriptor: invalid once imported. kCudaIpc: never valid.
  std::string ipc_handle;  // Only for kCudaIpc: 64 bytes.
  std::unique_ptr<CudaImport> import;  // Null until a CUDA address space maps the region.
  HostMapping mapping;                 // Null until RegionTable::Address.
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_REGION_H_
