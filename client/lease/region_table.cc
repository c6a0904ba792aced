#include "client/lease/region_table.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace memtide::client {
namespace {

// A mapping beyond the end of the file would raise SIGBUS at some later access.
bool HoldsBytes(int fd, Bytes size) {
  struct stat status;
  return fstat(fd, &status) == 0 && static_cast<uint64_t>(status.st_size) >= size.count();
}

}  // namespace

void RegionTable::Add(RegionId id, Region region) {
  // A size of zero makes Find refuse every lease in the region.
  if (region.kind == MemoryKind::kSharedMemory && !HoldsBytes(region.memory.get(), region.size)) {
    region.size = Bytes(0);
  }
  {
    const MutexLock lock(&mutex_);
    regions_.try_emplace(id, std::make_shared<Region>(std::move(region)));
  }
  changed_.SignalAll();
}

std::shared_ptr<Region> RegionTable::Remove(RegionId id) {
  const MutexLock lock(&mutex_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return nullptr;
  std::shared_ptr<Region> removed = std::move(found->second);
  regions_.erase(found);
  return removed;
}

void RegionTable::RemoveAll() {
  std::map<RegionId, std::shared_ptr<Region>> ended;  // Destroyed after `lock`.
  const MutexLock lock(&mutex_);
  ended.swap(regions_);
}

void RegionTable::Close() {
  {
    const MutexLock lock(&mutex_);
    closed_ = true;
  }
  changed_.SignalAll();
}

absl::StatusOr<std::shared_ptr<Region>> RegionTable::Find(const Lease& lease, Bytes chunk_size) {
  const Instant deadline = Now() + kArrivalTimeout;
  const MutexLock lock(&mutex_);
  while (regions_.count(lease.region) == 0) {
    if (closed_) return absl::UnavailableError("the session ended");
    const Duration left = deadline - Now();
    if (left <= Duration::zero()) {
      return absl::InternalError(
          absl::StrCat("the daemon's region ", lease.region.value(), " did not arrive"));
    }
    changed_.WaitFor(&mutex_, left);
  }
  const std::shared_ptr<Region>& region = regions_.at(lease.region);
  const absl::optional<Bytes> end = CheckedAdd(lease.offset, chunk_size);
  // mmap takes offsets of whole pages only.
  if (!end.has_value() || *end > region->size || !lease.offset.IsMultipleOf(KiB(4))) {
    return absl::InternalError(absl::StrCat(
        "the daemon lent chunk ", lease.chunk.value(), " at byte ", lease.offset.count(),
        " of region ", lease.region.value(), ", which has ", region->size.count(), " bytes"));
  }
  return region;
}

absl::StatusOr<RegionTable::Address> RegionTable::Map(const Lease& lease, Bytes chunk_size) {
  Address address;
  MEMTIDE_ASSIGN_OR_RETURN(address.region, Find(lease, chunk_size));
  Region& region = *address.region;
  const MutexLock lock(&mutex_);
  if (region.kind != MemoryKind::kSharedMemory) {
    return absl::InternalError(
        absl::StrCat("the daemon's region ", lease.region.value(), " is not host memory"));
  }
  if (region.mapping.base() == nullptr) {
    region.mapping = HostMapping::Of(region.memory.get(), region.size);
  }
  if (region.mapping.base() == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", FormatBytes(region.size),
                                                     " of host memory: ", strerror(errno)));
  }
  address.at = region.mapping.base() + lease.offset.count();
  return address;
}

}  // namespace memtide::client
