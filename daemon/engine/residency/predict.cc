// Prefetcher, prediction: the uses that sessions report train the access predictor.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/errors.h"
#include "daemon/engine/residency/copies.h"
#include "daemon/engine/residency/prefetcher.h"

namespace memtide {

namespace {

// Events from now in which chunks are leased ahead of their uses.
constexpr uint64_t kUsesAhead = 128;
// Events after its next use in which a write makes a lease one for writing.
constexpr uint64_t kSoonAfter = 24;

}  // namespace

void Prefetcher::On(const ReportCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  const absl::Status status = CheckMoments(core_.options.limits, event.moments);
  if (!status.ok()) return core_.Refuse(event.call, status);
  Learn(*session, event.moments);
  ReportReply reply;
  AddAhead(*session, &reply.ahead);
  core_.AnswerWith(event.call, std::move(reply));
}

void Prefetcher::Learn(const Session& session, const std::vector<MomentReport>& moments,
                       UsedBy by) {
  Job& job = *session.job;
  // Ranks do the same at the same time. One of them is followed.
  if (job.ranks > 1 && job.sessions.front() != session.id) return;
  if (moments.empty()) return;
  const uint64_t clock = job.clock.MicrosecondsAt(core_.now);
  size_t uses = 0;
  for (const MomentReport& moment : moments) {
    if (!moment.continues) {
      job.trace.Begin(core_.now, moment);
      job.own_host.Report(moment.own_host);
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
    for (const ChunkIndex index : job.members.chunks()) victims_.Rank(index);
  } else {
    for (const Member member : changes.members) {
      const ChunkIndex index = job.members[member];
      if (index != kNoChunk) victims_.Rank(index);
    }
  }
  residency_.SchedulePrefetch(job);
}

void Prefetcher::EndIteration(Job& job, uint64_t clock) {
  const auto there = [&](Member member) -> absl::optional<SlotNumber> {
    const ChunkIndex index = job.members[member];
    if (index == kNoChunk) return absl::nullopt;
    const Slot& slot = core_.chunks[index].slot(job.lease_tier);
    return slot ? absl::make_optional(slot.number()) : absl::nullopt;
  };
  if (!job.forecast.EndIteration(clock, SlotsToPlan(job), job.lease_tier, there)) return;
  const AccessPredictor::Iteration& was = job.forecast.predictor().last_iteration();
  ++core_.counters.iterations;
  // The peak of this iteration predicts that of the next one (decision 17).
  job.own_host.EndIteration();
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
absl::optional<ResidencyPlan::Slots> Prefetcher::SlotsToPlan(const Job& job) const {
  if (!core_.options.placement->works_ahead() || job.committed_step > 0 ||
      job.lease_tier == job.home) {
    return absl::nullopt;
  }
  ResidencyPlan::Slots slots;
  slots.upper = job.share(job.lease_tier).slots().size() + job.common.value();
  const Share& share = job.share(job.lease_tier);
  if (share.by_slot()) slots.fixed = share.slots().Numbers();
  if (job.lease_tier == Tier::kDevice && job.home == Tier::kSsd) {
    slots.middle = job.share(Tier::kHost).slots().size();
  }
  return slots;
}

// The chunk with the content that the member is predicted to use at `time`.
ChunkIndex Prefetcher::IndexWanted(const Job& job, Member member, VirtualTime time) const {
  const ChunkIndex index = job.members[member];
  if (index == kNoChunk || !core_.chunks[index].live()) return kNoChunk;
  const bool later = time >= job.forecast.predictor().iteration_end() &&
                     IsSuperseded(core_.chunks, core_.chunks[index]);
  return later ? core_.chunks[index].counterpart : index;
}

void Prefetcher::AddEvictionHints(const Session& session, FetchReply* reply) const {
  const Job& job = *session.job;
  if (!core_.options.placement->works_ahead() || !job.forecast.predictor().has_prediction()) return;
  size_t seen = 0;
  job.tier(job.lease_tier).pinned_queue.VisitFarthest([&](const Candidate& candidate) {
    const ChunkIndex index = job.members[candidate.member];
    const bool leaves = candidate.cost == EvictionCost::kLeaving;
    for (const Pin& pin : core_.chunks[index].uses().pins) {
      if (pin.session != session.id || !pin.granted()) continue;
      if (leaves && job.forecast.has_fixed_slots()) ++reply->leaving;
      reply->eviction_hints.push_back(core_.ids.IdFor(index, session.id));
    }
    // Chunks that other sessions lease give no hint, so the search is bounded, too.
    return ++seen < 2 * kMaxEvictionHints && reply->eviction_hints.size() < kMaxEvictionHints;
  });
}

void Prefetcher::AddAhead(const Session& session, ChunksAhead* ahead) const {
  const Job& job = *session.job;
  const AccessPredictor& predictor = job.forecast.predictor();
  // A lease for writing excludes other sessions.
  if (job.sessions.size() != 1 || job.ranks > 1 || !job.forecast.has_fixed_slots()) return;
  std::vector<std::pair<ChunkIndex, VirtualTime>> order;  // With the next use.
  std::map<ChunkIndex, bool> writes;  // Whether that one writes, or one soon after.
  for (VirtualTime time = predictor.now(); time < predictor.now() + kUsesAhead; ++time) {
    const absl::optional<Member> member = predictor.At(time);
    if (!member.has_value()) break;
    const ChunkIndex index = IndexWanted(job, *member, time);
    if (index == kNoChunk) continue;
    const auto found = writes.find(index);
    if (found == writes.end()) {
      // A chunk that is freed first must not become dirty.
      if (predictor.NextUse(*member) != time) continue;
      order.emplace_back(index, time);
      writes.emplace(index, predictor.WritesAt(time));
    } else if (predictor.WritesAt(time)) {
      const auto first = std::find_if(order.begin(), order.end(),
                                      [index](const auto& one) { return one.first == index; });
      found->second = found->second || time < first->second + kSoonAfter;
    }
  }
  for (const auto& [index, time] : order) {
    if (ahead->reads.size() + ahead->writes.size() >= kMaxChunksAhead) return;
    const Chunk& chunk = core_.chunks[index];
    const bool comes =
        chunk.copies().flight && chunk.prefetch_to.value_or(Tier::kSsd) == job.lease_tier;
    ahead->more_come = ahead->more_come || comes;
    if (!MayLeaseAhead(chunk, session.id, writes[index])) continue;
    (writes[index] ? ahead->writes : ahead->reads).push_back(core_.ids.IdFor(index, session.id));
  }
}

// Whether a lease of the session needs no wait, and is not to end at once.
bool Prefetcher::MayLeaseAhead(const Chunk& chunk, SessionId session, bool writes) const {
  const Tier tier = chunk.job->lease_tier;
  if (!chunk.valid_at(tier) || chunk.copies().flight || !chunk.uses().waiters.empty()) return false;
  if (chunk.copies().torn || chunk.common() != nullptr) return false;
  if (chunk.uses().evict_to.has_value() || chunk.is_evicted()) return false;
  if (!victims_.PlannedToStay(chunk, tier).value_or(true)) return false;
  if (!chunk.pinned()) return !chunk.evict_from.has_value();
  const Pin* const pin = chunk.uses().FindPin(session);
  return chunk.uses().pins.size() == 1 && pin != nullptr && pin->granted() && pin->pending == 0 &&
         writes && pin->access == Access::kRead;
}

}  // namespace memtide
