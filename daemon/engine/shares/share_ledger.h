// ShareLedger: what each job is lent of each pool. Engine-internal.
//
// It alone changes shares (share.h). used + reserved + balloon + scrubbing + free = capacity holds
// for each pool after each call. What the engine must do for a change, such as to tell sessions
// their new budgets, it returns as values. What it must know of chunks and calls, it gets as
// values.
//
// A node has a pool for each of its devices, one of host memory and one of SSD. A job has its
// device share on one device: the one that it names, or the one with most free memory.
//
// A job whose shares all have sizes keeps them. An elastic share, of host or SSD memory for which
// no size was requested, holds all free memory until other jobs need it. Its guaranteed share (in
// host memory a quarter of what is not guaranteed to others, and at least a dozen slots, which an
// optimizer step needs) is never reclaimed. When the job would have to evict, the share grows: from
// free memory, or, up to the fair share of the pool, from jobs that are above theirs. Those first
// give slots that they never used, jobs without sessions give all but their guaranteed share, and
// then victims leave their slots as for the balloon (memory/balloon.cc). Jobs that need memory thus
// have halves, thirds and so on of a pool, and one job alone has all of it.
//
// Leases are not ended for a reclaim, and a share never falls below its leases and its waiting
// calls: no accepted call is refused for it. On SSD, the home of chunks, only slots that were never
// used are reclaimed.
//
// A job is under the quotas of its user and groups (interface/quota.h): what the jobs under one are
// lent, with what is guaranteed to elastic shares, grows up to its limit. Within a quota, too, jobs
// have fair shares, and reclaim from each other. A quota that is set below what is lent shrinks
// elastic shares, as a reclaim does.
//
// Ownership: JobShares are the job's, and return to the pools when they are destroyed. The ledger
// must outlive them.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_SHARES_SHARE_LEDGER_H_
#define MEMTIDE_DAEMON_ENGINE_SHARES_SHARE_LEDGER_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/memory_kind.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/quota.h"
#include "daemon/engine/interface/record.h"
#include "daemon/engine/interface/types.h"
#include "daemon/engine/shares/share.h"

namespace memtide {

class ShareLedger;

// Whether a quota has caused the error of a refused share.
bool IsByQuota(const absl::Status& status);
// Whether the share may be lent when other jobs have given memory back.
bool MayBeLentLater(const absl::Status& status);

// The shares of one job, one of each pool.
class JobShares {
 public:
  ~JobShares();
  JobShares(const JobShares&) = delete;
  JobShares& operator=(const JobShares&) = delete;

  Share& operator[](Tier tier) { return shares_[static_cast<int>(tier)]; }
  const Share& operator[](Tier tier) const { return shares_[static_cast<int>(tier)]; }
  JobState state() const { return state_; }
  bool is_active() const { return state_ == JobState::kMaking || state_ == JobState::kRunning; }
  // The lowest tier with memory. REQUIRES: there is one.
  Tier home() const;
  // How much memory of the job is being made, dropped, released or populated.
  size_t pending() const;
  // Contents count as many fair shares as sessions have them, which would each have their own.
  void set_fair_shares(size_t sessions) {
    fair_shares_ = std::max(uint32_t{1}, static_cast<uint32_t>(sessions));
  }

 private:
  friend class ShareLedger;
  JobShares(ShareLedger* ledger, JobId job, Bytes chunk_size, Pool device);
  // Regions that its device share can have, one for each slot; zero: it has others.
  uint64_t device_regions() const;
  // nullptr: the job has its device share on another device.
  const Share* In(Pool pool) const {
    const Share& share = (*this)[pool.tier];
    return share.pool() == pool ? &share : nullptr;
  }

  ShareLedger* const ledger_;
  const JobId job_;
  Owner owner_;
  bool is_hidden_ = false;  // It has what sessions have in common, and counts as no job.
  uint32_t fair_shares_ = 1;
  bool may_linger_ = false;
  JobState state_ = JobState::kMaking;
  std::array<Share, kTiers> shares_;
};

class ShareLedger {
 public:
  // Zero: the node has no such pool. No device has none.
  struct Capacities {
    std::vector<Bytes> devices;
    Bytes host, ssd;
  };
  // The size of a pool of slots has changed.
  struct Change {
    JobId job;
    Tier tier = Tier::kHost;
    uint32_t slots = 0, most_slots = 0;  // As in Share, after this change.
    Bytes reclaimed;                     // Taken from the share for other jobs.
  };
  using Changes = std::vector<Change>;
  // What a running job uses of one share.
  struct Demand {
    uint32_t pinned_chunks = 0;
    uint32_t largest_waiting = 0;  // Chunks of the largest call that is not admitted.
  };
  using Demands = std::map<JobId, Demand>;
  // What OpenCalls that wait for memory request of one pool.
  struct Opens {
    bool any = false;
    uint64_t elastic = 0;  // How many of them request an elastic share.
    Bytes requested;       // The sizes that the others request.
  };
  // A quota that bounds jobs, and of kDefault the user whose jobs they are.
  struct Bound {
    const Quota* quota = nullptr;
    uint32_t uid = 0;
  };
  // What other jobs have to give back.
  struct Reclaim {
    Pool pool;
    Bytes needed;  // To be free, or to be so soon.
    // No running job falls below it. Zero: below its guaranteed share.
    Bytes fair_share;
    const Share* asking = nullptr;  // It gives nothing.
    // Then jobs under it give back, at any device, until it has room for what is needed. Valid
    // until SetQuotas().
    absl::optional<Bound> within;
  };
  // What a share that lacks slots should get.
  struct Growth {
    uint32_t target = 0;
    bool is_guaranteed = false;  // The target is within the guaranteed share.
    bool is_entitled = false;    // The target may be reclaimed from other jobs.
    absl::optional<Reclaim> reclaim;
    std::vector<Reclaim> within_quotas;
  };
  // The growth of the sessions' own host memory that is expected of each job.
  using Rises = std::map<JobId, Bytes>;

  ShareLedger(const Capacities& capacities, const Limits& limits);
  ~ShareLedger();
  ShareLedger(const ShareLedger&) = delete;
  ShareLedger& operator=(const ShareLedger&) = delete;

  // --- Pools ---
  // All pools that the node has, in the order of kAllTiers.
  std::vector<Pool> Pools() const;
  // Zero: the node has no such pool.
  Bytes capacity(Pool pool) const;
  Bytes Free(Pool pool) const;
  // Capacity that is not promised to any job: it excludes fixed shares and guaranteed shares.
  Bytes Unguaranteed(Pool pool) const;
  PoolUsage Usage(Pool pool) const;
  // Whether memory was given back since the last call.
  bool TakeFreed() { return std::exchange(freed_, false); }

  // --- Jobs ---
  // INVALID_ARGUMENT: the call names a device that the node does not have. UNAVAILABLE: the device
  // is lost, or all are.
  absl::Status CheckDevice(const OpenCall& open) const;
  // Not OK: the device lends no memory now, and why.
  void SetState(uint32_t device, absl::Status state) { states_[device] = std::move(state); }
  absl::Status StateOf(uint32_t device) const { return states_[device]; }
  // The pool of the device share that the call would get now: of a device that is lost only if all
  // are. REQUIRES: the node has the device that the call names.
  Pool DeviceFor(const OpenCall& open) const;
  bool IsElastic(const OpenCall& open, Tier tier) const;
  // The pool of the call's share at the tier. REQUIRES: CheckDevice() is OK.
  Pool PoolFor(const OpenCall& open, Tier tier) const;
  // Adds what the call requests of the pool.
  void Count(const OpenCall& open, Pool pool, Opens* opens) const;
  // The memory without which the job cannot begin. Zero: the node has no such pool, or no size is
  // asked of a share that is not elastic.
  Bytes NeededToOpen(const OpenCall& open, Tier tier) const;
  // What a new job requests of all pools, whole or not at all. RESOURCE_EXHAUSTED: a pool has too
  // little, the job would have too many regions, or a quota forbids it. REQUIRES: CheckDevice() is
  // OK.
  absl::StatusOr<std::unique_ptr<JobShares>> Lend(JobId job, const Owner& owner,
                                                  const OpenCall& open, MemoryKind device_memory);
  // A share of host memory alone, for what sessions of a user have in common. It is empty, grows by
  // PlanGrowth() and Grow(), and keeps what it has. RESOURCE_EXHAUSTED: the pool has no room for a
  // chunk.
  absl::StatusOr<std::unique_ptr<JobShares>> LendForContents(JobId job, const Owner& owner,
                                                             Bytes chunk_size);
  // The shares of a recorded job, without memory. Then BackSegment for each recorded segment,
  // Share::TakeNumbers, and RestoreTarget. DATA_LOSS, FAILED_PRECONDITION: the record fits no job.
  absl::StatusOr<std::unique_ptr<JobShares>> Restore(const JobRecord& record,
                                                     MemoryKind device_memory);
  // An elastic share starts with the used slots, or with the few that every job has.
  // RESOURCE_EXHAUSTED: the pool has less.
  absl::Status RestoreTarget(Share& share);
  void SetState(JobShares& shares, JobState state) { shares.state_ = state; }

  // --- Segments ---
  // The share's next segment is being made; returns its size. REQUIRES: can_grow(), and no segment
  // is being made.
  Bytes MakeSegment(Share& share, uint32_t segment);
  // True: its slots are usable. False: the share shrank meanwhile, and it must leave.
  bool SegmentMade(Share& share, uint32_t segment);
  // Memory ends here: the share stays smaller than it was. Where a job that has opened would keep
  // too few slots to go on with, its share keeps its size, and above the home tier makes no segment
  // until RetrySegments().
  absl::optional<Change> SegmentFailed(const JobShares& job, Share& share, uint32_t segment);
  void RetrySegments(JobShares& job);
  void BackSegment(Share& share, uint32_t segment);
  // A copy of a region is being made, in memory beyond the pool. REQUIRES: none is in the making.
  void ReplaceSegment(Share& share, uint32_t copy);
  // The copy is the segment from now on, and the caller drops the old one.
  void SegmentReplaced(Share& share, uint32_t segment);
  // The copy could not be made.
  void ReplacementFailed(Share& share) { share.replacing_ = kNoSegment; }
  // All segments, which the caller drops now.
  std::vector<uint32_t> DropSegments(Share& share);
  // True: the job had given the region up, or replaced it, before. REQUIRES: the segment is being
  // dropped.
  bool SegmentDropped(JobShares& shares, uint32_t segment);

  // --- Shares that change slot by slot ---
  // OK: that many slots may have a region each.
  absl::Status CheckDeviceRegions(const Share& share, uint64_t slots) const;
  // How many regions the device share may have beside those of other jobs.
  uint64_t MostDeviceRegions(const Share& share) const;
  // If the share is elastic, `slots` is its new limit: other jobs may have made it smaller, and it
  // gets as many more as are free.
  void Resize(Share& share, uint32_t slots);
  // The present size, as if it had just changed.
  static Change ChangeOf(const Share& share);
  // The share has one slot less, for good.
  void LoseSlot(Share& share);
  // A free slot goes; returns its region, for Leave. REQUIRES: a slot is free.
  uint32_t GiveUpRegion(Share& share);
  // The owned slot goes. REQUIRES: Resize has taken it from the share, or it is surplus.
  uint32_t GiveUpRegion(Share& share, Slot slot);
  // The region leaves when its holders have returned it. True: it has none, and must be dropped.
  bool Leave(Share& share, uint32_t region, std::vector<SessionId> holders);
  bool Return(Share& share, uint32_t region, SessionId holder);

  // --- Elastic shares ---
  // The size to which the share grows for `lacking` more slots. nullopt: it cannot grow.
  absl::optional<Growth> PlanGrowth(Share& share, uint32_t lacking, const Opens& opens);
  // Grows the share as far as there is free memory for it, after the reclaim of the plan.
  absl::optional<Change> Grow(Share& share, const Growth& growth, const Opens& opens);
  // The share has all that it needs.
  void Satisfy(Share& share) { share.starved_ = false; }
  // Shrinks the shares of other jobs, as far as their demands allow.
  Changes ReclaimFromOthers(const Reclaim& reclaim, const Demands& demands);

  // --- Quotas (share_quotas.cc) ---
  // One for each subject.
  void SetQuotas(const std::vector<Quota>& quotas);
  bool has_quotas() const { return !by_user_.empty() || !by_group_.empty() || default_; }
  // What has to be reclaimed for `needed` more of the owner. nullopt: the quotas never permit it.
  absl::optional<std::vector<Reclaim>> WithinQuotas(const Owner& owner, Pool pool,
                                                    Bytes needed) const;
  // What is to shrink, because a quota was set below it.
  std::vector<Reclaim> OverQuota() const;
  // OK: the quotas permit a share of that many slots.
  absl::Status CheckQuota(const Share& share, uint64_t slots) const;
  // How much of `most` the quotas of the owner could permit one job more.
  Bytes MostByQuotas(const Owner& owner, Tier tier, Bytes most) const;
  // The quotas of the owner; absent: all, that of kDefault for each user whom it concerns.
  std::vector<QuotaUse> QuotaUses(const absl::optional<Owner>& owner) const;

  // --- The balloon (memory/balloon.cc) ---
  // Inflates and deflates all balloons, so that the machine keeps `reserve`.
  Changes BalanceBalloons(Bytes available, Bytes reserve, const Rises& rises);
  // Deflates for `waiting` chunks that wait for slots where no copy can leave but those of
  // `evicting` victims.
  absl::optional<Change> DeflateFor(Share& share, size_t waiting, size_t evicting);
  // Gives a free slot beyond the size of the pool to the machine. REQUIRES: a slot is free.
  SlotNumber ReleaseSlot(Share& share);
  void SlotReleased(Share& share, SlotNumber slot);
  // The released slot that is populated next, one at a time.
  absl::optional<SlotNumber> PopulateSlot(Share& share);
  void SlotPopulated(Share& share, SlotNumber slot);
  // The machine has no memory for the slot: the balloon has all that is missing.
  Change PopulateFailed(Share& share, SlotNumber slot);

  void CheckInvariants() const;

 private:
  friend class JobShares;

  // kLent: what a job has, or is guaranteed. kGuaranteed: what it keeps when others need memory.
  // kSoon: what it is lent when all that is to be given back is.
  enum class Counting { kLent, kGuaranteed, kSoon };
  static Bytes Counted(const JobShares& job, Tier tier, Counting counting);
  // What the job keeps without sessions, at all tiers.
  static Bytes Kept(const JobShares& job);
  static bool IsUnder(const Bound& bound, const Owner& owner);
  std::vector<Bound> BoundsOf(const Owner& owner) const;
  static void Add(const JobShares& job, Counting counting, QuotaUse* use);
  // Those of all quotas, that of kDefault for each user whom it concerns.
  std::vector<QuotaUse> AllUses(Counting counting) const;
  Bound BoundOf(const QuotaUse& use) const;
  // What the jobs under it have together, but for the share `except`.
  Bytes UsedOf(const Bound& bound, Tier tier, Counting counting,
               const Share* except = nullptr) const;
  QuotaUse UseOf(const Bound& bound) const;
  // The most slots that the share can have beside the others under its quotas.
  uint64_t MostSlots(const Share& share, Counting counting) const;
  uint64_t MostSlots(const Share& share, const Bound& bound, Counting counting) const;
  // An equal part of what the elastic shares under the quota have together.
  Bytes FairShareUnder(const Bound& bound, Tier tier) const;
  // What lacks under the quota, or in the pool, until it is there.
  Bytes Lacking(const Reclaim& reclaim) const;
  // `requested`: as the error says it.
  absl::Status RefusedByQuota(const Share& share, const std::string& requested) const;
  absl::Status CheckJobQuotas(const JobShares& job, const OpenCall& open) const;
  absl::Status CheckLingeringQuotas(const JobShares& job) const;

  // Zero: the size is not requested.
  static Bytes AskedOf(const OpenCall& open, Tier tier);
  Bytes Lent(Pool pool) const;
  Bytes Scrubbing(Pool pool) const;
  Bytes FairShare(Pool pool, const Opens& opens) const;
  // Memory that is free, or is being given back.
  Bytes FreeSoon(Pool pool) const;
  // How many slots a segment of about `size` has: more where a job could not begin with one, and
  // one io_uring buffer at most.
  static uint64_t SegmentSlots(Bytes size, Bytes chunk);
  // The slots of a segment of an elastic share.
  uint64_t UsualSegment(Tier tier, Bytes chunk) const;
  uint64_t LeastShare(Tier tier, Bytes chunk, uint32_t ranks) const;
  absl::Status NotEnough(const Share& share, Bytes requested, uint64_t least) const;
  absl::StatusOr<Bytes> FixedShare(const Share& share, Bytes requested) const;
  absl::Status LendFixed(Share& share, Bytes requested, bool by_slot);
  absl::Status LendElastic(Share& share, const OpenCall& open);
  // The size below which other jobs may not push the share.
  uint32_t Floor(const JobShares& job, const Reclaim& reclaim, const Demand& demand,
                 bool only_unused) const;
  // Charges the share for its target or for the memory that exists, whichever is more.
  void Charge(Share& share);
  Change SetTarget(Share& share, uint32_t target);
  Change Inflate(Share& share, uint32_t slots);
  Change Deflate(Share& share, uint32_t slots);
  // Inflates where the machine lacks memory, and deflates where it has more than enough.
  absl::optional<Change> AdjustBalloon(JobShares& job, Bytes reserve, Bytes rise, Bytes* available);
  static uint32_t Inflatable(const JobShares& job);

  std::map<uint32_t, Quota> by_user_, by_group_;
  absl::optional<Quota> default_;

  const Capacities capacities_;
  const Limits limits_;
  std::vector<absl::Status> states_;  // By the number of the device.
  std::map<JobId, JobShares*> jobs_;
  bool freed_ = false;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARES_SHARE_LEDGER_H_
