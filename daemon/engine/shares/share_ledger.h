// ShareLedger: what each job is lent of each pool. Engine-internal.
//
// With its parts, SharePools, Quotas, ElasticShares and Balloons, it alone changes shares
// (share.h). used + reserved + balloon + scrubbing + free = capacity holds for each pool after each
// call. Its calls return a Change, on which the engine acts, such as by sending sessions new
// budgets. Facts about chunks and calls reach it as values, too.
//
// A node has a pool for each of its devices, one of host memory and one of SSD. A job has its
// device share on one device: the one that it names, or the one with most free memory.
//
// A job whose shares all have sizes keeps them. An elastic share, of host or SSD memory for which
// no size was requested, holds all free memory until other jobs need it. Its guaranteed share (in
// host memory a quarter of what is not guaranteed to others, and at least a dozen slots, which an
// optimizer step needs) is never reclaimed. When the job would have to evict, the share grows: from
// free memory, or, up to the fair share of the pool, from jobs that are above theirs. Such jobs
// first give slots that they never used, jobs without sessions give all but their guaranteed share,
// and then victims leave their slots as for the balloon (memory/balloon.cc). Jobs that need memory
// thus have halves, thirds and so on of a pool, and one job alone has all of it.
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

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/record.h"
#include "daemon/engine/shares/balloons.h"
#include "daemon/engine/shares/elastic_shares.h"
#include "daemon/engine/shares/quotas.h"
#include "daemon/engine/shares/share_pools.h"

namespace memtide {

class ShareLedger {
 public:
  using Change = SharePools::Change;
  using Changes = SharePools::Changes;
  using Opens = SharePools::Opens;
  using Reclaim = Quotas::Reclaim;
  using Demands = ElasticShares::Demands;
  using Growth = ElasticShares::Growth;
  using Rises = Balloons::Rises;

  ShareLedger(const SharePools::Capacities& capacities, const Limits& limits)
      : pools_(capacities, limits) {}
  ~ShareLedger();
  ShareLedger(const ShareLedger&) = delete;
  ShareLedger& operator=(const ShareLedger&) = delete;

  SharePools& pools() { return pools_; }
  const SharePools& pools() const { return pools_; }
  Quotas& quotas() { return quotas_; }
  const Quotas& quotas() const { return quotas_; }
  ElasticShares& elastic() { return elastic_; }
  Balloons& balloons() { return balloons_; }

  bool IsElastic(const OpenCall& open, Tier tier) const;
  // Adds what the call requests of the pool.
  void Count(const OpenCall& open, Pool pool, Opens* opens) const;
  // The memory without which the job cannot begin. Zero: the node has no such pool, or no size is
  // asked of a share that is not elastic.
  Bytes NeededToOpen(const OpenCall& open, Tier tier) const;
  // The memory that a new job requests of all pools, whole or not at all. RESOURCE_EXHAUSTED: a
  // pool has too little, the job would have too many regions, or a quota forbids it. REQUIRES:
  // CheckDevice() is OK.
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
  // OK: that many slots may have a region each.
  absl::Status CheckDeviceRegions(const Share& share, uint64_t slots) const;
  // How many regions the device share may have beside those of other jobs.
  uint64_t MostDeviceRegions(const Share& share) const;
  // If the share is elastic, `slots` is its new limit: other jobs may have made it smaller, and it
  // gets as many more as are free.
  void Resize(Share& share, uint32_t slots);
  // The share has one slot less, for good.
  void LoseSlot(Share& share);
  // A free slot goes; returns its region, for Leave. REQUIRES: a slot is free.
  uint32_t GiveUpRegion(Share& share);
  // The owned slot goes. REQUIRES: Resize has taken it from the share, or it is surplus.
  uint32_t GiveUpRegion(Share& share, Slot slot);
  // The region leaves when its holders have returned it. True: it has none, and must be dropped.
  bool Leave(Share& share, uint32_t region, std::vector<SessionId> holders);
  bool Return(Share& share, uint32_t region, SessionId holder);
  void CheckInvariants() const;

 private:
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

  SharePools pools_;
  Quotas quotas_{pools_};
  ElasticShares elastic_{pools_, quotas_};
  Balloons balloons_{pools_};
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARES_SHARE_LEDGER_H_
