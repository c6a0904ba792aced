// Foreseeing: what sessions report becomes an order of victims.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

constexpr Tier kMemoryTiers[] = {Tier::kDevice, Tier::kHost};

}  // namespace

absl::Status EngineState::CheckMoments(const std::vector<MomentReport>& moments) const {
  const Limits& limits = options_.limits;
  size_t uses = 0, ends = 0;
  for (const MomentReport& moment : moments) {
    uses += moment.uses.size();
    ends += moment.ends_iteration;
  }
  if (moments.size() <= limits.moments_per_call && uses <= limits.uses_per_call &&
      ends <= limits.iteration_ends_per_call) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(moments.size(), " moments with ", uses, " uses and ", ends,
                   " ends of iterations reported; at most ", limits.moments_per_call, ", ",
                   limits.uses_per_call, " and ", limits.iteration_ends_per_call, " a call"));
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
    if (!moment.continues) {
      job.trace.Begin(now_, moment);
      job.own_host = moment.own_host;
      job.own_host_peak = std::max(job.own_host_peak, moment.own_host);
    }
    for (const UseReport& use : moment.uses) {
      const absl::optional<uint32_t> place = Find(job, use.chunk);
      if (!place.has_value()) continue;
      const uint32_t member = chunks_[*place].member;
      job.trace.Use(
          member, use.access == Access::kWrite ? TracedOperation::kWrite : TracedOperation::kRead);
      job.foresight.Use(member, clock, use.access == Access::kWrite);
      chunks_[*place].came_ahead = 0;
    }
    if (!moment.ends_iteration) continue;
    EndIteration(job, clock);
    job.trace.EndIteration();
  }
  const bool planned = WorkOnPlan(job, moments);
  const Foresight::Changes changes = job.foresight.TakeChanges();
  if (options_.placement == Placement::kLru || options_.placement == Placement::kFifo) return;
  if (changes.all || planned) {
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

void EngineState::EndIteration(Job& job, uint64_t clock) {
  const uint64_t before = job.foresight.last_iteration().number;
  job.foresight.EndIteration(clock);
  const Foresight::Iteration& was = job.foresight.last_iteration();
  if (was.number == before) return;  // It had no use.
  ++counters_.iterations;
  job.own_host_foreseen = std::exchange(job.own_host_peak, job.own_host);
  PlanIteration(job);
  if (!was.surprise) return;
  ++counters_.iteration_surprises;
  ++job.surprises;
  if ((job.surprises & (job.surprises - 1)) != 0) return;
  Emit(Surprise{job.id, job.name, job.surprises, was.number, was.uses, was.expected,
                was.as_expected, was.remembered});
}

uint64_t EngineState::ClockOf(const Job& job) const {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now_.time_since_epoch() - job.stalled)
          .count());
}

// Whether a step has been made into its twin, so that what the chunk holds will be nobody's once
// that is published, and nobody is expected to use it before.
bool EngineState::IsSuperseded(const Chunk& chunk) const {
  if (chunk.partner == kNoPlace || chunk.is_twin || chunks_[chunk.partner].valid == 0) return false;
  const Foresight& foresight = chunk.job->foresight;
  return foresight.known() && foresight.NextUse(chunk.member) >= foresight.iteration_end();
}

// When what the chunk holds is expected to be used: a twin's content is its partner's from the end
// of the iteration on.
uint64_t EngineState::NextUseOfContent(const Chunk& chunk) const {
  const Foresight& foresight = chunk.job->foresight;
  const uint64_t own = foresight.NextUse(chunk.member);
  if (!chunk.is_twin || chunk.valid == 0 || own < foresight.iteration_end()) return own;
  return foresight.UseAfterIteration(chunks_[chunk.partner].member);
}

// Where the content is that the job's member is expected to use at a time.
uint32_t EngineState::PlaceWanted(const Job& job, uint32_t member, uint64_t time) const {
  const uint32_t place = member < job.members.size() ? job.members[member] : kNoPlace;
  if (place == kNoPlace || !chunks_[place].live()) return kNoPlace;
  const bool later = time >= job.foresight.iteration_end() && IsSuperseded(chunks_[place]);
  return later ? chunks_[place].partner : place;
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
  if (!IsSuperseded(chunk)) return NextUseOfContent(chunk);
  // To write what will soon be nobody's would be in vain.
  const bool only = chunk.valid == 1u << static_cast<int>(tier);
  return only ? chunk.job->foresight.now() : chunk.job->foresight.iteration_end();
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

bool EngineState::IsHeld(const Chunk& chunk, Tier tier) const {
  return tier != Tier::kSsd && chunk.live() && chunk.pinned_at(tier);
}

bool EngineState::MayLeave(const Chunk& chunk, Tier tier) const {
  return tier != Tier::kSsd && chunk.live() && tier != chunk.job->home && chunk.slot(tier) &&
         chunk.valid_at(tier) && !chunk.flight.has_value() && !chunk.pinned_at(tier) &&
         !chunk.push_from.has_value() && !chunk.evict_to.has_value() && !chunk.cooling;
}

void EngineState::UpdateVictim(uint32_t place, Tier tier) {
  const Chunk& chunk = chunks_[place];
  JobTier& part = chunk.job->tier(tier);
  if (!part.exists() || tier == Tier::kSsd) return;
  const bool held = IsHeld(chunk, tier);
  if (held != part.held.Contains(chunk.member)) {
    if (held) {
      const bool leaves = !PlannedToStay(chunk, tier).value_or(true);
      part.held.Add(
          {chunk.member, leaves ? CopyValue::kLeaving : CopyValue::kClean, NextUse(chunk, tier)});
    } else {
      part.held.Remove(chunk.member);
    }
  }
  const bool may_leave = MayLeave(chunk, tier);
  if (may_leave == part.victims.Contains(chunk.member)) return;
  if (!may_leave) return part.victims.Remove(chunk.member);
  part.victims.Add({chunk.member, ValueOf(chunk, tier), NextUse(chunk, tier)});
  LookAtRoom(*chunk.job, tier);
}

CopyValue EngineState::ValueOf(const Chunk& chunk, Tier tier) const {
  CopyValue value = CopyValue::kClean;
  if (chunk.valid == 1u << static_cast<int>(tier)) value = CopyValue::kOnly;
  if (const absl::optional<bool> stays = PlannedToStay(chunk, tier)) {
    if (*stays) return value;
    return value == CopyValue::kOnly ? CopyValue::kLeaving : CopyValue::kDuplicate;
  }
  // Written, but not read again: it costs as much as a clean one that is.
  const bool weighed = options_.placement == Placement::kForesight;
  if (weighed && value == CopyValue::kOnly && chunk.job->foresight.IsFreedNext(chunk.member)) {
    value = CopyValue::kClean;
  }
  if (weighed && value == CopyValue::kClean && IsSuperseded(chunk)) value = CopyValue::kDuplicate;
  // Where only the faster tier has the same, that one will have to be written instead.
  if (tier == Tier::kHost && chunk.valid_at(Tier::kDevice) && chunk.valid_at(chunk.job->home)) {
    value = CopyValue::kDuplicate;
  }
  return value;
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
