// Records: what a restarted daemon must know to restore the jobs of the previous one.
//
// Plain values. The engine records each job with a time to live, with all of its chunks. The newest
// record of each, and the memory that they name, make a Restore event for a new engine. Device
// memory ends with the daemon, so no record names any.
#ifndef MEMTIDE_DAEMON_ENGINE_INTERFACE_RECORD_H_
#define MEMTIDE_DAEMON_ENGINE_INTERFACE_RECORD_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "base/content_sums.h"
#include "base/memory_kind.h"
#include "daemon/engine/interface/types.h"

namespace memtide {

// The last commit of one rank.
struct RankRecord {
  uint64_t committed_step = 0;
  std::string manifest;
};

struct JobRecord {
  JobId job;
  uint32_t uid = 0;
  // The user's groups are not recorded: the new daemon looks them up.
  std::vector<uint32_t> groups;
  std::string name;
  Bytes chunk_size;
  Duration time_to_live{0};
  // By tier; zero: none. The limit of an elastic share.
  std::array<Bytes, kTiers> shares;
  std::array<uint32_t, kTiers> guaranteed{};  // Slots by tier; zero: the share is fixed.
  uint32_t device = 0;                        // Lends the device share.
  MemoryKind device_memory = MemoryKind::kSharedMemory;
  // The segments behind the host and SSD slots, in their order. Each has slots_per_region or
  // slots_per_store slots; the last one may have fewer.
  std::vector<RegionId> regions;
  std::vector<StoreId> stores;
  // How each of the stores is striped over the SSD directories. Filled in where the record is
  // written, as the engine does not know; empty: evenly.
  std::vector<std::vector<uint32_t>> store_stripes;
  uint32_t slots_per_region = 0, slots_per_store = 0;
  uint64_t committed_step = 0;
  std::string manifest;
  std::vector<RankRecord> ranks;  // By rank; empty: the job is not one of ranks.
  uint32_t durable_every = 0;     // As in OpenCall.
};

// The size of the host region or SSD store number `index` of a job.
inline Bytes SizeOfSegment(const JobRecord& job, Tier tier, size_t index) {
  const uint64_t each = tier == Tier::kHost ? job.slots_per_region : job.slots_per_store;
  const uint64_t slots = job.shares[static_cast<int>(tier)] / job.chunk_size;
  const uint64_t before = std::min(slots, each * index);
  return job.chunk_size * std::min(each, slots - before);
}

struct ChunkRecord {
  // A slot that outlives the daemon, and whether it has the current content.
  struct Copy {
    uint32_t slot = 0;
    bool valid = false;
    ContentSums sums;        // On SSD: those of the content, if they are known and it is valid.
    bool unflushed = false;  // On SSD: a flush has failed since it was written.
  };

  ChunkId chunk;
  JobId job;
  ChunkKind kind = ChunkKind::kOther;
  Version version;
  absl::optional<Copy> host, ssd;  // None: no slot.
  // The content is lost if the daemon ends now: a session writes the chunk, or its only copy is on
  // the device.
  bool torn = false;
  std::vector<RankName> names;  // All its ids, in a job of ranks.
};

// A Snapshot is a durable job on stable storage: all of it at one moment, as records that name no
// host memory. Gradients and shadow chunks are recorded as lost: they are not worth a write.
struct Snapshot {
  JobRecord job;
  std::vector<ChunkRecord> chunks;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_INTERFACE_RECORD_H_
