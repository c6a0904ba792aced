// Segments: the memory behind shares, made when it is needed and dropped with the job.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

// As in the protocol.
absl::string_view KindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kSharedMemory:
      return "SHARED_MEMORY";
    case MemoryKind::kCudaDescriptor:
      return "CUDA_DESCRIPTOR";
    case MemoryKind::kCudaIpc:
      return "CUDA_IPC";
  }
  return "?";
}

}  // namespace

// The memory that the shares of jobs may use.
Bytes EngineState::Lent(Tier tier) const {
  Bytes lent;
  for (const auto& [id, job] : jobs_) {
    if (job->state != Job::State::kEnding) lent += job->tier(tier).lent;
  }
  return lent;
}

Bytes EngineState::Scrubbing(Tier tier) const {
  Bytes scrubbing;
  for (const auto& [id, job] : jobs_) {
    const TierShare& share = job->tier(tier);
    if (job->state == Job::State::kEnding) scrubbing += share.lent;
    scrubbing += job->chunk_size * share.leaving.size();
  }
  return scrubbing;
}

absl::StatusOr<Bytes> EngineState::Share(Tier tier, Bytes asked, Bytes chunk_size) const {
  const Bytes capacity = capacity_[static_cast<int>(tier)];
  if (capacity.IsZero()) {
    if (asked.IsZero()) return Bytes(0);
    return absl::ResourceExhaustedError(absl::StrCat("requested ", FormatBytes(asked), " of the ",
                                                     TierName(tier),
                                                     " pool, but this node has none"));
  }
  const Bytes free = std::min(Free(tier), Unguaranteed(tier));
  const Bytes share = RoundDown(asked.IsZero() ? free : asked, chunk_size);
  // Slots are counted in 32 bits.
  const Bytes bounded = std::min(share, chunk_size * options_.limits.chunks);
  if (share > free || bounded / chunk_size < kMinSlots) {
    return NotEnough(tier, asked, chunk_size, kMinSlots);
  }
  return bounded;
}

absl::Status EngineState::NotEnough(Tier tier, Bytes asked, Bytes chunk_size,
                                    uint64_t least) const {
  const Bytes free = std::min(Free(tier), Unguaranteed(tier));
  return absl::ResourceExhaustedError(
      absl::StrCat("the ", TierName(tier), " pool has ", FormatBytes(free), " free of ",
                   FormatBytes(capacity_[static_cast<int>(tier)]),
                   "; requested: ", asked.IsZero() ? "all that is free" : FormatBytes(asked),
                   ", at least ", least, " chunks of ", FormatBytes(chunk_size), " are needed"));
}

absl::StatusOr<MemoryKind> EngineState::DeviceMemory(const OpenCall& event) const {
  const std::vector<MemoryKind>& kinds = options_.device_kinds;
  if (!event.device_memory.has_value() || kinds.front() == MemoryKind::kSharedMemory) {
    return kinds.front();
  }
  if (std::count(kinds.begin(), kinds.end(), *event.device_memory) > 0) return *event.device_memory;
  const auto name = [](std::string* out, MemoryKind kind) { absl::StrAppend(out, KindName(kind)); };
  return absl::FailedPreconditionError(absl::StrCat(
      "device_memory: the node's device cannot lend its memory as ", KindName(*event.device_memory),
      "; it can as ", absl::StrJoin(kinds, ", ", name)));
}

absl::Status EngineState::LendTier(Job& job, Tier tier, Bytes asked, bool elastic) {
  TierShare& share = job.tier(tier);
  share.victims = EvictionQueue(options_.placement->dirty_weight());
  if (elastic) {
    MEMTIDE_RETURN_IF_ERROR(LendElastic(job, tier));
    share.slots = std::make_unique<SlotPool>(share.target);
    share.lent = job.chunk_size * share.target;
    return absl::OkStatus();
  }
  MEMTIDE_ASSIGN_OR_RETURN(share.lent, Share(tier, asked, job.chunk_size));
  if (share.lent.IsZero()) return absl::OkStatus();
  const uint64_t slots = share.lent / job.chunk_size;
  share.by_slot = tier == Tier::kDevice && job.device_memory == MemoryKind::kCudaDescriptor;
  if (share.by_slot) MEMTIDE_RETURN_IF_ERROR(CheckDeviceRegions(job, slots));
  share.target = share.limit = static_cast<uint32_t>(slots);
  share.slots = std::make_unique<SlotPool>(share.target);
  share.slots_per_segment = static_cast<uint32_t>(
      std::min(slots, std::max<uint64_t>(kMinSlots, kSegmentSize / job.chunk_size)));
  if (job.chunk_size * share.slots_per_segment > kMaxRegionSize) {
    share.slots_per_segment = static_cast<uint32_t>(kMaxRegionSize / job.chunk_size);
  }
  if (share.by_slot) share.slots_per_segment = 1;
  return absl::OkStatus();
}

absl::Status EngineState::CheckDeviceRegions(const Job& job, uint64_t slots) const {
  // Regions that sessions have not returned yet still exist.
  const uint64_t regions = slots + job.tier(Tier::kDevice).leaving.size();
  if (regions <= options_.limits.device_regions) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "device_regions: a device share of ", slots, " chunks of ", FormatBytes(job.chunk_size),
      " would have ", regions, " regions of one chunk each; the limit is ",
      options_.limits.device_regions, " a job. Use larger chunks or a smaller share"));
}

void EngineState::Grow(Job& job, Tier tier) {
  TierShare& share = job.tier(tier);
  if (share.making != kNoSegment || !share.can_grow() || job.state == Job::State::kEnding) return;
  if (!share.by_slot && share.slots->unbacked_slots() > 0) return PopulateNextSlot(job);
  const uint32_t number = next_segment_++;
  share.making = number;
  ++job.segments_pending;
  segments_.emplace(number, &job);
  const Bytes size = job.chunk_size * share.next_segment_slots();
  if (tier == Tier::kSsd) return Emit(MakeStore{StoreId(number), size, job.persistent});
  const bool on_device = tier == Tier::kDevice;
  Emit(MakeRegion{RegionId(number), tier, job.uid, size, job.chunk_size,
                  on_device ? job.device_memory : MemoryKind::kSharedMemory,
                  job.persistent && !on_device});
}

void EngineState::On(const RegionMade& event) {
  const auto found = segments_.find(event.region.value());
  if (found == segments_.end()) return;
  const bool on_device = found->second->tier(Tier::kDevice).making == event.region.value();
  SegmentMade(on_device ? Tier::kDevice : Tier::kHost, event.region.value(), event.status);
}

void EngineState::On(const StoreMade& event) {
  SegmentMade(Tier::kSsd, event.store.value(), event.status);
}

void EngineState::SegmentMade(Tier tier, uint32_t number, const absl::Status& status) {
  const auto found = segments_.find(number);
  if (found == segments_.end()) return;
  Job& job = *found->second;
  TierShare& share = job.tier(tier);
  MEMTIDE_CHECK(share.making == number);
  share.making = kNoSegment;
  --job.segments_pending;
  if (!status.ok()) {
    segments_.erase(found);
    if (job.state == Job::State::kMaking || share.slots->backed_slots() >= kMinSlots) {
      CapShare(job, tier);
    } else if (tier == job.home) {
      RefuseAllocations(job, status);  // The next one requests memory again.
    } else {
      // A restored job may have no memory yet. If its share were to stay so, no call could use it.
      share.make_after_tick = true;
    }
    job.last_error = status;
    if (job.state == Job::State::kMaking) job.making_status.Update(status);
  } else if (share.by_slot && share.slots->missing_slots() == 0) {
    LetGo(job, number, {});  // The share shrank meanwhile.
  } else {
    BackSegment(job, tier, number);
  }
  if (share.by_slot || share.is_elastic()) Charge(job, tier);
  if (job.state == Job::State::kEnding) return MaybeDropMemory(job);
  if (job.state == Job::State::kMaking) {
    const bool too_few = share.by_slot && share.slots->backed_slots() < kMinSlots;
    if (status.ok() && too_few) Grow(job, tier);
    if (job.segments_pending == 0) FinishOpening(job);
    return;
  }
  if (!status.ok()) RefuseWhatNoLongerFits(job, tier, status);
  FinishResize(job);
  ScheduleRoomCheck(job, tier);
  AllocateWaiting(job);
}

// Memory for the rest of the share cannot be had, and is not requested again.
void EngineState::CapShare(Job& job, Tier tier) {
  TierShare& share = job.tier(tier);
  share.slots->Cap();
  if (share.is_elastic()) {
    share.limit = share.slots->numbers();
    share.target = std::min(share.target, share.limit);
    share.guaranteed = std::min(share.guaranteed, share.limit);
    share.balloon = share.target - share.slots->size();
  } else if (!share.by_slot) {
    share.balloon = share.slots->numbers() - share.slots->size();
  }
}

void EngineState::BackSegment(Job& job, Tier tier, uint32_t number) {
  TierShare& share = job.tier(tier);
  MarkDirty(job);
  if (share.by_slot) {
    const uint32_t slot = share.slots->BackOne();
    if (slot >= share.segments.size()) share.segments.resize(slot + 1, kNoSegment);
    share.segments[slot] = number;
  } else {
    share.slots->Back(share.next_segment_slots());
    share.segments.push_back(number);
  }
  if (tier == Tier::kSsd || job.state == Job::State::kEnding) return;
  for (const SessionId session : job.sessions) {
    // Sessions that still wait for their Open get all regions with its answer.
    if (!sessions_.Find(session)->opening) Emit(SendRegion{session, RegionId(number)});
  }
}

// The tier is smaller than it was when these fetches were accepted, for good or until a Tick.
void EngineState::RefuseWhatNoLongerFits(Job& job, Tier tier, const absl::Status& status) {
  std::vector<Waiter*> newest_first;
  for (auto entry = waiters_.rbegin(); entry != waiters_.rend(); ++entry) {
    Waiter* waiter = entry->second.get();
    if (waiter->job == &job && waiter->tier == tier) newest_first.push_back(waiter);
  }
  const TierShare& share = job.tier(tier);
  const uint32_t limit = share.make_after_tick ? share.slots->backed_slots() : job.LeaseLimit(tier);
  for (Waiter* waiter : newest_first) {
    const bool too_many = waiter->admitted && share.pinned_chunks() > limit;
    if (too_many || waiter->chunks.size() > limit) Fail(*waiter, status);
  }
}

void EngineState::MaybeDropMemory(Job& job) {
  if (!job.members.empty() || job.segments_pending > 0) return;
  for (const Tier tier : kAllTiers) {
    for (const uint32_t segment : job.tier(tier).segments) {
      if (segment == kNoSegment) continue;
      ++job.segments_pending;
      if (tier == Tier::kSsd) {
        Emit(DropStore{StoreId(segment)});
      } else {
        Emit(DropRegion{RegionId(segment)});
      }
    }
  }
  if (job.segments_pending == 0) ended_.push_back(job.id);
}

void EngineState::On(const RegionDropped& event) { SegmentDropped(event.region.value()); }
void EngineState::On(const StoreDropped& event) { SegmentDropped(event.store.value()); }

void EngineState::SegmentDropped(uint32_t number) {
  const auto found = segments_.find(number);
  if (found == segments_.end()) return;
  Job& job = *found->second;
  segments_.erase(found);
  --job.segments_pending;
  if (job.tier(Tier::kDevice).leaving.erase(number) > 0) {
    if (job.state == Job::State::kEnding) return MaybeDropMemory(job);
    return FinishResize(job);
  }
  MEMTIDE_CHECK(job.state == Job::State::kEnding);
  if (job.segments_pending == 0) ended_.push_back(job.id);
}

}  // namespace memtide
