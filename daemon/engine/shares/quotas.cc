#include "daemon/engine/shares/quotas.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {

namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
// A payload of errors, with one of these values.
constexpr char kByQuota[] = "memtide/quota";
constexpr char kNow[] = "now", kUntilAJobEnds[] = "until a job ends";

std::string HoursText(Duration duration) {
  return absl::StrCat(std::chrono::duration<double, std::ratio<3600>>(duration).count(), " h");
}

// A Refusal has the words of an error. `key`: the limit's name in `memtide admin quota set`.
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

void Quotas::SetQuotas(const std::vector<Quota>& quotas) {
  by_user_.clear();
  by_group_.clear();
  default_.reset();
  for (const Quota& quota : quotas) {
    if (quota.kind == Quota::Kind::kDefault) default_ = quota;
    if (quota.kind == Quota::Kind::kUser) by_user_[quota.id] = quota;
    if (quota.kind == Quota::Kind::kGroup) by_group_[quota.id] = quota;
  }
  // ServeFreed() tries again what may be permitted now.
  pools_.NoteFreed();
}

Bytes Quotas::Counted(const JobShares& job, Tier tier, Counting counting) {
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
Bytes Quotas::Kept(const JobShares& job) {
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

bool Quotas::IsUnder(const Bound& bound, const Owner& owner) {
  const Quota& quota = *bound.quota;
  if (quota.kind == Quota::Kind::kDefault) return owner.uid == bound.uid;
  if (quota.kind == Quota::Kind::kUser) return owner.uid == quota.id;
  return std::binary_search(owner.groups.begin(), owner.groups.end(), quota.id);
}

std::vector<Quotas::Bound> Quotas::BoundsOf(const Owner& owner) const {
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

std::vector<QuotaUse> Quotas::AllUses(Counting counting) const {
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
  for (const auto& [id, job] : pools_.jobs()) {
    for (const Bound& bound : BoundsOf(job->owner())) Add(*job, counting, &use_of(bound));
  }
  return uses;
}

Bytes Quotas::UsedOf(const Bound& bound, Tier tier, Counting counting, const Share* except) const {
  Bytes used;
  for (const auto& [id, job] : pools_.jobs()) {
    if (&(*job)[tier] == except || !IsUnder(bound, job->owner())) continue;
    used += Counted(*job, tier, counting);
  }
  return used;
}

uint64_t Quotas::MostSlots(const Share& share, const Bound& bound, Counting counting) const {
  const absl::optional<Bytes>& limit = bound.quota->most.bytes[static_cast<int>(share.tier())];
  if (!limit) return kNoLimit;
  const Bytes others = UsedOf(bound, share.tier(), counting, &share);
  const uint64_t slots = (*limit - std::min(*limit, others)) / share.chunk_size();
  return slots - std::min<uint64_t>(slots, share.leaving().size());
}

uint64_t Quotas::MostSlots(const Share& share, Counting counting) const {
  uint64_t most = kNoLimit;
  for (const Bound& bound : BoundsOf(pools_.jobs().at(share.job())->owner())) {
    most = std::min(most, MostSlots(share, bound, counting));
  }
  return most;
}

Bytes Quotas::FairShareUnder(const Bound& bound, Tier tier) const {
  const absl::optional<Bytes>& limit = bound.quota->most.bytes[static_cast<int>(tier)];
  if (!limit) return Bytes(kNoLimit);
  Bytes shared = *limit - std::min(*limit, UsedOf(bound, tier, Counting::kGuaranteed));
  uint64_t jobs = 0;
  for (const auto& [id, job] : pools_.jobs()) {
    const Share& share = (*job)[tier];
    if (!IsUnder(bound, job->owner()) || !share.is_elastic() || !job->is_active()) continue;
    ++jobs;
    shared += share.chunk_size() * share.guaranteed();
  }
  return Bytes(std::min(shared, *limit).count() / std::max<uint64_t>(1, jobs));
}

absl::optional<std::vector<Quotas::Reclaim>> Quotas::WithinQuotas(const Owner& owner, Pool pool,
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

std::vector<Quotas::Reclaim> Quotas::OverQuota() const {
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

Quotas::Bound Quotas::BoundOf(const QuotaUse& use) const {
  const Quota& quota = use.quota;
  if (quota.kind == Quota::Kind::kDefault) return {&*default_, *use.uid};
  return {&(quota.kind == Quota::Kind::kUser ? by_user_ : by_group_).at(quota.id)};
}

absl::Status Quotas::CheckQuota(const Share& share, uint64_t slots) const {
  if (slots <= MostSlots(share, Counting::kLent)) return absl::OkStatus();
  return RefusedByQuota(share, FormatBytes(share.chunk_size() * slots));
}

Bytes Quotas::MostByQuotas(const Owner& owner, Tier tier, Bytes most) const {
  for (const Bound& bound : BoundsOf(owner)) {
    const absl::optional<Bytes>& limit = bound.quota->most.bytes[static_cast<int>(tier)];
    if (!limit) continue;
    most = std::min(most, *limit - std::min(*limit, UsedOf(bound, tier, Counting::kGuaranteed)));
  }
  return most;
}

absl::Status Quotas::RefusedByQuota(const Share& share, const std::string& requested) const {
  absl::optional<Bound> tightest;
  uint64_t most = kNoLimit;
  for (const Bound& bound : BoundsOf(pools_.jobs().at(share.job())->owner())) {
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

absl::Status Quotas::CheckJobQuotas(const JobShares& job, const OpenCall& open) const {
  for (const Bound& bound : BoundsOf(job.owner())) {
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

absl::Status Quotas::CheckLingeringQuotas(const JobShares& job) const {
  if (!job.may_linger()) return absl::OkStatus();
  for (const Bound& bound : BoundsOf(job.owner())) {
    const absl::optional<Bytes>& most = bound.quota->most.lingering;
    if (!most) continue;
    const Bytes all = UseOf(bound).lingering, own = Kept(job);
    if (all <= *most) continue;
    return Refused(*bound.quota, {"what jobs with a time to live keep", "lingering",
                                  FormatBytes(*most), FormatBytes(all - own), FormatBytes(own)});
  }
  return absl::OkStatus();
}

void Quotas::Add(const JobShares& job, Counting counting, QuotaUse* use) {
  for (const Tier tier : kAllTiers) {
    use->bytes[static_cast<int>(tier)] += Counted(job, tier, counting);
  }
  if (job.state() == JobState::kEnding) return;
  use->jobs += !job.is_hidden();
  if (job.may_linger()) use->lingering += Kept(job);
}

QuotaUse Quotas::UseOf(const Bound& bound) const {
  QuotaUse use{*bound.quota};
  if (bound.quota->kind == Quota::Kind::kDefault) use.uid = bound.uid;
  for (const auto& [id, job] : pools_.jobs()) {
    if (IsUnder(bound, job->owner())) Add(*job, Counting::kLent, &use);
  }
  return use;
}

std::vector<QuotaUse> Quotas::QuotaUses(const absl::optional<Owner>& owner) const {
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
