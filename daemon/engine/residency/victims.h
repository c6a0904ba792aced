// Victims: which copies leave a tier next, and which leases are revoked first. Engine-internal.
//
// A copy that may leave stands in the eviction queue of its job and tier, and a pinned one in the
// queue of pinned copies, by what their leaving costs and when their content is used next.
#ifndef MEMTIDE_DAEMON_ENGINE_RESIDENCY_VICTIMS_H_
#define MEMTIDE_DAEMON_ENGINE_RESIDENCY_VICTIMS_H_

#include <cstdint>

#include "absl/types/optional.h"
#include "daemon/engine/core.h"

namespace memtide {

class Victims {
 public:
  explicit Victims(Core& core) : core_(core) {}

  // The chunk's copies, pins or pending movements have changed.
  void Update(ChunkIndex index);
  void Update(ChunkIndex index, Tier tier);
  // Enters the chunk into the queues again, with its present cost and next use.
  void Rank(ChunkIndex index);
  // The copy that may leave for a chunk with a use at `time`. Copies with a sooner use stay.
  // Whether the plan keeps the copy until the next use; nullopt: it does not cover the chunk.
  absl::optional<bool> PlannedToStay(const Chunk& chunk, Tier tier) const;
  // The chunk that has that slot of the tier, which is a planned one; kNoChunk: none has it.
  ChunkIndex InSlot(const Job& job, Tier tier, SlotNumber slot) const;
  absl::optional<Candidate> After(const Job& job, Tier tier, VirtualTime time) const;

 private:
  VirtualTime RankOf(const Chunk& chunk, Tier tier);
  EvictionCost CostOf(const Chunk& chunk, Tier tier) const;

  Core& core_;
  uint64_t rankings_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_RESIDENCY_VICTIMS_H_
