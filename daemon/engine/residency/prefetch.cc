// Prefetcher, movement: while links are idle, chunks with the next predicted uses move up,
// and the next victims are written back.
#include <algorithm>
#include <utility>

#include "daemon/engine/residency/copies.h"
#include "daemon/engine/residency/prefetcher.h"

namespace memtide {

namespace {

// How long the prefetches in flight to a tier occupy its link. With more, a fetch would wait longer
// behind them than it gains. A disk takes about as long for 64 MiB, which may be in flight until
// the speed of the link is known.
constexpr uint64_t kMaxPrefetchMicros = 30'000;
constexpr Bytes kMaxPrefetch = MiB(64);
// Write-backs from the device at once, as many as it copies (daemon/device/device.h).
constexpr uint32_t kMostWriteBacks = 2;
// Leases that one event revokes because other chunks are predicted sooner.
constexpr int kMaxRevoked = 4;

// No transfer to the tier is needed for the next use.
bool IsThere(const Chunk& chunk, Tier tier) {
  return !chunk.has_content() || chunk.valid_at(tier) || chunk.valid_at(chunk.job->lease_tier);
}

// Whether a write-back from the tier delays no other transfer: a disk reads slower while it writes.
bool HasIdleLink(const LinkClocks& links, Tier tier) {
  if (tier == Tier::kDevice) {
    return links.in_flight({Tier::kDevice, Tier::kHost}) < kMostWriteBacks;
  }
  return links.in_flight({Tier::kHost, Tier::kSsd}) == 0 &&
         links.in_flight({Tier::kSsd, Tier::kHost}) == 0;
}

}  // namespace

// Runs after all else has settled: one chunk at a time, because each changes which chunks the next
// may displace.
bool Prefetcher::PrefetchOrWriteBack() {
  while (Job* const job = core_.work.prefetching()) {
    if (job->state() == JobState::kRunning) {
      for (const Tier tier : kMemoryTiers) {
        if (Prefetch(*job, tier) || WriteBackEarly(*job, tier)) return true;
      }
    }
    core_.work.FinishPrefetch();
  }
  return false;
}

bool Prefetcher::Prefetch(Job& job, Tier tier) {
  const Share& share = job.share(tier);
  const TierQueues& queues = job.tier(tier);
  // Chunks that wait for slots are demanded now, and precede all predictions.
  if (!share.exists() || tier == job.home || !queues.slot_queue.empty()) return false;
  const uint32_t slots = share.slots().size();
  // Prefetches have at most the quarter of the slots that the lease budget leaves free. Two chunks
  // may come at once however large they are.
  const Tier below = tier == Tier::kDevice ? Tier::kHost : Tier::kSsd;
  const uint64_t micros = job.forecast.links().micros({below, tier});
  const uint64_t in_time =
      micros == 0 ? kMaxPrefetch / job.chunk_size : kMaxPrefetchMicros / micros;
  const uint64_t most =
      std::min<uint64_t>(std::max(uint32_t{1}, slots / 4), std::max<uint64_t>(2, in_time));
  job.forecast.LookAhead(
      tier, [this, &job, tier](Member member, VirtualTime time) -> absl::optional<bool> {
        const ChunkIndex index = IndexWanted(job, member, time);
        if (index == kNoChunk || NextUseOfContent(core_.chunks, core_.chunks[index]) != time)
          return absl::nullopt;
        return !IsThere(core_.chunks[index], tier);
      });
  if (queues.prefetches.value() >= most) return false;
  return job.forecast.PrefetchNext(
      tier, [&](Member member, VirtualTime time) { return TryPrefetch(job, tier, member, time); });
}

// Starts the prefetch for the use of the member at `time`.
JobForecast::Prefetch Prefetcher::TryPrefetch(Job& job, Tier tier, Member member,
                                              VirtualTime time) {
  using Prefetch = JobForecast::Prefetch;
  const ChunkIndex index = IndexWanted(job, member, time);
  if (index == kNoChunk) return Prefetch::kSkipped;
  Chunk& chunk = core_.chunks[index];
  // Later than `time` if a commit before then gives the content to the counterpart.
  const VirtualTime expected = NextUseOfContent(core_.chunks, chunk);
  if (expected > time) return Prefetch::kSkipped;
  // A chunk without content comes without a transfer, but into its own slot, too.
  const bool comes_new = !chunk.has_content() && !chunk.copies().discarded && !chunk.slot(tier) &&
                         job.forecast.PlannedSlot(tier, member).has_value();
  const bool there = IsThere(chunk, tier) && !comes_new;
  const bool coming = chunk.pinned() || chunk.prefetch_to.value_or(Tier::kSsd) <= tier;
  if (there || coming || chunk.uses().evict_to.has_value() || chunk.is_evicted())
    return Prefetch::kSkipped;
  if (chunk.copies().unreadable) return Prefetch::kSkipped;
  // Steps use the chunk in host memory, and so do sessions whose regions of the device are lost.
  if (tier == Tier::kDevice && (chunk.uses().only_stepped || job.has_lost_regions)) {
    return Prefetch::kSkipped;
  }
  // When the chunk has reached the host, On(TransferDone) lets the forecast try this use again.
  if (tier == Tier::kDevice && !chunk.valid_at(Tier::kHost) && !comes_new) {
    return Prefetch::kSkipped;
  }
  // A copy that comes before its time takes a slot that the plan has given to another one.
  if (chunk.copies().flight || !job.forecast.HasPlannedSlot(tier, member, time) ||
      !HasRoomUntil(job, tier, expected)) {
    return Prefetch::kBlocked;
  }
  if (!IsClear(job, tier, member, expected)) return Prefetch::kNotYet;
  residency_.StopPrefetch(chunk);
  if (comes_new) chunk.prefetched_to.Add(tier);
  job.tier(tier).prefetches.Set(chunk.prefetch_to, tier);
  residency_.CancelEviction(chunk);
  core_.ScheduleChunk(index);
  return Prefetch::kStarted;
}

// Whether a chunk with a use at `time` can have a slot without displacing one with a sooner use.
bool Prefetcher::HasRoomUntil(Job& job, Tier tier, VirtualTime time) {
  const Share& share = job.share(tier);
  if (share.slots().spare_slots() > 0 || share.can_grow()) return true;
  if (victims_.After(job, tier, time).has_value()) return true;
  if (tier == job.lease_tier) RevokeFarthest(job, time);
  return false;
}

// Whether no other chunk is in the slot that the plan gives the member. One whose next use comes
// after `time` leaves.
bool Prefetcher::IsClear(Job& job, Tier tier, Member member, VirtualTime time) {
  const absl::optional<SlotNumber> planned = job.forecast.PlannedSlot(tier, member);
  if (!planned.has_value()) return true;
  const ChunkIndex there = victims_.InSlot(job, tier, *planned);
  if (there == kNoChunk) return true;
  Chunk& chunk = core_.chunks[there];
  // Two chunks that are both expected would displace each other for ever: the first one stays.
  if (NextUseOfContent(core_.chunks, chunk) <= time || chunk.prefetched_to.has(tier)) return false;
  if (chunk.may_leave(tier)) {
    job.tier(tier).evicting.Set(chunk.evict_from, tier);
    victims_.Update(there);
    core_.ScheduleChunk(there);
  } else if (chunk.pinned_at(tier) && !chunk.uses().revoke_sent &&
             victims_.PlannedToStay(chunk, tier).value_or(true)) {
    // Hints tell sessions what the plan lets leave.
    core_.work.Send(LeasesInTheWay{{core_.IdOf(there)}});
  }
  return false;
}

// Revokes leases of chunks whose next use comes after `time`.
void Prefetcher::RevokeFarthest(Job& job, VirtualTime time) {
  LeasesInTheWay leases;
  int revoked = 0;
  job.tier(job.lease_tier).pinned_queue.VisitFarthest([&](const Candidate& candidate) {
    const bool leaves = candidate.cost == EvictionCost::kLeaving;
    // Chunks that the plan sends away come first in the queue. With a plan no other lease is
    // revoked, and without one only those with a later use.
    if (!leaves && (candidate.next_use <= time || job.forecast.has_plan())) return false;
    if (candidate.next_use <= time) return true;
    const ChunkIndex index = job.members[candidate.member];
    if (!core_.chunks[index].uses().revoke_sent) leases.chunks.push_back(core_.IdOf(index));
    return ++revoked < kMaxRevoked;
  });
  if (!leases.chunks.empty()) core_.work.Send(std::move(leases));
}

// Writes the next victim back while its link is idle, so that it can be dropped at once when its
// slot is needed.
bool Prefetcher::WriteBackEarly(Job& job, Tier tier) {
  const Share& share = job.share(tier);
  if (!share.exists() || tier == job.home) return false;
  // A spare slot is no room for a chunk that has another one.
  if (share.slots().spare_slots() > 0 && !job.forecast.has_fixed_slots()) return false;
  if (!HasIdleLink(job.forecast.links(), tier)) return false;
  const JobForecast& forecast = job.forecast;
  const EvictionQueue& victims = job.tier(tier).victims;
  // In slots that are fixed, copies that leave without a write can wait.
  const absl::optional<Candidate> victim =
      forecast.has_fixed_slots() ? victims.NextLeaving() : victims.Next(forecast.predictor().now());
  const EvictionCost leaving = forecast.has_plan() ? EvictionCost::kLeaving : EvictionCost::kOnly;
  if (!victim.has_value() || victim->cost != leaving) return false;
  const ChunkIndex index = job.members[victim->member];
  if (core_.chunks[index].pinned() || core_.chunks[index].write_back_from.has_value()) return false;
  const Chunk& chunk = core_.chunks[index];
  const bool has_slot = chunk.home() == Tier::kHost && chunk.slot(Tier::kHost);
  if (tier == Tier::kDevice && !has_slot && !IsWorthASlot(job, Tier::kHost, victim->next_use)) {
    return false;
  }
  // Copies that leave without delay would take each other's slots of the host.
  if (forecast.has_fixed_slots() && !has_slot &&
      job.share(Tier::kHost).slots().spare_slots() == 0) {
    return false;
  }
  if (tier == Tier::kHost && !core_.writes.MayBegin(core_.now, residency_.WriteOf(index)))
    return false;
  core_.chunks[index].write_back_from = tier;
  core_.ScheduleChunk(index);
  return true;
}

// Whether a copy for a use at `time` may take a slot there now, without a write-back and without
// displacing a chunk with a sooner use.
bool Prefetcher::IsWorthASlot(const Job& job, Tier tier, VirtualTime time) const {
  const Share& share = job.share(tier);
  if (!share.exists() || !job.tier(tier).slot_queue.empty()) return false;
  if (share.slots().spare_slots() > 0) return true;
  const absl::optional<Candidate> victim = victims_.After(job, tier, time);
  return victim.has_value() && victim->cost != EvictionCost::kOnly &&
         victim->cost != EvictionCost::kLeaving;
}

}  // namespace memtide
