// Prediction: the uses that sessions report train the access predictor, which orders the victims.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/errors.h"
#include "daemon/engine/residency/copies.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

void Residency::On(const ReportCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  const absl::Status status = CheckMoments(core_.options.limits, event.moments);
  if (!status.ok()) return core_.Refuse(event.call, status);
  Learn(*session, event.moments);
  core_.Answer(event.call);
}

void Residency::Learn(const Session& session, const std::vector<MomentReport>& moments, UsedBy by) {
  Job& job = *session.job;
  // Ranks do the same at the same time. One of them is followed.
  if (job.ranks > 1 && job.sessions.front() != session.id) return;
  if (moments.empty()) return;
  const uint64_t clock = job.ClockAt(core_.now);
  size_t uses = 0;
  for (const MomentReport& moment : moments) {
    if (!moment.continues) {
      job.trace.Begin(core_.now, moment);
      job.own_host = moment.own_host;
      job.own_host_peak = std::max(job.own_host_peak, moment.own_host);
    }
    uses += moment.uses.size();
    for (const UseReport& use : moment.uses) {
      const absl::optional<ChunkIndex> index = core_.ids.Find(session, use.chunk);
      // The chunk was freed after its use, or the client sent a wrong id.
      if (!index.has_value()) continue;
      const Member member = core_.chunks[*index].member;
      const bool writes = use.access == Access::kWrite;
      job.trace.Use(member, writes ? TracedOperation::kWrite : TracedOperation::kRead);
      if (by == UsedBy::kPart) {
        job.forecast.UseByPart(member, clock, writes);
      } else {
        job.forecast.Use(member, clock, writes);
      }
      core_.chunks[*index].prefetched_to.Clear();
    }
    if (!moment.ends_iteration) continue;
    EndIteration(job, clock);
    job.trace.EndIteration();
  }
  const AccessPredictor::Changes changes = job.forecast.TakeChanges(uses);
  if (!core_.options.placement->follows_predictions()) return;
  // A use changes the order of a few chunks; a new prediction changes that of all.
  if (changes.all) {
    for (const ChunkIndex index : job.members) {
      if (index != kNoChunk) Rank(index);
    }
  } else {
    for (const Member member : changes.members) {
      const ChunkIndex index = job.members[member];
      if (index != kNoChunk) Rank(index);
    }
  }
  SchedulePrefetch(job);
}

void Residency::EndIteration(Job& job, uint64_t clock) {
  if (!job.forecast.EndIteration(clock, SlotsToPlan(job), job.work)) return;
  const AccessPredictor::Iteration& was = job.forecast.predictor().last_iteration();
  ++core_.counters.iterations;
  // The peak of this iteration predicts that of the next one (decision 17).
  job.own_host_predicted = std::exchange(job.own_host_peak, job.own_host);
  if (!was.misprediction) return;
  ++core_.counters.iteration_mispredictions;
  ++job.mispredictions;
  // Only the mispredictions number 1, 2, 4, 8 and so on are logged.
  if ((job.mispredictions & (job.mispredictions - 1)) != 0) return;
  core_.Emit(Misprediction{job.id, job.name, job.mispredictions, was.number, was.uses, was.expected,
                           was.as_expected, was.remembered});
}

// nullopt: no plan is possible. Optimizer steps use chunks on another tier and exchange their
// contents, which plans do not model.
absl::optional<ResidencyPlan::Slots> Residency::SlotsToPlan(const Job& job) const {
  if (!core_.options.placement->works_ahead() || job.committed_step > 0 || job.work == job.home) {
    return absl::nullopt;
  }
  ResidencyPlan::Slots slots;
  slots.upper = job.share(job.work).slots().size() + job.common.value();
  if (job.work == Tier::kDevice && job.home == Tier::kSsd) {
    slots.middle = job.share(Tier::kHost).slots().size();
  }
  return slots;
}

// The chunk with the content that the member is predicted to use at `time`.
ChunkIndex Residency::IndexWanted(const Job& job, Member member, VirtualTime time) const {
  const ChunkIndex index = job.members[member];
  if (index == kNoChunk || !core_.chunks[index].live()) return kNoChunk;
  const bool later = time >= job.forecast.predictor().iteration_end() &&
                     IsSuperseded(core_.chunks, core_.chunks[index]);
  return later ? core_.chunks[index].counterpart : index;
}

// The place of the copy at the tier in the order of the placement policy.
VirtualTime Residency::RankOf(const Chunk& chunk, Tier tier) {
  PlacementPolicy::Copy copy;
  copy.made = chunk.copies.insertion_seq[static_cast<int>(tier)];
  copy.ranked = ++rankings_;
  const AccessPredictor& predictor = chunk.job->forecast.predictor();
  if (predictor.has_prediction()) {
    // A superseded copy is not worth a write-back.
    const bool only = chunk.copies.valid.is_only(tier);
    copy.next_use = !IsSuperseded(core_.chunks, chunk) ? NextUseOfContent(core_.chunks, chunk)
                    : only                             ? predictor.now()
                                                       : predictor.iteration_end();
  }
  return core_.options.placement->RankOf(copy);
}

// Enters the chunk into the eviction queues again, with its present cost and next use.
void Residency::Rank(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  for (const Tier tier : kMemoryTiers) {
    if (!chunk.job->share(tier).exists()) continue;
    TierQueues& queues = chunk.job->tier(tier);
    if (queues.victims.Contains(chunk.member)) queues.victims.Remove(chunk.member);
    if (queues.pinned_queue.Contains(chunk.member)) queues.pinned_queue.Remove(chunk.member);
    UpdateVictim(index, tier);
  }
}

void Residency::UpdateVictim(ChunkIndex index, Tier tier) {
  const Chunk& chunk = core_.chunks[index];
  TierQueues& queues = chunk.job->tier(tier);
  if (!chunk.job->share(tier).exists() || tier == Tier::kSsd) return;
  const bool held = chunk.is_pinned_in_room(tier);
  if (held != queues.pinned_queue.Contains(chunk.member)) {
    if (held) {
      const bool leaves = !PlannedToStay(chunk, tier).value_or(true);
      queues.pinned_queue.Add({chunk.member, leaves ? EvictionCost::kLeaving : EvictionCost::kClean,
                               RankOf(chunk, tier)});
    } else {
      queues.pinned_queue.Remove(chunk.member);
    }
  }
  const bool may_leave = chunk.may_leave(tier);
  if (may_leave == queues.victims.Contains(chunk.member)) return;
  if (!may_leave) return queues.victims.Remove(chunk.member);
  queues.victims.Add({chunk.member, CostOf(chunk, tier), RankOf(chunk, tier)});
  core_.ScheduleRoomCheck(*chunk.job, tier);
}

// nullopt: the plan does not cover the chunk.
absl::optional<bool> Residency::PlannedToStay(const Chunk& chunk, Tier tier) const {
  const Job& job = *chunk.job;
  if (!job.forecast.has_plan()) return absl::nullopt;
  // The chunk was prefetched for its next use.
  if (chunk.prefetched_to.has(tier)) return true;
  const absl::optional<ResidencyPlan::Stay> stay = job.forecast.PlannedStay(chunk.member);
  if (!stay.has_value()) return absl::nullopt;
  return tier == job.work ? stay->upper : stay->middle;
}

EvictionCost Residency::CostOf(const Chunk& chunk, Tier tier) const {
  EvictionCost value = EvictionCost::kClean;
  if (chunk.copies.valid.is_only(tier)) value = EvictionCost::kOnly;
  if (const absl::optional<bool> stays = PlannedToStay(chunk, tier)) {
    if (*stays) return value;
    return value == EvictionCost::kOnly ? EvictionCost::kLeaving : EvictionCost::kDuplicate;
  }
  // The content is freed before it is read: dropping it costs as much as dropping a clean copy.
  const bool discounts = core_.options.placement->discounts_dead_content();
  if (discounts && value == EvictionCost::kOnly &&
      chunk.job->forecast.predictor().IsFreedNext(chunk.member)) {
    value = EvictionCost::kClean;
  }
  if (discounts && value == EvictionCost::kClean && IsSuperseded(core_.chunks, chunk)) {
    value = EvictionCost::kDuplicate;
  }
  // Dropping it is free now, but if the device has the only other copy, that one must be written
  // back later.
  if (tier == Tier::kHost && chunk.valid_at(Tier::kDevice) && chunk.valid_at(chunk.home)) {
    value = EvictionCost::kDuplicate;
  }
  return value;
}

void Residency::AddEvictionHints(const Session& session, FetchReply* reply) const {
  const Job& job = *session.job;
  if (!core_.options.placement->works_ahead() || !job.forecast.predictor().has_prediction()) return;
  size_t seen = 0;
  job.tier(job.work).pinned_queue.VisitFarthest([&](const Candidate& candidate) {
    const ChunkIndex index = job.members[candidate.member];
    for (const Pin& pin : core_.chunks[index].pins) {
      if (pin.session != session.id || !pin.granted()) continue;
      reply->eviction_hints.push_back(core_.ids.IdFor(index, session.id));
    }
    // Chunks that other sessions lease give no hint, so the search is bounded, too.
    return ++seen < 2 * kMaxEvictionHints && reply->eviction_hints.size() < kMaxEvictionHints;
  });
}

void Residency::SchedulePrefetch(Job& job) {
  if (!core_.options.placement->works_ahead() || !job.forecast.predictor().has_prediction()) return;
  core_.work.AddPrefetch(job.listed_work);
}

}  // namespace memtide
