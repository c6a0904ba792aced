#include "daemon/mover/regions.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {

MemoryExport Region::Export() const {
  if (device != nullptr) return device->Export();
  return {MemoryKind::kSharedMemory, host->size(), host->fd(), ""};
}

void Region::EmptyTouched() const {
  if (!host.has_value() || empty.empty()) return;
  if (host->populated() <= host->size() - slot * empty.size()) return;
  // If the kernel refuses, the next release of a slot tries again.
  for (const uint64_t offset : empty) {
    if (filling.count(offset) == 0) host->Empty(Bytes(offset), slot).IgnoreError();
  }
}

void Regions::Add(RegionId id, std::shared_ptr<Region> region) {
  MutexLock lock(&mutex_);
  MEMTIDE_CHECK(regions_.emplace(id, std::move(region)).second) << "region " << id << " exists";
}

std::shared_ptr<Region> Regions::Remove(RegionId id) {
  MutexLock lock(&mutex_);
  const auto found = regions_.find(id);
  MEMTIDE_CHECK(found != regions_.end()) << "region " << id;
  std::shared_ptr<Region> region = std::move(found->second);
  regions_.erase(found);
  return region;
}

std::shared_ptr<Region> Regions::Find(RegionId id) const {
  MutexLock lock(&mutex_);
  const auto found = regions_.find(id);
  MEMTIDE_CHECK(found != regions_.end()) << "region " << id;
  return found->second;
}

std::vector<std::shared_ptr<Region>> Regions::All() const {
  MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<Region>> regions;
  for (const auto& [id, region] : regions_) regions.push_back(region);
  return regions;
}

std::map<RegionId, std::shared_ptr<Region>> Regions::RemoveAll() {
  MutexLock lock(&mutex_);
  return std::exchange(regions_, {});
}

absl::StatusOr<MemoryExport> Regions::Export(RegionId id) const {
  MutexLock lock(&mutex_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) {
    return absl::NotFoundError(absl::StrCat("region ", id.value(), " is not there"));
  }
  MemoryExport exported = found->second->Export();
  if (exported.fd < 0) return exported;
  // A duplicate stays valid, and the same memory, if the region is dropped before it is sent. One
  // that was opened for reading can be mapped for no more, and its file only by the daemon's user.
  const std::string name = absl::StrCat("/proc/self/fd/", exported.fd);
  exported.fd = found->second->read_only ? open(name.c_str(), O_RDONLY | O_CLOEXEC)
                                         : fcntl(exported.fd, F_DUPFD_CLOEXEC, 0);
  if (exported.fd < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("duplicating the descriptor of region ",
                                                     id.value(), ": ", strerrorname_np(errno)));
  }
  return exported;
}

}  // namespace memtide
