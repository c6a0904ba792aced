// Foreseeing: what sessions report becomes an order of victims, and chunks that move ahead of need.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

constexpr Tier kMemoryTiers[] = {Tier::kDevice, Tier::kHost};

// Bytes on their way to a tier that nobody waits for yet. More would let a fetch wait longer behind
// them than it gains: 64 MiB take a disk about 30 ms.
constexpr Bytes kMaxAhead = MiB(64);
// How far one looks ahead, in uses, and every how many of them one looks again.
constexpr uint64_t kMaxLook = 512, kLookEvery = 4;
// Chunks are taken to be wanted so much earlier than they were. More would cost fewer stalls and
// more bytes.
constexpr uint64_t kAheadMicros = 3000;
// Leases that are asked back because others are needed sooner, in one go.
constexpr int kMaxAskedBack = 4;

constexpr int Index(StartTransfer::Kind kind) { return static_cast<int>(kind); }

}  // namespace

absl::Status EngineState::CheckMoments(const std::vector<MomentReport>& moments) const {
  size_t uses = 0;
  for (const MomentReport& moment : moments) uses += moment.uses.size();
  if (moments.size() <= options_.limits.moments_per_call && uses <= options_.limits.uses_per_call) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      moments.size(), " moments with ", uses, " uses reported; at most ",
      options_.limits.moments_per_call, " and ", options_.limits.uses_per_call, " a call"));
}

void EngineState::On(const ReportCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  const absl::Status status = CheckMoments(event.moments);
  if (!status.ok()) return Refuse(event.call, status);
  Learn(*session->job, event.moments);
  Answer(event.call);
}

void EngineState::Learn(Job& job, const std::vector<MomentReport>& moments) {
  if (moments.empty()) return;
  const uint64_t clock = ClockOf(job);
  for (const MomentReport& moment : moments) {
    if (!moment.continues) job.trace.Begin(now_, moment);
    for (const UseReport& use : moment.uses) {
      const absl::optional<uint32_t> place = Find(job, use.chunk);
      if (!place.has_value()) continue;
      const uint32_t member = chunks_[*place].member;
      job.trace.Use(
          member, use.access == Access::kWrite ? TracedOperation::kWrite : TracedOperation::kRead);
      job.foresight.Use(member, clock);
    }
    if (!moment.ends_iteration) continue;
    job.foresight.EndIteration(clock);
    job.trace.EndIteration();
  }
  const Foresight::Changes changes = job.foresight.TakeChanges();
  if (options_.placement == Placement::kLru || options_.placement == Placement::kFifo) return;
  if (changes.all) {
    for (const uint32_t place : job.members) {
      if (place != kNoPlace) Rank(place);
    }
    for (const Tier tier : kMemoryTiers) {
      job.tier(tier).looked_ahead = 0;
      job.tier(tier).look_again = 0;
    }
  } else {
    for (const uint32_t member : changes.members) {
      if (member < job.members.size() && job.members[member] != kNoPlace) {
        Rank(job.members[member]);
      }
    }
  }
  LookAhead(job);
}

uint64_t EngineState::ClockOf(const Job& job) const {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now_.time_since_epoch() - job.stalled)
          .count());
}

// When the chunk is expected, or as the placement that is compared wants it.
uint64_t EngineState::NextUse(const Chunk& chunk, Tier tier) {
  if (options_.placement == Placement::kFifo) {
    return 2 * Foresight::kUnknown - chunk.arrived[static_cast<int>(tier)];
  }
  if (options_.placement == Placement::kLru || !chunk.job->foresight.known()) {
    // Whoever may leave for the longest time is the first.
    return 2 * Foresight::kUnknown - ++turns_;
  }
  return chunk.job->foresight.NextUse(chunk.member);
}

// The chunk's place in the orders of its job is to be determined anew.
void EngineState::Rank(uint32_t place) {
  Chunk& chunk = chunks_[place];
  for (const Tier tier : kMemoryTiers) {
    JobTier& part = chunk.job->tier(tier);
    if (!part.exists()) continue;
    if (part.victims.Contains(chunk.member)) part.victims.Remove(chunk.member);
    if (part.held.Contains(chunk.member)) part.held.Remove(chunk.member);
    UpdateVictim(place, tier);
  }
}

void EngineState::UpdateVictim(uint32_t place, Tier tier) {
  const Chunk& chunk = chunks_[place];
  JobTier& part = chunk.job->tier(tier);
  if (!part.exists() || tier == Tier::kSsd) return;
  const bool held = chunk.live() && chunk.pinned_at(tier);
  if (held != part.held.Contains(chunk.member)) {
    if (held) {
      part.held.Add({chunk.member, CopyValue::kClean, NextUse(chunk, tier)});
    } else {
      part.held.Remove(chunk.member);
    }
  }
  const bool may_leave = chunk.live() && tier != chunk.job->home && chunk.slot(tier) &&
                         chunk.valid_at(tier) && !chunk.flight.has_value() &&
                         !chunk.pinned_at(tier) && !chunk.push_from.has_value() &&
                         !chunk.evict_to.has_value() && !chunk.cooling;
  if (may_leave == part.victims.Contains(chunk.member)) return;
  if (!may_leave) return part.victims.Remove(chunk.member);
  CopyValue value = CopyValue::kClean;
  if (chunk.valid == 1u << static_cast<int>(tier)) value = CopyValue::kOnly;
  // Written, but not read again: it costs as much as a clean one that is.
  const bool weighed = options_.placement == Placement::kForesight;
  if (weighed && value == CopyValue::kOnly && chunk.job->foresight.IsFreedNext(chunk.member)) {
    value = CopyValue::kClean;
  }
  // Where only the faster tier has the same, that one will have to be written instead.
  if (tier == Tier::kHost && chunk.valid_at(Tier::kDevice) && chunk.valid_at(chunk.job->home)) {
    value = CopyValue::kDuplicate;
  }
  part.victims.Add({chunk.member, value, NextUse(chunk, tier)});
  LookAtRoom(*chunk.job, tier);
}

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
    const uint32_t place = *member < job.members.size() ? job.members[*member] : kNoPlace;
    if (place == kNoPlace || !chunks_[place].live()) continue;
    Chunk& chunk = chunks_[place];
    const uint64_t expected = job.foresight.NextUse(*member);
    if (expected > part.looked_ahead) continue;  // It was used out of order since.
    const bool there = chunk.valid == 0 || chunk.valid_at(tier) || chunk.valid_at(job.work);
    const bool coming = chunk.pinned() || chunk.prefetch_to.value_or(Tier::kSsd) <= tier;
    if (there || coming || chunk.evict_to.has_value() || chunk.evicted) continue;
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
  if (chunk.valid == 0 || chunk.valid_at(tier) || chunk.valid_at(job.work)) return 0;
  return job.link_micros[Index(tier == Tier::kDevice ? Kind::kHostToDevice : Kind::kSsdToHost)];
}

// The first time from which on nothing needs to be brought yet. What is brought before it must
// displaces what could have been used once more: so as late as the links permit.
uint64_t EngineState::NeededUntil(const Job& job, Tier tier) const {
  const uint64_t now = job.foresight.now();
  uint64_t until = now, busy = kAheadMicros;
  for (uint64_t time = now; time < now + kMaxLook; ++time) {
    const absl::optional<uint32_t> member = job.foresight.At(time);
    if (!member.has_value()) break;
    const uint32_t place = *member < job.members.size() ? job.members[*member] : kNoPlace;
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

// Whether a chunk that is expected at `time` can have a slot without displacing one that is
// expected sooner.
bool EngineState::HasRoomUntil(Job& job, Tier tier, uint64_t time) {
  JobTier& part = job.tier(tier);
  if (part.slots->spare_slots() > 0 || part.slots->missing_slots() > 0) return true;
  const absl::optional<Candidate> victim = part.victims.Next(job.foresight.now());
  if (victim.has_value() && (victim->value == CopyValue::kDuplicate || victim->next_use > time))
    return true;
  if (tier == job.work) AskFarthestBack(job, time);
  return false;
}

// Leases of chunks that are expected after `time`.
void EngineState::AskFarthestBack(Job& job, uint64_t time) {
  std::map<SessionId, Revoke> revokes;
  int asked = 0;
  job.tier(job.work).held.VisitFarthest([&](const Candidate& candidate) {
    if (candidate.next_use <= time) return false;
    Chunk& chunk = chunks_[job.members[candidate.member]];
    if (!chunk.asked_back && chunk.fetches.empty()) {
      chunk.asked_back = true;
      for (const Hold& hold : chunk.holds) {
        if (!hold.granted) continue;
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
  if (!victim.has_value() || victim->value != CopyValue::kOnly) return false;
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
  const absl::optional<Candidate> victim = part.victims.Next(job.foresight.now());
  if (!victim.has_value() || victim->value == CopyValue::kOnly) return false;
  return victim->value == CopyValue::kDuplicate || victim->next_use > time;
}

void EngineState::AddFarthest(const Session& session, FetchReply* reply) const {
  const Job& job = *session.job;
  if (options_.placement != Placement::kForesight || !job.foresight.known()) return;
  size_t seen = 0;
  job.tier(job.work).held.VisitFarthest([&](const Candidate& candidate) {
    const uint32_t place = job.members[candidate.member];
    for (const Hold& hold : chunks_[place].holds) {
      if (hold.session == session.id && hold.granted) reply->farthest.push_back(IdOf(place));
    }
    return ++seen < 2 * kMaxFarthest && reply->farthest.size() < kMaxFarthest;
  });
}

}  // namespace memtide
