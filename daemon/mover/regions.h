// Regions: the memory that clients map, by region id. Thread-safe.
#ifndef MEMTIDE_DAEMON_MOVER_REGIONS_H_
#define MEMTIDE_DAEMON_MOVER_REGIONS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/ids.h"
#include "base/memory_kind.h"
#include "base/mutex.h"
#include "base/shared_memory.h"
#include "daemon/device/device.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

// One region: memory of the host or of one device, never both. Freed with its last holder.
struct Region {
  MemoryExport Export() const;
  Bytes size() const { return device != nullptr ? device->size() : host->size(); }

  absl::optional<SharedMemory> host;
  std::unique_ptr<DeviceMemory> device;
  uint32_t device_number = 0;
  size_t host_node = 0;  // The Mover's threads that work on host memory, by number.
  Bytes slot;
  bool read_only = false;  // Clients may only read it.
  // Empties again what clients have touched in `empty`: they may have the whole region mapped, and
  // what they populate there is in no account.
  void EmptyTouched() const;

  // Offsets of a host region's slots without memory. Used by the memory thread, and after its end.
  std::set<uint64_t> empty;
  std::set<uint64_t> filling;  // Slots of `empty` that get memory, piece by piece.
};

class Regions {
 public:
  // REQUIRES: there is no region `id`.
  void Add(RegionId id, std::shared_ptr<Region> region);
  // REQUIRES (both): there is a region `id`.
  std::shared_ptr<Region> Remove(RegionId id);
  std::shared_ptr<Region> Find(RegionId id) const;
  std::vector<std::shared_ptr<Region>> All() const;
  // Removes and returns every region.
  std::map<RegionId, std::shared_ptr<Region>> RemoveAll();

  // The descriptor or IPC handle with which a client maps the region. The caller owns the former.
  // NOT_FOUND if there is no region `id`.
  absl::StatusOr<MemoryExport> Export(RegionId id) const;

 private:
  mutable Mutex mutex_;
  std::map<RegionId, std::shared_ptr<Region>> regions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_MOVER_REGIONS_H_
