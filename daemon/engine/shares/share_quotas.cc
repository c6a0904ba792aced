// The part of the ShareLedger that bounds what the jobs of a user, or of a group, have together.
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/shares/share_ledger.h"

namespace memtide {

namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
// A payload of errors, with one of these values.
constexpr char kByQuota[] = "memtide/quota";
constexpr char kNow[] = "now", kUntilAJobEnds[] = "until a job ends";

std::string HoursText(Duration duration) {
  return absl::StrCat(std::chrono::duration<double, std::ratio<3600>>(duration).count(), " h");
}

// What an error says. `key`: what `memtide admin quota set` calls the limit.
struct Refusal {
  absl::string_view what, key;
  std::string limit, used, requested;
  absl::string_view how_long = kUntilAJobEnds;
};

absl::Status Refused(const Quota& quota, const Refusal& refusal) {
  absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
      "the quota of ", quota.name, " is ", refusal.limit, " of ", refusal.what,
      "; used: ", refusal.used, "; requested: ", refusal.requested,
      ". End a job, ask for less, or have an administrator raise it: it is set by `memtide admin "
      "quota set ",
      quota.name, " ", refusal.key, "=...`"));
  status.SetPayload(kByQuota, absl::Cord(refusal.how_long));
  return status;
}

}  // namespace

bool IsByQuota(const absl::Status& status) { return status.GetPayload(kByQuota).has_value(); }

bool MayBeLentLater(const absl::Status& status) {
  return absl::IsResourceExhausted(status) &&
         status.GetPayload(kByQuota).value_or(absl::Cord(kNow)) != kUntilAJobEnds;
}

void ShareLedger::SetQuotas(const std::vector<Quota>& quotas) {
  by_user_.clear();
  by_group_.clear();
  default_.reset();
  for (const Quota& quota : quotas) {
    if (quota.kind == Quota::Kind::kDefault) default_ = quota;
    if (quota.kind == Quota::Kind::kUser) by_user_[quota.id] = quota;
    if (quota.kind == Quota::Kind::kGroup) by_group_[quota.id] = quota;
  }
  // ServeFreed() tries again what may be permitted now.
  freed_ = true;
}

Bytes ShareLedger::Counted(const JobShares& job, Tier tier, Counting counting) {
  const Share& share = job[tier];
  const Bytes leaving = share.chunk_size() * share.leaving().size();
  if (job.state() == JobState::kEnding) {
    return counting == Counting::kSoon ? Bytes(0) : share.bytes() + leaving;
  }
  const Bytes guaranteed =
      share.chunk_size() * std::max(share.guaranteed(), share.slots_for_claims());
  if (counting == Counting::kGuaranteed) {
    return share.is_elastic() ? guaranteed : share.bytes() + leaving;
  }
  const bool shrinks = share.is_elastic() || share.by_slot();
  const Bytes lent = counting == Counting::kLent ? share.bytes() + leaving
                     : shrinks                   ? share.chunk_size() * share.target()
                                                 : share.bytes();
  return std::max(lent, guaranteed);
}

// On SSD, slots that were used are never reclaimed.
Bytes ShareLedger::Kept(const JobShares& job) {
  Bytes sum;
  for (const Tier tier : kAllTiers) {
    const Share& share = job[tier];
    Bytes bytes = Counted(job, tier, Counting::kGuaranteed);
    if (tier == Tier::kSsd && share.exists()) {
      bytes = std::max(bytes, share.chunk_size() * share.made_slots());
    }
    sum += bytes;
  }
  return sum;
}

bool ShareLedger::IsUnder(const Bound& bound, const Owner& owner) {
  const Quota& quota = *bound.quota;
  if (quota.kind == Quota::Kind::kDefault) return owner.uid == bound.uid;
  if (quota.kind == Quota::Kind::kUser) return owner.uid == quota.id;
  return std::binary_search(owner.groups.begin(), owner.groups.end(), quota.id);
}

std::vector<ShareLedger::Bound> ShareLedger::BoundsOf(const Owner& owner) const {
  std::vector<Bound> bounds;
  const auto own = by_user_.find(owner.uid);
  if (own != by_user_.end()) {
    bounds.push_back({&own->second, owner.uid});
  } else if (default_) {
    bounds.push_back({&*default_, owner.uid});
  }
  for (const auto& [gid, quota] : by_group_) {
    if (IsUnder({&quota}, owner)) bounds.push_back({&quota});
  }
  return bounds;
}

std::vector<QuotaUse> ShareLedger::AllUses(Counting counting) const {
  std::vector<QuotaUse> uses;
  std::map<std::pair<Quota::Kind, uint32_t>, size_t> numbers;
  const auto use_of = [&](const Bound& bound) -> QuotaUse& {
    const bool is_default = bound.quota->kind == Quota::Kind::kDefault;
    const auto [entry, is_new] = numbers.emplace(
        std::pair(bound.quota->kind, is_default ? bound.uid : bound.quota->id), uses.size());
    if (is_new) uses.push_back({*bound.quota});
    if (is_default) uses[entry->second].uid = bound.uid;
    return uses[entry->second];
  };
  for (const auto& [uid, quota] : by_user_) use_of({&quota});
  for (const auto& [gid, quota] : by_group_) use_of({&quota});
  // One look at each job, as there may be many quotas.
  for (const auto& [id, job] : jobs_) {
    for (const Bound& bound : BoundsOf(job->owner_)) Add(*job, counting, &use_of(bound));
  }
  return uses;
}

Bytes ShareLedger::UsedOf(const Bound& bound, Tier tier, Counting counting,
                          const Share* except) const {
  Bytes used;
  for (const auto& [id, job] : jobs_) {
    if (&(*job)[tier] == except || !IsUnder(bound, job->owner_)) continue;
    used += Counted(*job, tier, counting);
  }
  return used;
}

uint64_t ShareLedger::MostSlots(const Share& share, const Bound& bound, Counting counting) const {
  const absl::optional<Bytes>& limit = bound.quota->most.bytes[static_cast<int>(share.tier())];
  if (!limit) return kNoLimit;
  const Bytes others = UsedOf(bound, share.tier(), counting, &share);
  const uint64_t slots = (*limit - std::min(*limit, others)) / share.chunk_size();
  return slots - std::min<uint64_t>(slots, share.leaving().size());
}

uint64_t ShareLedger::MostSlots(const Share& share, Counting counting) const {
  uint64_t most = kNoLimit;
  for (const Bound& bound : BoundsOf(jobs_.at(share.job())->owner_)) {
    most = std::min(most, MostSlots(share, bound, counting));
  }
  return most;
}

Bytes ShareLedger::FairShareUnder(const Bound& bound, Tier tier) const {
  const absl::optional<Bytes>& limit = bound.quota->most.bytes[static_cast<int>(tier)];
  if (!limit) return Bytes(kNoLimit);
  Bytes shared = *limit - std::min(*limit, UsedOf(bound, tier, Counting::kGuaranteed));
  uint64_t jobs = 0;
  for (const auto& [id, job] : jobs_) {
    const Share& share = (*job)[tier];
    if (!IsUnder(bound, job->owner_) || !share.is_elastic() || !job->is_active()) continue;
    ++jobs;
    shared += share.chunk_size() * share.guaranteed();
  }
  return Bytes(std::min(shared, *limit).count() / std::max<uint64_t>(1, jobs));
}

Bytes ShareLedger::Lacking(const Reclaim& reclaim) const {
  if (!reclaim.within) return reclaim.needed - std::min(reclaim.needed, FreeSoon(reclaim.pool));
  const Tier tier = reclaim.pool.tier;
  const Bytes limit = *reclaim.within->quota->most.bytes[static_cast<int>(tier)];
  const Bytes wanted = UsedOf(*reclaim.within, tier, Counting::kSoon) + reclaim.needed;
  return wanted - std::min(wanted, limit);
}

absl::optional<std::vector<ShareLedger::Reclaim>> ShareLedger::WithinQuotas(const Owner& owner,
                                                                            Pool pool,
                                                                            Bytes needed) const {
  std::vector<Reclaim> reclaims;
  if (needed.IsZero()) return reclaims;
  for (const Bound& bound : BoundsOf(owner)) {
    const absl::optional<Bytes>& limit = bound.quota->most.bytes[static_cast<int>(pool.tier)];
    if (!limit) continue;
    const auto fits = [&](Counting counting) {
      const Bytes used = UsedOf(bound, pool.tier, counting);
      return used <= *limit && needed <= *limit - used;
    };
    if (!fits(Counting::kGuaranteed)) return absl::nullopt;
    if (!fits(Counting::kLent)) reclaims.push_back({pool, needed, Bytes(0), nullptr, bound});
  }
  return reclaims;
}

std::vector<ShareLedger::Reclaim> ShareLedger::OverQuota() const {
  std::vector<Reclaim> reclaims;
  for (const QuotaUse& use : AllUses(Counting::kSoon)) {
    const Bound bound = BoundOf(use);
    for (const Tier tier : kAllTiers) {
      const int i = static_cast<int>(tier);
      const absl::optional<Bytes>& limit = use.quota.most.bytes[i];
      if (!limit || use.bytes[i] <= *limit) continue;
      reclaims.push_back({{tier}, Bytes(0), FairShareUnder(bound, tier), nullptr, bound});
    }
  }
  return reclaims;
}

ShareLedger::Bound ShareLedger::BoundOf(const QuotaUse& use) const {
  const Quota& quota = use.quota;
  if (quota.kind == Quota::Kind::kDefault) return {&*default_, *use.uid};
  return {&(quota.kind == Quota::Kind::kUser ? by_user_ : by_group_).at(quota.id)};
}

absl::Status ShareLedger::CheckQuota(const Share& share, uint64_t slots) const {
  if (slots <= MostSlots(share, Counting::kLent)) return absl::OkStatus();
  return RefusedByQuota(share, FormatBytes(share.chunk_size() * slots));
}

Bytes ShareLedger::MostByQuotas(const Owner& owner, Tier tier, Bytes most) const {
  for (const Bound& bound : BoundsOf(owner)) {
    const absl::optional<Bytes>& limit = bound.quota->most.bytes[static_cast<int>(tier)];
    if (!limit) continue;
    most = std::min(most, *limit - std::min(*limit, UsedOf(bound, tier, Counting::kGuaranteed)));
  }
  return most;
}

absl::Status ShareLedger::RefusedByQuota(const Share& share, const std::string& requested) const {
  absl::optional<Bound> tightest;
  uint64_t most = kNoLimit;
  for (const Bound& bound : BoundsOf(jobs_.at(share.job())->owner_)) {
    const uint64_t its = MostSlots(share, bound, Counting::kLent);
    if (its >= most) continue;
    most = its;
    tightest = bound;
  }
  MEMTIDE_CHECK(tightest.has_value());
  const Tier tier = share.tier();
  const absl::string_view name = TierName(tier);
  const std::string what = absl::StrCat(name, tier == Tier::kSsd ? " space" : " memory");
  return Refused(*tightest->quota,
                 {what, name, FormatBytes(*tightest->quota->most.bytes[static_cast<int>(tier)]),
                  FormatBytes(UsedOf(*tightest, tier, Counting::kLent, &share)), requested, kNow});
}

absl::Status ShareLedger::CheckJobQuotas(const JobShares& job, const OpenCall& open) const {
  for (const Bound& bound : BoundsOf(job.owner_)) {
    const Quota& quota = *bound.quota;
    const absl::optional<uint32_t>& most = quota.most.jobs;
    if (most) {
      const uint32_t others = UseOf(bound).jobs - 1;
      if (others >= *most) {
        return Refused(quota,
                       {"jobs", "jobs", absl::StrCat(*most), absl::StrCat(others), "1 more"});
      }
    }
    const absl::optional<Duration>& longest = quota.most.time_to_live;
    if (longest && open.time_to_live > *longest) {
      return Refused(quota,
                     {"lingering for each job", "lingering-hours", HoursText(*longest),
                      "none by this job", HoursText(open.time_to_live) + " (--time-to-live)"});
    }
  }
  return absl::OkStatus();
}

absl::Status ShareLedger::CheckLingeringQuotas(const JobShares& job) const {
  if (!job.may_linger_) return absl::OkStatus();
  for (const Bound& bound : BoundsOf(job.owner_)) {
    const absl::optional<Bytes>& most = bound.quota->most.lingering;
    if (!most) continue;
    const Bytes all = UseOf(bound).lingering, own = Kept(job);
    if (all <= *most) continue;
    return Refused(*bound.quota, {"what jobs with a time to live keep", "lingering",
                                  FormatBytes(*most), FormatBytes(all - own), FormatBytes(own)});
  }
  return absl::OkStatus();
}

void ShareLedger::Add(const JobShares& job, Counting counting, QuotaUse* use) {
  for (const Tier tier : kAllTiers) {
    use->bytes[static_cast<int>(tier)] += Counted(job, tier, counting);
  }
  if (job.state() == JobState::kEnding) return;
  use->jobs += !job.is_hidden_;
  if (job.may_linger_) use->lingering += Kept(job);
}

QuotaUse ShareLedger::UseOf(const Bound& bound) const {
  QuotaUse use{*bound.quota};
  if (bound.quota->kind == Quota::Kind::kDefault) use.uid = bound.uid;
  for (const auto& [id, job] : jobs_) {
    if (IsUnder(bound, job->owner_)) Add(*job, Counting::kLent, &use);
  }
  return use;
}

std::vector<QuotaUse> ShareLedger::QuotaUses(const absl::optional<Owner>& owner) const {
  std::vector<QuotaUse> uses;
  if (!owner) {
    uses = AllUses(Counting::kLent);
    if (default_) uses.insert(uses.begin(), QuotaUse{*default_});
    return uses;
  }
  for (const Bound& bound : BoundsOf(*owner)) uses.push_back(UseOf(bound));
  return uses;
}

}  // namespace memtide
