// PlacementPolicy: which copies are evicted first, and whether the engine acts on predictions
// before a slot is needed.
//
// The daemon has PredictivePolicy. Replays compare it with the others, which evict on demand only
// and never prefetch. Each is in a file of its name; an override says how it differs from eviction
// in the order of RankOf alone.
//
// Ownership: a policy has no state. The functions below return one object each, which is never
// destroyed.
//
// Thread safety: immutable. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_POLICY_PLACEMENT_POLICY_H_
#define MEMTIDE_DAEMON_POLICY_PLACEMENT_POLICY_H_

#include <cstdint>

#include "absl/types/optional.h"
#include "daemon/policy/access_predictor.h"
#include "daemon/policy/virtual_time.h"

namespace memtide {

class PlacementPolicy {
 public:
  // The properties of a copy that its rank depends on.
  struct Copy {
    absl::optional<VirtualTime> next_use;  // nullopt: nothing is predicted for the job.
    uint64_t made = 0;                     // The number of copies made until this one was.
    uint64_t ranked = 0;                   // The number of calls of RankOf until this one.
  };

  // The place of a copy in the eviction queue: among copies of one cost, the largest goes first.
  virtual VirtualTime RankOf(const Copy& copy) const = 0;
  // Whether a copy is ranked again when the prediction of its next use changes.
  virtual bool follows_predictions() const { return false; }
  // How much farther away the next use of a dirty copy must be than that of a clean one for the
  // dirty copy to go first. 1: evictions are not weighed by what they cost.
  virtual uint32_t dirty_weight() const { return 1; }
  // Whether content that is freed or replaced before it is read costs no write-back.
  virtual bool discounts_dead_content() const { return false; }
  // Whether the engine plans residency, prefetches, writes back early and sends eviction hints.
  virtual bool works_ahead() const { return false; }

 protected:
  ~PlacementPolicy() = default;
  // The rank of a copy that the `nth` event put in its place: the earliest goes first. Such ranks
  // are later than any predicted use.
  static constexpr VirtualTime OldestFirst(uint64_t nth) {
    return VirtualTime(2 * AccessPredictor::kUnknown.value() - nth);
  }
  // The rank by the predicted next use. Without a prediction the least recently used copy goes
  // first.
  static constexpr VirtualTime FarthestFirst(const Copy& copy) {
    return copy.next_use.has_value() ? *copy.next_use : OldestFirst(copy.ranked);
  }
};

// The daemon's: the copy with the farthest predicted use, weighed by what its eviction costs.
const PlacementPolicy& PredictivePolicy();
// The copy with the farthest predicted use (Belady, IBM Systems Journal 1966).
const PlacementPolicy& BeladyPolicy();
// The copy that has been evictable for the longest time, so the least recently used one.
const PlacementPolicy& LruPolicy();
// The copy that was made first.
const PlacementPolicy& FifoPolicy();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_PLACEMENT_POLICY_H_
