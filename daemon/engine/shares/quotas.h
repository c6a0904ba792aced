// Quotas: the limits of users and groups, and the use of each by their jobs. Engine-internal.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_ENGINE_SHARES_QUOTAS_H_
#define MEMTIDE_DAEMON_ENGINE_SHARES_QUOTAS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "daemon/engine/interface/quota.h"
#include "daemon/engine/shares/share_pools.h"

namespace memtide {

// Whether a quota has caused the error of a refused share.
bool IsByQuota(const absl::Status& status);
// Whether the share may be lent when other jobs have given memory back.
bool MayBeLentLater(const absl::Status& status);

class Quotas {
 public:
  // A quota that bounds jobs, and of kDefault the user whose jobs they are.
  struct Bound {
    const Quota* quota = nullptr;
    uint32_t uid = 0;
  };
  // A Reclaim is memory that other jobs have to give back.
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
  // kLent: what a job has, or is guaranteed. kGuaranteed: what it keeps when others need memory.
  // kSoon: what it is lent when all that is to be given back is.
  enum class Counting { kLent, kGuaranteed, kSoon };

  explicit Quotas(SharePools& pools) : pools_(pools) {}

  // One for each subject.
  void SetQuotas(const std::vector<Quota>& quotas);
  bool has_quotas() const { return !by_user_.empty() || !by_group_.empty() || default_; }
  // Reclaims that make room for `needed` more of the owner. nullopt: the quotas never permit it.
  absl::optional<std::vector<Reclaim>> WithinQuotas(const Owner& owner, Pool pool,
                                                    Bytes needed) const;
  // Reclaims from jobs that are over a quota, because it was set below their use.
  std::vector<Reclaim> OverQuota() const;
  // OK: the quotas permit a share of that many slots.
  absl::Status CheckQuota(const Share& share, uint64_t slots) const;
  // How much of `most` the quotas of the owner could permit one job more.
  Bytes MostByQuotas(const Owner& owner, Tier tier, Bytes most) const;
  // The quotas of the owner; absent: all, that of kDefault for each user whom it concerns.
  std::vector<QuotaUse> QuotaUses(const absl::optional<Owner>& owner) const;
  static bool IsUnder(const Bound& bound, const Owner& owner);
  std::vector<Bound> BoundsOf(const Owner& owner) const;
  // The bytes that the jobs under it have together, but for the share `except`.
  Bytes UsedOf(const Bound& bound, Tier tier, Counting counting,
               const Share* except = nullptr) const;
  // The most slots that the share can have beside the others under its quotas.
  uint64_t MostSlots(const Share& share, Counting counting) const;
  uint64_t MostSlots(const Share& share, const Bound& bound, Counting counting) const;
  // An equal part of what the elastic shares under the quota have together.
  Bytes FairShareUnder(const Bound& bound, Tier tier) const;
  // `requested`: as the error says it.
  absl::Status RefusedByQuota(const Share& share, const std::string& requested) const;
  absl::Status CheckJobQuotas(const JobShares& job, const OpenCall& open) const;
  absl::Status CheckLingeringQuotas(const JobShares& job) const;

 private:
  static Bytes Counted(const JobShares& job, Tier tier, Counting counting);
  // The bytes that the job keeps without sessions, at all tiers.
  static Bytes Kept(const JobShares& job);
  static void Add(const JobShares& job, Counting counting, QuotaUse* use);
  // The uses of all quotas, that of kDefault for each user whom it concerns.
  std::vector<QuotaUse> AllUses(Counting counting) const;
  Bound BoundOf(const QuotaUse& use) const;
  QuotaUse UseOf(const Bound& bound) const;

  SharePools& pools_;
  std::map<uint32_t, Quota> by_user_, by_group_;
  absl::optional<Quota> default_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_SHARES_QUOTAS_H_
