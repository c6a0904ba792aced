// Share: what one job is lent of one pool: how many slots, the segments behind them, and which of
// them the balloon has. Engine-internal.
//
// A segment is a region (device and host) or a store (SSD), made when its slots are first needed.
// Slot n is in segment n / slots_per_segment(). Where by_slot(), each segment is one slot, and goes
// back while the job runs.
//
// The engine takes slots and quarantines them. All else is changed by the ShareLedger alone
// (share_ledger.h), which charges the share for what exists.
//
// Ownership: a Share owns the pool of its slots, and must outlive them.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_SHARES_SHARE_H_
#define MEMTIDE_DAEMON_ENGINE_SHARES_SHARE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/types/optional.h"
#include "base/count.h"
#include "daemon/engine/interface/types.h"
#include "daemon/pool/slot_pool.h"

namespace memtide {

// No segment has this number.
inline constexpr uint32_t kNoSegment = 0;

// How many times `b` is begun in `a`.
inline uint32_t CeilDiv(Bytes a, Bytes b) {
  return static_cast<uint32_t>(a / b + (a.IsMultipleOf(b) ? 0 : 1));
}

class Share {
 public:
  // A segment has this size, so that a small job starts at once and a large one does not touch
  // memory that it may never need. A segment of larger chunks holds one chunk.
  static constexpr Bytes kSegmentSize = MiB(256);

  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  JobId job() const { return job_; }
  Pool pool() const { return pool_; }
  Tier tier() const { return pool_.tier; }
  Bytes chunk_size() const { return chunk_size_; }

  // False: the job has no memory of this pool.
  bool exists() const { return slots_.has_value(); }
  // The target of an elastic share follows the needs of this and other jobs between `guaranteed`,
  // which no other job gets, and `limit`.
  bool is_elastic() const { return guaranteed_ > 0; }
  bool by_slot() const { return by_slot_; }
  // The pool is charged for whole chunks, with slots that are to be given back.
  Bytes bytes() const { return bytes_; }
  // The slots that the job should have. It has fewer where a segment could not be made.
  uint32_t target() const { return target_; }
  uint32_t guaranteed() const { return guaranteed_; }
  uint32_t limit() const { return limit_; }
  // The slots by which the balloon makes the pool smaller. Zero but in host memory.
  uint32_t balloon() const { return balloon_; }
  // The slots that the pool is charged for while the machine has their pages.
  // REQUIRES: exists().
  uint32_t withheld_slots() const;
  // The chunks that may never leave for a lower tier, in slots or on the way to one. They have a
  // slot each whenever they need it, and the rest of the job has the slots that it needs at least.
  // Zero but in host memory above SSD.
  uint32_t claims() const { return claims_.value(); }
  [[nodiscard]] Count::Token Claim() { return claims_.Take(); }
  // The slots that the job must have for its claims, with `more` of them. Zero without any.
  uint32_t slots_for_claims(uint32_t more = 0) const;
  // The job waits for memory up to its fair share of the pool.
  bool starved() const { return starved_; }

  // REQUIRES: exists().
  const SlotPool& slots() const { return *slots_; }
  uint32_t slots_with_balloon() const { return exists() ? slots_->size() + balloon_ : 0; }
  // The slots that calls may rely on: the pool grows to them when they are needed.
  uint32_t most_slots() const { return std::max(slots_with_balloon(), guaranteed_); }
  // Slots whose memory exists, or is being made.
  uint32_t made_slots() const;
  // Whether a segment may be made or a slot populated. A segment is made whole or not at all.
  bool can_grow() const;
  // The machine had no memory for the next segment, and the job has too few slots without it.
  bool make_later() const { return make_later_; }
  // Regions, made or in the making, beyond the slots of the pool. Zero unless by_slot().
  uint32_t surplus_regions() const;

  uint32_t slots_per_segment() const { return slots_per_segment_; }
  uint32_t next_segment_slots() const {
    return by_slot_ ? 1 : std::min(limit_ - slots_->numbers(), slots_per_segment_);
  }
  // RegionIds or StoreIds; kNoSegment: given back.
  const std::vector<uint32_t>& segments() const { return segments_; }
  // The segment that is being made, or kNoSegment.
  uint32_t making() const { return making_; }
  // The copy that is being made of a host region, which it will replace, or kNoSegment.
  uint32_t replacing() const { return replacing_; }
  // Regions that a smaller share gave up, each with the sessions that still map it. A region
  // without sessions is being dropped.
  const std::map<uint32_t, std::vector<SessionId>>& leaving() const { return leaving_; }
  // How much memory is being made, dropped, released or populated.
  size_t pending() const {
    return (making_ != kNoSegment) + (replacing_ != kNoSegment) + dropping_.size() +
           (exists() ? slots_->changing_slots() : 0);
  }

  // The size of one of segments().
  Bytes SizeOf(uint32_t segment) const;
  // Where a slot is. The region stands for the store on SSD.
  MemoryPlace PlaceOf(SlotNumber slot) const;
  // REQUIRES: the place is a slot of this share.
  SlotNumber NumberOf(const MemoryPlace& place) const;

  // Owns nothing when no slot with memory is free. REQUIRES: exists().
  Slot Take() { return slots_->Take(); }
  template <typename UnwantedFor>
  Slot TakePlanned(SlotNumber wanted, UnwantedFor unwanted_for) {
    return slots_->TakePlanned(wanted, unwanted_for);
  }
  void FreeLast(Slot slot) { slots_->FreeLast(std::move(slot)); }
  // See SlotPool.
  void Quarantine(SlotNumber slot) { slots_->Quarantine(slot); }
  void QuarantineAll(const std::vector<SlotNumber>& slots) { slots_->QuarantineAll(slots); }
  void EndQuarantine(SlotNumber slot) { slots_->EndQuarantine(slot); }
  // See SlotPool. nullopt also when there is no pool.
  absl::optional<std::vector<Slot>> TakeNumbers(const std::vector<SlotNumber>& numbers);

  void CheckInvariants() const;

 private:
  friend class JobShares;
  friend class Balloons;
  friend class ElasticShares;
  friend class SharePools;
  friend class ShareLedger;
  Share(JobId job, Pool pool, Bytes chunk_size) : job_(job), pool_(pool), chunk_size_(chunk_size) {}

  // The next number of slots that whole segments reach, from `slots` up or down. The rest of a
  // partial segment would be idle.
  uint32_t Reachable(uint64_t slots, bool up) const;
  // Slots whose pages will soon be released, and those whose pages are populated on demand.
  uint32_t going_slots() const;
  uint32_t coming_slots() const;
  // Slots by which the balloon may inflate.
  uint32_t inflatable_slots() const;
  void CheckRegionsOfSlots() const;
  void CheckSegments() const;

  const JobId job_;
  const Pool pool_;
  const Bytes chunk_size_;
  Bytes bytes_;
  uint32_t target_ = 0, guaranteed_ = 0, limit_ = 0, balloon_ = 0;
  uint32_t slots_per_segment_ = 0;
  uint32_t making_ = kNoSegment;
  bool starved_ = false, by_slot_ = false, make_later_ = false;
  bool keeps_all_ = false;  // All of it is guaranteed, as no content in it ever leaves.
  bool deflating_ = false;  // One slot is being populated again.
  absl::optional<SlotPool> slots_;
  Count claims_;
  std::vector<uint32_t> segments_;
  std::map<uint32_t, std::vector<SessionId>> leaving_;
  std::set<uint32_t> dropping_;  // Segments that are being dropped.
  uint32_t replacing_ = kNoSegment;
  std::set<uint32_t> replaced_;  // Segments of dropping_ whose copies are segments now.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARES_SHARE_H_
