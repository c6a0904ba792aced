// MemoryKind: how another process reaches lent memory. MemoryExport: what is passed to it for that.
//
// Value types. The names are those of proto/memtide/v1/common.proto.
#ifndef MEMTIDE_BASE_MEMORY_KIND_H_
#define MEMTIDE_BASE_MEMORY_KIND_H_

#include <cstdint>
#include <string>

#include "base/bytes.h"

namespace memtide {

enum class MemoryKind : uint8_t { kSharedMemory, kCudaDescriptor, kCudaIpc };

struct MemoryExport {
  MemoryKind kind = MemoryKind::kSharedMemory;
  Bytes size;
  int fd = -1;             // -1 for kCudaIpc. The function that returns it documents who owns it.
  std::string ipc_handle;  // Only for kCudaIpc: 64 bytes.
};

}  // namespace memtide

#endif  // MEMTIDE_BASE_MEMORY_KIND_H_
