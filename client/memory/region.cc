#include "client/memory/region.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <utility>

namespace memtide::client {

HostMapping HostMapping::Of(int memory, Bytes size) {
  HostMapping mapping;
  // The daemon lends what several sessions share by descriptors that were opened for reading.
  const bool reads_only = (fcntl(memory, F_GETFL) & O_ACCMODE) == O_RDONLY;
  const int protection = reads_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const base = mmap(nullptr, size.count(), protection, MAP_SHARED | MAP_NORESERVE, memory, 0);
  if (base == MAP_FAILED) return mapping;
  madvise(base, size.count(), MADV_DONTFORK);
  mapping.base_ = static_cast<char*>(base);
  mapping.size_ = size;
  return mapping;
}

HostMapping::HostMapping(HostMapping&& other) noexcept { *this = std::move(other); }

HostMapping& HostMapping::operator=(HostMapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

HostMapping::~HostMapping() {
  if (base_ != nullptr) munmap(base_, size_.count());
}

}  // namespace memtide::client
