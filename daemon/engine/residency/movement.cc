// Movement: how chunks reach a tier and leave it. The pending movements and the copies of a chunk
// determine its next transfer. Advance() starts one, and runs again when something changed.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/residency/copies.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

Residency::Progress Residency::BeginAdvance(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  // On(TransferDone) lists the chunk again, because a chunk has one transfer in flight at most.
  if (!chunk.live() || chunk.copies().flight) return Progress::kNone;
  if (chunk.job->is_replacing()) {  // memory_.RegionCopied() lists it again.
    victims_.Update(index);
    return Progress::kNone;
  }
  queued_for_.Clear();
  if (InQuarantine(chunk)) LeaveQuarantine(index);
  if (chunk.pinned()) StopPrefetch(chunk);
  if (chunk.evict_from.has_value() && chunk.pinned_at(*chunk.evict_from)) CancelEviction(chunk);
  if (!chunk.uses().waiters.empty()) {
    if (PromoteTo(index, chunk.uses().pin_tier)) return Progress::kReached;
  } else if (chunk.prefetch_to.has_value()) {
    if (PromoteTo(index, *chunk.prefetch_to)) StopPrefetch(chunk);
  } else if (chunk.uses().evict_to.has_value()) {
    bool gone = true;
    for (const Tier tier : kMemoryTiers) {
      if (tier >= *chunk.uses().evict_to || tier == chunk.home() || chunk.pinned()) continue;
      gone = gone && EvictFrom(index, tier);
    }
    if (gone || chunk.pinned()) return Progress::kEvicted;
  }
  return Progress::kMoves;
}

void Residency::Advance(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  // A victim leaves even while its chunk waits for a faster tier: the copy that leaves there may
  // need this very slot.
  if (!chunk.copies().flight && chunk.evict_from.has_value() &&
      EvictFrom(index, *chunk.evict_from)) {
    CancelEviction(chunk);
  }
  if (!chunk.copies().flight && chunk.write_back_from.has_value() &&
      WriteBack(index, *chunk.write_back_from)) {
    chunk.write_back_from.reset();
  }
}

void Residency::EndAdvance(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  SchedulePrefetch(*chunk.job);
  if (chunk.copies().flight) return;
  for (const Tier tier : kMemoryTiers) {
    if (chunk.waits_for.has(tier) && !queued_for_.has(tier)) StopWaitingForSlot(index, tier);
  }
  if (!queued_for_.has(Tier::kSsd)) StopWaitingForWrite(index);
  FreeUnusedSlots(index);
  victims_.Update(index);  // All that has changed since BeginAdvance().
}

// Only a chunk that is on its way to a tier has a slot without a copy there.
void Residency::FreeUnusedSlots(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  if (!chunk.uses().waiters.empty() || chunk.prefetch_to.has_value()) return;
  for (const Tier tier : kMemoryTiers) {
    if (chunk.slot(tier) && !chunk.valid_at(tier) && !chunk.KeepsSlot(tier)) {
      DropCopy(index, tier);
    }
  }
}

bool Residency::PromoteTo(ChunkIndex index, Tier tier) {
  Chunk& chunk = core_.chunks[index];
  if (chunk.valid_at(tier)) return true;
  if (!TakeSlot(index, tier)) return false;
  // Only at the home tier does a chunk keep such a slot. On(ClientQuiet) lists the chunk again.
  if (tier == Tier::kDevice && InQuarantine(chunk)) return false;
  // Sessions that write alike fill a chunk with the same, but what is between their tensors stays.
  const bool needs_zeros = chunk.is_shadow && core_.chunks[chunk.counterpart].repeats_offer;
  if (!chunk.has_content() && chunk.uses().overwrite && !needs_zeros) {
    // A step is about to write the whole chunk.
    copies_[index].valid = TierSet(tier);
    copies_[index].discarded = false;
    chunk.blank = true;
    return true;
  }
  // The slot's old bytes disclose nothing: no region ever has two tenants.
  const bool may_be_anything = chunk.undefined || chunk.copies().discarded;
  if (!chunk.has_content() && may_be_anything && !needs_zeros) {
    copies_[index].valid = TierSet(tier);
    copies_[index].discarded = false;
    core_.MarkDirty(index);
    return true;
  }
  // The chunk was never written, so a transfer fills the slot with zeros.
  if (!chunk.has_content()) {
    Start(index, absl::nullopt, tier);
  } else if (tier == Tier::kDevice && !chunk.valid_at(Tier::kHost)) {
    // The chunk passes from SSD through the host. Its host slot is taken after the device slot,
    // never before: otherwise two chunks could wait for each other.
    if (TakeSlot(index, Tier::kHost)) Start(index, Tier::kSsd, Tier::kHost);
  } else if (tier == Tier::kDevice) {
    Start(index, Tier::kHost, tier);
  } else {
    Start(index, chunk.valid_at(Tier::kDevice) ? Tier::kDevice : Tier::kSsd, tier);
  }
  return false;
}

bool Residency::EvictFrom(ChunkIndex index, Tier tier) {
  Chunk& chunk = core_.chunks[index];
  if (chunk.copies().flight) return false;
  if (!chunk.slot(tier)) return true;
  if (!IsOnlyCopy(chunk, tier)) {
    if (IsChosenForCheck(index, tier)) {
      StartCheck(index);
      return false;
    }
    if (chunk.valid_at(tier)) {
      ++core_.counters.evictions;
      if (!chunk.wrote_back) ++core_.counters.dropped_clean;
      chunk.job->trace.Moved(Trace(chunk, tier, absl::nullopt));
    }
    chunk.wrote_back = false;
    if (tier == Tier::kDevice) chunk.checked = false;
    DropCopy(index, tier);
    return true;
  }
  const Tier lower = tier == Tier::kDevice ? Tier::kHost : Tier::kSsd;
  // A write-back to the lowest tier never waits here, because the chunk owns its slot there.
  if (!TakeSlot(index, lower)) return false;
  if (lower == Tier::kSsd && (!LeaveSnapshotSlot(index) || !BeginWrite(index))) return false;
  chunk.wrote_back = true;
  Start(index, tier, lower);
  return false;
}

bool Residency::WriteBack(ChunkIndex index, Tier tier) {
  Chunk& chunk = core_.chunks[index];
  const Tier lower = tier == Tier::kDevice ? Tier::kHost : Tier::kSsd;
  const bool wanted = IsOnlyCopy(chunk, tier) && !chunk.pinned() && !chunk.evict_from.has_value();
  if (!wanted) return true;
  if (!TakeSlot(index, lower)) return false;
  if (lower == Tier::kSsd) {
    // A write that may prove needless takes no budget from one that is needed.
    if (!core_.writes.MayBegin(core_.now, WriteOf(index))) return true;
    if (!LeaveSnapshotSlot(index) || !BeginWrite(index)) return false;
  }
  Start(index, tier, lower);
  return true;
}

void Residency::CancelEviction(Chunk& chunk) {
  if (!chunk.evict_from.has_value()) return;
  const Tier tier = *chunk.evict_from;
  chunk.job->tier(tier).evicting.Clear(chunk.evict_from);
  core_.ScheduleRoomCheck(*chunk.job, tier);
}

void Residency::StopPrefetch(Chunk& chunk) {
  if (!chunk.prefetch_to.has_value()) return;
  chunk.job->tier(*chunk.prefetch_to).prefetches.Clear(chunk.prefetch_to);
}

bool Residency::TakeSlot(ChunkIndex index, Tier tier) {
  Chunk& chunk = core_.chunks[index];
  if (chunk.has_slot(tier)) return true;
  Share& share = chunk.job->share(tier);
  std::deque<ChunkIndex>& queue = chunk.job->tier(tier).slot_queue;
  const bool queued = chunk.waits_for.has(tier);
  // The queue is served in its order: a chunk behind others takes a slot only if each of them can
  // have one. So only the first chunks of the queue need a look.
  const size_t spare = share.slots().spare_slots();
  const auto first = queue.begin(), past = first + std::min(spare, queue.size());
  if (queued ? std::find(first, past, index) != past : queue.size() < spare) {
    const absl::optional<SlotNumber> planned = chunk.job->forecast.PlannedSlot(tier, chunk.member);
    if (planned.has_value() && chunk.pinned()) DropClean(*chunk.job, tier, *planned);
    Slot& slot = copies_[index].slot(tier);
    slot =
        !planned.has_value() ? share.Take() : share.TakePlanned(*planned, [&](SlotNumber number) {
          return chunk.job->forecast.UnwantedFor(number);
        });
    if (tier == Tier::kDevice) {
      std::vector<ChunkIndex>& takers = chunk.job->tier(tier).takers;
      takers.resize(share.slots().numbers(), kNoChunk);
      takers[slot.number().value()] = index;
    }
    StopWaitingForSlot(index, tier);
    return true;
  }
  if (!queued) {
    queue.push_back(index);
    chunk.waits_for.Add(tier);
  }
  queued_for_.Add(tier);
  core_.ScheduleRoomCheck(*chunk.job, tier);
  return false;
}

// The copy in that slot leaves for one that is needed now, if that takes no transfer.
void Residency::DropClean(Job& job, Tier tier, SlotNumber slot) {
  const ChunkIndex there = victims_.InSlot(job, tier, slot);
  if (there == kNoChunk || !core_.chunks[there].may_leave(tier)) return;
  if (core_.chunks[there].prefetched_to.has(tier)) return;
  if (!IsOnlyCopy(core_.chunks[there], tier)) EvictFrom(there, tier);
}

void Residency::StopWaitingForSlot(ChunkIndex index, Tier tier) {
  Chunk& chunk = core_.chunks[index];
  if (!chunk.waits_for.has(tier)) return;
  chunk.waits_for.Remove(tier);
  std::deque<ChunkIndex>& queue = chunk.job->tier(tier).slot_queue;
  queue.erase(std::find(queue.begin(), queue.end(), index));
  core_.ScheduleRoomCheck(*chunk.job, tier);
}

void Residency::WriteInPlace(ChunkIndex index) {
  const Chunk& chunk = core_.chunks[index];
  BeginVersion(index, TierSet(chunk.uses().pin_tier));
  if (chunk.job->snapshots.saving.has_value()) core_.ScheduleChunk(index);
}

void Residency::BeginVersion(ChunkIndex index, TierSet valid) {
  Chunk& chunk = core_.chunks[index];
  // A transfer of the old content in flight does not count at its end.
  chunk.version = Version(chunk.version.value() + 1);
  copies_[index].torn = copies_[index].memory_failed = false;
  copies_[index].valid = valid;
  core_.MarkDirty(index);
  for (const Tier tier : kMemoryTiers) {
    // The slots of a transfer in flight are freed when it ends.
    const Flight* const flight = chunk.copies().flight.get();
    const bool in_use = flight != nullptr && (flight->to == tier || flight->from == tier);
    const bool stays = chunk.valid_at(tier) || chunk.KeepsSlot(tier) || in_use;
    if (chunk.slot(tier) && !stays) DropCopy(index, tier);
  }
}

void Residency::DropCopy(ChunkIndex index, Tier tier) {
  Chunk& chunk = core_.chunks[index];
  core_.MarkDirty(index);
  copies_[index].valid.Remove(tier);
  copies_[index].slot(tier).Free();
  // The eviction cost of the other copies has changed, too.
  victims_.Rank(index);
  JobForecast& forecast = chunk.job->forecast;
  if (forecast.predictor().has_prediction()) {
    forecast.PrefetchAgainFrom(tier, NextUseOfContent(core_.chunks, chunk));
  }
  core_.ScheduleRoomCheck(*chunk.job, tier);
}

void Residency::MakeRoom(Job& job, Tier tier) {
  TierQueues& queues = job.tier(tier);
  Share& share = job.share(tier);
  share.by_slot() ? memory_.GiveSurplusBack(job) : memory_.ReleaseSurplusSlots(job, tier);
  const size_t free = share.slots().spare_slots();
  const size_t waiting = queues.slot_queue.size();
  for (size_t i = 0; i < std::min(free, waiting); ++i) core_.ScheduleChunk(queues.slot_queue[i]);
  const size_t wanted = waiting + share.slots().surplus_slots();
  // Victims that still leave count as slots. Otherwise each room check would choose more of them.
  if (wanted <= free + queues.evicting.value()) return;
  const bool shrinks = share.slots().surplus_slots() > 0 || share.balloon() > 0;
  if (!shrinks && !share.can_grow())
    memory_.GrowShare(job, tier, static_cast<uint32_t>(waiting - free));
  // New memory costs less than a victim that must be read again. memory_.SegmentMade() lists a room
  // check.
  if (share.can_grow()) return memory_.Grow(job, tier);
  for (size_t missing = wanted - free - queues.evicting.value(); missing > 0; --missing) {
    const absl::optional<Candidate> victim = queues.victims.Next(job.forecast.predictor().now());
    if (!victim.has_value()) return memory_.DeflateForWaiting(job, tier);
    ChunkIndex index = job.members[victim->member];
    // A victim that has to wait for a budget may leave in hours.
    if (tier == Tier::kHost && IsOnlyCopy(core_.chunks[index], tier) && job.home == Tier::kSsd &&
        !core_.writes.MayBegin(core_.now, WriteOf(index))) {
      if (const auto clean = queues.victims.NextClean()) index = job.members[clean->member];
    }
    queues.evicting.Set(core_.chunks[index].evict_from, tier);
    victims_.Update(index, tier);
    core_.ScheduleChunk(index);
  }
}

void Residency::SchedulePrefetch(Job& job) {
  if (!core_.options.placement->works_ahead() || !job.forecast.predictor().has_prediction()) return;
  core_.work.AddPrefetch(job.listed_work);
}

}  // namespace memtide
