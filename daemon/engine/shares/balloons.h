// Balloons: host slots whose pages the machine has while it is short of memory (memory/balloon.cc).
// Engine-internal.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_SHARES_BALLOONS_H_
#define MEMTIDE_DAEMON_ENGINE_SHARES_BALLOONS_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/types/optional.h"
#include "daemon/engine/shares/share_pools.h"

namespace memtide {

class Balloons {
 public:
  // The growth of the sessions' own host memory that is expected of each job.
  using Rises = std::map<JobId, Bytes>;

  explicit Balloons(SharePools& pools) : pools_(pools) {}

  // Inflates and deflates all balloons, so that the machine keeps `reserve`.
  SharePools::Changes BalanceBalloons(Bytes available, Bytes reserve, const Rises& rises);
  // Deflates for `waiting` chunks that wait for slots where no copy can leave but those of
  // `evicting` victims.
  absl::optional<SharePools::Change> DeflateFor(Share& share, size_t waiting, size_t evicting);
  // Gives a free slot beyond the size of the pool to the machine. REQUIRES: a slot is free.
  SlotNumber ReleaseSlot(Share& share);
  void SlotReleased(Share& share, SlotNumber slot);
  // The released slot that is populated next, one at a time.
  absl::optional<SlotNumber> PopulateSlot(Share& share);
  void SlotPopulated(Share& share, SlotNumber slot);
  // The machine has no memory for the slot: the balloon has all that is missing.
  SharePools::Change PopulateFailed(Share& share, SlotNumber slot);

 private:
  SharePools::Change Inflate(Share& share, uint32_t slots);
  SharePools::Change Deflate(Share& share, uint32_t slots);
  // Inflates where the machine lacks memory, and deflates where it has more than enough.
  absl::optional<SharePools::Change> AdjustBalloon(JobShares& job, Bytes reserve, Bytes rise,
                                                   Bytes* available);
  static uint32_t Inflatable(const JobShares& job);

  SharePools& pools_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARES_BALLOONS_H_
