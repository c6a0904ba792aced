// Records: what a daemon that is started again must know to take up the jobs of the one before.
//
// Plain values. Jobs with a time to live are recorded, with all of their chunks; whoever keeps the
// newest record of each, and the memory that they name, can give both to a new engine (Restore).
// Device memory goes with the daemon, so no record names any.
#ifndef MEMTIDE_DAEMON_ENGINE_RECORD_H_
#define MEMTIDE_DAEMON_ENGINE_RECORD_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "base/memory_kind.h"
#include "daemon/engine/types.h"

namespace memtide {

struct JobRecord {
  JobId job;
  uint32_t uid = 0;
  std::string name;
  Bytes chunk_size;
  Duration time_to_live{0};
  std::array<Bytes, kTiers>
      shares;  // By tier; zero: none. Elastic ones: the most that they may be.
  std::array<uint32_t, kTiers> claims{};  // Slots; zero: not elastic.
  MemoryKind device_memory = MemoryKind::kSharedMemory;
  // The memory behind the host and SSD slots, in their order: each part has so many slots, but for
  // the last one, which may have fewer.
  std::vector<RegionId> regions;
  std::vector<StoreId> stores;
  uint32_t slots_per_region = 0, slots_per_store = 0;
  uint64_t published_step = 0;
  std::string note;
};

// The size of the host region or SSD store number `index` of a job.
inline Bytes SizeOfPart(const JobRecord& job, Tier tier, size_t index) {
  const uint64_t each = tier == Tier::kHost ? job.slots_per_region : job.slots_per_store;
  const uint64_t slots = job.shares[static_cast<int>(tier)] / job.chunk_size;
  const uint64_t before = std::min(slots, each * index);
  return job.chunk_size * std::min(each, slots - before);
}

struct ChunkRecord {
  // A copy that outlives the daemon: its slot, and whether the chunk's content is there.
  struct Copy {
    uint32_t slot = 0;
    bool valid = false;
  };

  ChunkId chunk;
  JobId job;
  ChunkKind kind = ChunkKind::kOther;
  Version version;
  absl::optional<Copy> host, ssd;  // None: no slot.
  // What it held will not be there: somebody writes it just now, or it is on the device alone.
  bool torn = false;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_RECORD_H_
