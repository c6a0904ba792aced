// Elastic shares: what jobs that asked for no size have of the host and SSD pools.
//
// Such a job has all that is free until others need it. It keeps a claim (of host memory a quarter
// of what nobody had claimed, and no less than a dozen slots, of which an optimizer's step is
// made), and takes more when it would have to evict: what is free, or, up to its fair part of the
// pool, what others have above theirs. Those cede first what they never used, jobs without
// sessions all but their claims, then the slots of victims, as for a machine that is short of
// memory (host_budget.cc). So a pool is shared by halves, thirds and so on by those who need it,
// and one job alone has all of it.
//
// What is leased stays, and a share never falls below the leases there are and the calls that wait:
// no call is refused for it that was accepted. On SSD, where chunks have their home, only what was
// never used is ceded.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

constexpr uint32_t kClaimedPart = 4, kLeastClaim = 12, kParts = 8;

bool TakesPart(const Job& job) {
  return job.state == Job::State::kMaking || job.state == Job::State::kRunning;
}

Bytes AskedOf(const OpenCall& open, Tier tier) {
  return tier == Tier::kDevice ? open.device_share
         : tier == Tier::kHost ? open.host_share
                               : open.ssd_share;
}

uint32_t CeilDiv(Bytes a, Bytes b) {
  return static_cast<uint32_t>(a / b + (a.IsMultipleOf(b) ? 0 : 1));
}

// Memory is made in whole parts: of less, the rest would lie idle. The next number of slots that
// can be reached, from `slots` up or down.
uint32_t Reachable(const JobTier& part, uint64_t slots, bool up) {
  const uint64_t made = part.slots == nullptr ? 0
                                              : part.slots->numbers() +
                                                    (part.making == kNoPart ? 0 : part.next_part());
  if (slots >= part.most) return part.most;
  if (slots <= made) return static_cast<uint32_t>(slots);
  const uint64_t each = part.slots_per_part;
  const uint64_t parts = (slots - made + (up ? each - 1 : 0)) / each;
  return static_cast<uint32_t>(std::min<uint64_t>(part.most, made + parts * each));
}

}  // namespace

Bytes EngineState::Free(Tier tier) const {
  return capacity_[static_cast<int>(tier)] - Lent(tier) - Scrubbing(tier);
}

// Neither of a fixed share, nor of a job's claim. A claim may be larger than its share is so far,
// and what jobs leave that end may be part of it.
Bytes EngineState::Unclaimed(Tier tier) const {
  const Bytes capacity = capacity_[static_cast<int>(tier)];
  Bytes claimed = Scrubbing(tier);
  for (const auto& [id, job] : jobs_) {
    const JobTier& part = job->tier(tier);
    if (job->state == Job::State::kEnding) continue;
    claimed += part.is_elastic() ? job->chunk_size * part.claim : part.share;
  }
  return capacity - std::min(capacity, claimed);
}

bool EngineState::IsElastic(const OpenCall& open, Tier tier) const {
  const bool may_be = tier != Tier::kDevice && !capacity_[static_cast<int>(Tier::kSsd)].IsZero();
  return open.elastic && may_be && AskedOf(open, tier).IsZero();
}

// An equal part, for each job that runs or is about to, of what has no fixed owner.
Bytes EngineState::FairShare(Tier tier) const {
  Bytes shared = Unclaimed(tier);
  uint64_t jobs = 0;
  for (const auto& [id, job] : jobs_) {
    const JobTier& part = job->tier(tier);
    if (!part.is_elastic() || !TakesPart(*job)) continue;
    ++jobs;
    shared += job->chunk_size * part.claim;
  }
  for (const WaitingOpen& open : opens_) {
    jobs += IsElastic(open.call, tier);
    shared -= std::min(shared, AskedOf(open.call, tier));
  }
  return Bytes(shared.count() / std::max<uint64_t>(1, jobs));
}

// Of a small pool a part is small, too, or the first job would have all of it.
uint64_t EngineState::UsualPart(Tier tier, Bytes chunk) const {
  const uint64_t slots =
      std::min(kPartSize, Bytes(capacity_[static_cast<int>(tier)].count() / kParts)) / chunk;
  return std::min(std::max(uint64_t{kMinSlots}, slots),
                  std::max(uint64_t{1}, kMaxRegionSize / chunk));
}

// Slots without which no job can begin.
uint64_t EngineState::LeastShare(Tier tier, Bytes chunk) const {
  if (tier == Tier::kSsd) return kMinSlots;
  const uint64_t part = UsualPart(tier, chunk);
  return (kLeastClaim + part - 1) / part * part;
}

absl::Status EngineState::LendElastic(Job& job, Tier tier) {
  JobTier& part = job.tier(tier);
  const Bytes chunk = job.chunk_size;
  const uint64_t most =
      std::min<uint64_t>(Unclaimed(tier) / chunk, uint64_t{options_.limits.chunks});
  const uint64_t free = std::min<uint64_t>(Free(tier) / chunk, most);
  const uint64_t least = LeastShare(tier, chunk);
  if (most < kMinSlots || free < std::min(most, least)) {
    return NotEnough(tier, Bytes(0), chunk, least);
  }
  uint64_t each = std::min(UsualPart(tier, chunk), free), claim = each;
  if (tier == Tier::kHost) {
    claim = std::min(most, std::max(uint64_t{kLeastClaim}, most / kClaimedPart));
    each = std::min(each, claim / 2);
    claim = std::min((claim + each - 1) / each, most / each) * each;
  }
  part.most = static_cast<uint32_t>(most);
  part.claim = static_cast<uint32_t>(claim);
  part.slots_per_part = static_cast<uint32_t>(each);
  part.target = Reachable(part, free, /*up=*/false);
  return absl::OkStatus();
}

void EngineState::SetTarget(Job& job, Tier tier, uint32_t target) {
  JobTier& part = job.tier(tier);
  if (target == part.target) return;
  // What is withheld is ceded first: it is nobody's work.
  const uint32_t less = part.target - std::min(part.target, target);
  part.withheld -= std::min(part.withheld, less);
  (tier == Tier::kSsd ? counters_.ssd_ceded : counters_.host_ceded) += job.chunk_size * less;
  part.target = target;
  part.slots->Resize(target - part.withheld);
  Charge(job, tier);
  if (tier == Tier::kHost) SendBudgets(job);
  LookAtRoom(job, tier);
}

void EngineState::Raise(Job& job, Tier tier, uint32_t lacking) {
  JobTier& part = job.tier(tier);
  if (!part.is_elastic() || !TakesPart(job) || part.target == part.most) return;
  const uint32_t wanted = Reachable(part, uint64_t{part.target} + lacking, /*up=*/true);
  if (wanted <= part.target) return;
  const Bytes more = job.chunk_size * (wanted - part.target);
  const bool claimed = wanted <= part.claim;
  const bool entitled = tier == Tier::kSsd || claimed || job.chunk_size * wanted <= FairShare(tier);
  if (entitled && more > Free(tier)) {
    part.pressed = tier == Tier::kHost;
    AskOthers(tier, more, claimed ? Need::kClaim : Need::kMore, &job);
  }
  // Who opens comes before who wants more than a claim, and who has less than an equal part before
  // who has it.
  bool others_first = !claimed && !opens_.empty();
  for (const auto& [id, other] : jobs_) {
    others_first = others_first || (!entitled && other->tier(tier).pressed);
  }
  const Bytes free = others_first ? Bytes(0) : Free(tier);
  const uint64_t most = std::min<uint64_t>(wanted, part.target + free / job.chunk_size);
  const uint32_t target = Reachable(part, most, /*up=*/false);
  if (target == wanted) part.pressed = false;
  if (target > part.target) SetTarget(job, tier, target);
}

// The least that the job's share may become for others: for their claims no more than its own, and
// for more an equal part.
uint32_t EngineState::Floor(const Job& job, Tier tier, Need need, bool only_unused) const {
  const JobTier& part = job.tier(tier);
  uint64_t floor = part.claim;
  if (TakesPart(job)) {
    if (need == Need::kMore) {
      floor = std::max<uint64_t>(floor, FairShare(tier) / job.chunk_size);
    }
    uint64_t used = part.committed;
    for (const FetchOperation* fetch : part.admission) {
      used = std::max<uint64_t>(used, fetch->chunks.size());
    }
    // Touches that nobody announced go on.
    if (tier == Tier::kHost) floor = std::max(floor, used + kMinSlots);
  }
  if (only_unused || tier == Tier::kSsd) floor = std::max<uint64_t>(floor, part.made_slots());
  return static_cast<uint32_t>(std::min<uint64_t>(floor, part.target));
}

// What is free, or soon is.
Bytes EngineState::FreeSoon(Tier tier) const {
  Bytes coming = Free(tier);
  for (const auto& [id, job] : jobs_) {
    const JobTier& part = job->tier(tier);
    if (job->state == Job::State::kEnding || !part.is_elastic()) continue;
    coming += part.share - job->chunk_size * part.target;
  }
  return coming;
}

void EngineState::AskOthers(Tier tier, Bytes needed, Need need, const Job* asking) {
  for (const bool only_unused : {true, false}) {
    for (const bool running : {false, true}) {
      for (const auto& [id, job] : jobs_) {
        const JobTier& part = job->tier(tier);
        const bool lends = part.is_elastic() && job.get() != asking &&
                           (running ? TakesPart(*job) : job->state == Job::State::kLingering);
        const Bytes soon = FreeSoon(tier);
        if (!lends || soon >= needed) continue;
        const uint32_t slots = std::min(part.target, CeilDiv(needed - soon, job->chunk_size));
        const uint32_t floor = Floor(*job, tier, need, only_unused);
        const uint32_t target = Reachable(part, part.target - slots, /*up=*/false);
        SetTarget(*job, tier, std::max(target, Reachable(part, floor, /*up=*/true)));
      }
    }
  }
}

bool EngineState::AskForOpen(const OpenCall& open) {
  bool lacks = false;
  if (open.device_share > Free(Tier::kDevice)) return false;
  for (const Tier tier : {Tier::kHost, Tier::kSsd}) {
    if (capacity_[static_cast<int>(tier)].IsZero()) continue;
    Bytes needed = RoundDown(AskedOf(open, tier), open.chunk_size);
    if (IsElastic(open, tier)) {
      needed = open.chunk_size * LeastShare(tier, open.chunk_size);
      needed = std::min(RoundDown(Unclaimed(tier), open.chunk_size), needed);
    }
    if (needed <= Free(tier)) continue;
    if (needed > Unclaimed(tier)) return false;
    AskOthers(tier, needed, Need::kClaim, nullptr);
    // On SSD nobody leaves; in host memory leases end.
    if (tier == Tier::kSsd && needed > Free(tier)) return false;
    lacks = true;
  }
  return lacks;
}

bool EngineState::ServeFreed() {
  if (ended_.empty() && !freed_) return false;
  for (const JobId job : ended_) jobs_.erase(job);
  ended_.clear();
  freed_ = false;
  for (const auto& [id, job] : jobs_) {
    if (job->tier(Tier::kHost).pressed) LookAtRoom(*job, Tier::kHost);
  }
  OpenWaiting();
  return true;
}

}  // namespace memtide
