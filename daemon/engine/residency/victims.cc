#include "daemon/engine/residency/victims.h"

#include "daemon/engine/residency/copies.h"

namespace memtide {

namespace {

// Events until a use for which a chunk stays in a slot that the plan gives others.
constexpr uint64_t kSoonUsed = 32;

}  // namespace

// The place of the copy at the tier in the order of the placement policy.
VirtualTime Victims::RankOf(const Chunk& chunk, Tier tier) {
  PlacementPolicy::Copy copy;
  copy.made = chunk.copies().insertion_seq[static_cast<int>(tier)];
  copy.ranked = ++rankings_;
  const AccessPredictor& predictor = chunk.job->forecast.predictor();
  if (predictor.has_prediction()) {
    // A superseded copy is not worth a write-back.
    const bool only = chunk.copies().valid.is_only(tier);
    copy.next_use = !IsSuperseded(core_.chunks, chunk) ? NextUseOfContent(core_.chunks, chunk)
                    : only                             ? predictor.now()
                                                       : predictor.iteration_end();
  }
  return core_.options.placement->RankOf(copy);
}

void Victims::Rank(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  for (const Tier tier : kMemoryTiers) {
    if (!chunk.job->share(tier).exists()) continue;
    TierQueues& queues = chunk.job->tier(tier);
    if (queues.victims.Contains(chunk.member)) queues.victims.Remove(chunk.member);
    if (queues.pinned_queue.Contains(chunk.member)) queues.pinned_queue.Remove(chunk.member);
    Update(index, tier);
  }
}

void Victims::Update(ChunkIndex index) {
  for (const Tier tier : kMemoryTiers) Update(index, tier);
}

void Victims::Update(ChunkIndex index, Tier tier) {
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

absl::optional<bool> Victims::PlannedToStay(const Chunk& chunk, Tier tier) const {
  const Job& job = *chunk.job;
  if (!job.forecast.has_plan()) return absl::nullopt;
  // The chunk was prefetched for its next use.
  if (chunk.prefetched_to.has(tier)) return true;
  const absl::optional<ResidencyPlan::Stay> stay = job.forecast.PlannedStay(chunk.member);
  if (!stay.has_value()) return absl::nullopt;
  // In the slot of another one it is in the way, unless it is used soon.
  const absl::optional<SlotNumber> planned = job.forecast.PlannedSlot(tier, chunk.member);
  const Slot& slot = chunk.slot(tier);
  if (planned.has_value() && slot && slot.number() != *planned) {
    return stay->upper &&
           NextUseOfContent(core_.chunks, chunk) < job.forecast.predictor().now() + kSoonUsed;
  }
  return tier == job.lease_tier ? stay->upper : stay->middle;
}

EvictionCost Victims::CostOf(const Chunk& chunk, Tier tier) const {
  EvictionCost value = EvictionCost::kClean;
  if (chunk.copies().valid.is_only(tier)) value = EvictionCost::kOnly;
  if (const absl::optional<bool> stays = PlannedToStay(chunk, tier)) {
    if (*stays) return value;
    return value == EvictionCost::kOnly ? EvictionCost::kLeaving : EvictionCost::kNone;
  }
  // The content is freed before it is read: dropping it costs as much as dropping a clean copy.
  const bool discounts = core_.options.placement->discounts_dead_content();
  if (discounts && value == EvictionCost::kOnly &&
      chunk.job->forecast.predictor().IsFreedNext(chunk.member)) {
    value = EvictionCost::kClean;
  }
  if (discounts && value == EvictionCost::kClean && IsSuperseded(core_.chunks, chunk)) {
    value = EvictionCost::kNone;
  }
  // Dropping it is free now, but if the device has the only other copy, that one must be written
  // back later.
  if (tier == Tier::kHost && chunk.valid_at(Tier::kDevice) && chunk.valid_at(chunk.home())) {
    value = EvictionCost::kNone;
  }
  return value;
}

ChunkIndex Victims::InSlot(const Job& job, Tier tier, SlotNumber slot) const {
  const std::vector<ChunkIndex>& takers = job.tier(tier).takers;
  if (slot.value() >= takers.size()) return kNoChunk;
  const ChunkIndex index = takers[slot.value()];
  if (index == kNoChunk || core_.chunks[index].job != &job) return kNoChunk;
  const Slot& held = core_.chunks[index].slot(tier);
  return held && held.number() == slot ? index : kNoChunk;
}

absl::optional<Candidate> Victims::After(const Job& job, Tier tier, VirtualTime time) const {
  const absl::optional<Candidate> victim =
      job.tier(tier).victims.Next(job.forecast.predictor().now());
  if (!victim.has_value()) return absl::nullopt;
  const bool later = victim->cost == EvictionCost::kNone || victim->next_use > time;
  // A copy that the residency plan retains makes room only for a demand transfer. While most of the
  // tier is leased, the planned victims cannot leave, and the next uses would come late: then it
  // may leave, too.
  const bool planned = job.forecast.has_plan() &&
                       2 * job.tier(tier).pinned_chunks() < job.share(tier).slots().size();
  const bool stays = victim->cost == EvictionCost::kOnly || victim->cost == EvictionCost::kClean;
  return later && !(stays && planned) ? victim : absl::nullopt;
}

}  // namespace memtide
