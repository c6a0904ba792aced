// Moving ahead: what is expected soon is brought, and what leaves next is written, while links
// idle.
#include <algorithm>
#include <map>
#include <utility>

#include "daemon/engine/state.h"

namespace memtide {

namespace {

constexpr Tier kMemoryTiers[] = {Tier::kDevice, Tier::kHost};

// Bytes on their way to a tier that nobody waits for yet. More would let a fetch wait longer behind
// them than it gains: 64 MiB take a disk about 30 ms.
constexpr Bytes kMaxAhead = MiB(64);
// How far one looks ahead, in uses, and every how many of them one looks again.
constexpr uint64_t kMaxLook = 512, kLookEvery = 4;
// Leases that are asked back because others are needed sooner, in one go.
constexpr int kMaxAskedBack = 4;

constexpr int Index(StartTransfer::Kind kind) { return static_cast<int>(kind); }

// Nothing needs to be brought to the tier for its next use.
bool IsThere(const Chunk& chunk, Tier tier) {
  return chunk.valid == 0 || chunk.valid_at(tier) || chunk.valid_at(chunk.job->work);
}

}  // namespace

void EngineState::LookAhead(Job& job) {
  if (options_.placement != Placement::kForesight || !job.foresight.known() || job.look_ahead) {
    return;
  }
  job.look_ahead = true;
  looking_ahead_.push_back(&job);
}

// After all else has settled: one chunk at a time, as each changes what the next may displace.
bool EngineState::MoveAhead() {
  while (!looking_ahead_.empty()) {
    Job& job = *looking_ahead_.back();
    if (job.state == Job::State::kRunning) {
      for (const Tier tier : kMemoryTiers) {
        if (BringAhead(job, tier) || CleanAhead(job, tier)) return true;
      }
    }
    job.look_ahead = false;
    looking_ahead_.pop_back();
  }
  return false;
}

bool EngineState::BringAhead(Job& job, Tier tier) {
  JobTier& part = job.tier(tier);
  if (!part.exists() || tier == job.home || !part.slot_queue.empty()) return false;
  const uint32_t slots = part.slots->size();
  const uint64_t most = std::min<uint64_t>(std::max(uint32_t{1}, slots / 4),
                                           std::max<uint64_t>(2, kMaxAhead / job.chunk_size));
  const uint64_t now = job.foresight.now();
  part.looked_ahead = std::max(part.looked_ahead, now);
  if (now >= part.look_again) {
    part.needed_until = NeededUntil(job, tier);
    part.look_again = now + kLookEvery;
  }
  for (; part.prefetches < most && part.looked_ahead < part.needed_until; ++part.looked_ahead) {
    const absl::optional<uint32_t> member = job.foresight.At(part.looked_ahead);
    if (!member.has_value()) return false;
    const uint32_t place = PlaceWanted(job, *member, part.looked_ahead);
    if (place == kNoPlace) continue;
    Chunk& chunk = chunks_[place];
    const uint64_t expected = job.foresight.NextUse(*member);
    if (expected > part.looked_ahead) continue;  // It was used out of order since.
    const bool there = IsThere(chunk, tier);
    const bool coming = chunk.pinned() || chunk.prefetch_to.value_or(Tier::kSsd) <= tier;
    if (there || coming || chunk.evict_to.has_value() || chunk.evicted) continue;
    if (tier == Tier::kDevice && chunk.only_stepped) continue;  // It is wanted in host memory.
    // Looked at again when it has come to the host.
    if (tier == Tier::kDevice && !chunk.valid_at(Tier::kHost)) continue;
    if (chunk.flight.has_value() || !HasRoomUntil(job, tier, expected)) return false;
    StopPrefetch(chunk);
    chunk.prefetch_to = tier;
    ++part.prefetches;
    StopPush(chunk);
    Ready(place);
    ++part.looked_ahead;
    return true;
  }
  return false;
}

// How long its link to the tier is occupied by bringing it. To the device it comes from the host:
// that it is there in time is the host's affair.
uint64_t EngineState::MicrosToBring(const Chunk& chunk, Tier tier) const {
  using Kind = StartTransfer::Kind;
  const Job& job = *chunk.job;
  if (IsThere(chunk, tier)) return 0;
  return job.link_micros[Index(tier == Tier::kDevice ? Kind::kHostToDevice : Kind::kSsdToHost)];
}

// The first time from which on nothing needs to be brought yet. What is brought before it must
// displaces what could have been used once more: so as late as the links permit. The next chance to
// begin is when the job reports its next use.
uint64_t EngineState::NeededUntil(const Job& job, Tier tier) const {
  const uint64_t now = job.foresight.now();
  uint64_t until = now, busy = 0, next_report = 0;
  for (uint64_t time = now; time < now + kMaxLook; ++time) {
    const absl::optional<uint32_t> member = job.foresight.At(time);
    if (!member.has_value()) break;
    if (next_report == 0) {
      next_report = job.foresight.MicrosUntil(time);
      busy += next_report;
    }
    const uint32_t place = PlaceWanted(job, *member, time);
    if (place == kNoPlace || job.foresight.NextUse(*member) != time) continue;
    busy += MicrosToBring(chunks_[place], tier);
    if (busy >= job.foresight.MicrosUntil(time)) until = time + 1;
  }
  return until;
}

void EngineState::NoteLink(Job& job, StartTransfer::Kind kind, Instant start) {
  Instant& free = job.link_free[Index(kind)];
  const auto micros = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now_ - std::max(start, free)).count());
  free = now_;
  uint64_t& average = job.link_micros[Index(kind)];
  average = average == 0 ? micros : (7 * average + micros) / 8;
}

// Who may leave the tier for a chunk that is expected at `time`: not who is expected sooner.
absl::optional<Candidate> EngineState::VictimAfter(const Job& job, Tier tier, uint64_t time) const {
  const absl::optional<Candidate> victim = job.tier(tier).victims.Next(job.foresight.now());
  if (!victim.has_value()) return absl::nullopt;
  const bool later = victim->value == CopyValue::kDuplicate || victim->next_use > time;
  // Who is planned to stay makes room only for what is wanted now: unless most of the tier is
  // leased, so that who is planned to leave cannot, and what is wanted next would come late.
  const JobTier& part = job.tier(tier);
  const bool planned = job.plan.has_value() && 2 * part.committed < part.slots->size();
  const bool stays = victim->value == CopyValue::kOnly || victim->value == CopyValue::kClean;
  return later && !(stays && planned) ? victim : absl::nullopt;
}

// Whether a chunk that is expected at `time` can have a slot without displacing one that is
// expected sooner.
bool EngineState::HasRoomUntil(Job& job, Tier tier, uint64_t time) {
  const SlotPool& slots = *job.tier(tier).slots;
  if (slots.spare_slots() > 0 || job.tier(tier).can_grow()) return true;
  if (VictimAfter(job, tier, time).has_value()) return true;
  if (tier == job.work) AskFarthestBack(job, time);
  return false;
}

// Leases of chunks that are expected after `time`.
void EngineState::AskFarthestBack(Job& job, uint64_t time) {
  std::map<SessionId, Revoke> revokes;
  int asked = 0;
  job.tier(job.work).held.VisitFarthest([&](const Candidate& candidate) {
    const bool leaves = candidate.value == CopyValue::kLeaving;
    if (!leaves && (candidate.next_use <= time || job.plan.has_value())) return false;
    if (candidate.next_use <= time) return true;
    Chunk& chunk = chunks_[job.members[candidate.member]];
    if (!chunk.asked_back && chunk.fetches.empty()) {
      chunk.asked_back = true;
      for (const Hold& hold : chunk.holds) {
        if (!hold.granted || FindSession(hold.session) == nullptr) continue;
        revokes[hold.session].chunks.push_back(IdOf(job.members[candidate.member]));
      }
    }
    return ++asked < kMaxAskedBack;
  });
  for (auto& [session, revoke] : revokes) {
    revoke.session = session;
    ++counters_.revokes;
    Emit(std::move(revoke));
  }
}

// Writes the copy that leaves next, when its link is idle, so that it can be dropped when the room
// is wanted.
bool EngineState::CleanAhead(Job& job, Tier tier) {
  using Kind = StartTransfer::Kind;
  JobTier& part = job.tier(tier);
  if (!part.exists() || tier == job.home || part.slots->spare_slots() > 0) return false;
  const bool idle = tier == Tier::kDevice ? job.flights[Index(Kind::kDeviceToHost)] == 0
                                          : job.flights[Index(Kind::kHostToSsd)] == 0 &&
                                                job.flights[Index(Kind::kSsdToHost)] == 0;
  if (!idle) return false;
  const uint64_t now = job.foresight.now();
  const absl::optional<Candidate> victim = part.victims.Next(now);
  const CopyValue leaving = job.plan.has_value() ? CopyValue::kLeaving : CopyValue::kOnly;
  if (!victim.has_value() || victim->value != leaving) return false;
  const uint32_t place = job.members[victim->member];
  if (chunks_[place].pinned() || chunks_[place].clean_from.has_value()) return false;
  if (tier == Tier::kDevice && job.home != Tier::kHost &&
      !IsWorthASlot(job, Tier::kHost, victim->next_use)) {
    return false;
  }
  chunks_[place].clean_from = tier;
  Ready(place);
  return true;
}

// Whether a copy for a use at `time` may take a slot there now, without a write and without
// displacing one that is expected sooner.
bool EngineState::IsWorthASlot(const Job& job, Tier tier, uint64_t time) const {
  const JobTier& part = job.tier(tier);
  if (!part.exists() || !part.slot_queue.empty()) return false;
  if (part.slots->spare_slots() > 0) return true;
  const absl::optional<Candidate> victim = VictimAfter(job, tier, time);
  return victim.has_value() && victim->value != CopyValue::kOnly &&
         victim->value != CopyValue::kLeaving;
}

}  // namespace memtide
