// ElasticShares: shares that grow and shrink between jobs (share_ledger.h has the rules).
// Engine-internal.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_SHARES_ELASTIC_SHARES_H_
#define MEMTIDE_DAEMON_ENGINE_SHARES_ELASTIC_SHARES_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/optional.h"
#include "daemon/engine/shares/quotas.h"
#include "daemon/engine/shares/share_pools.h"

namespace memtide {

class ElasticShares {
 public:
  // A Demand is a running job's use of one share.
  struct Demand {
    uint32_t pinned_chunks = 0;
    uint32_t largest_waiting = 0;  // Chunks of the largest call that is not admitted.
  };
  using Demands = std::map<JobId, Demand>;
  // A Growth is planned for a share that lacks slots.
  struct Growth {
    uint32_t target = 0;
    bool is_guaranteed = false;  // The target is within the guaranteed share.
    bool is_entitled = false;    // The target may be reclaimed from other jobs.
    absl::optional<Quotas::Reclaim> reclaim;
    std::vector<Quotas::Reclaim> within_quotas;
  };

  ElasticShares(SharePools& pools, const Quotas& quotas) : pools_(pools), quotas_(quotas) {}

  // The size to which the share grows for `lacking` more slots. nullopt: it cannot grow.
  absl::optional<Growth> PlanGrowth(Share& share, uint32_t lacking, const SharePools::Opens& opens);
  // Grows the share as far as there is free memory for it, after the reclaim of the plan.
  absl::optional<SharePools::Change> Grow(Share& share, const Growth& growth,
                                          const SharePools::Opens& opens);
  // The share has all that it needs.
  void Satisfy(Share& share) { share.starved_ = false; }
  // Shrinks the shares of other jobs, as far as their demands allow.
  SharePools::Changes ReclaimFromOthers(const Quotas::Reclaim& reclaim, const Demands& demands);

 private:
  // The bytes that are missing under the quota, or in the pool.
  Bytes Lacking(const Quotas::Reclaim& reclaim) const;
  Bytes FairShare(Pool pool, const SharePools::Opens& opens) const;
  // The size below which other jobs may not push the share.
  uint32_t Floor(const JobShares& job, const Quotas::Reclaim& reclaim, const Demand& demand,
                 bool only_unused) const;
  SharePools::Change SetTarget(Share& share, uint32_t target);

  SharePools& pools_;
  const Quotas& quotas_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARES_ELASTIC_SHARES_H_
