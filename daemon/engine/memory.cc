// The memory that is lent to jobs: shares of the pools, and the parts that are made of them.
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

// What jobs have, and may still take.
Bytes EngineState::Lent(Tier tier) const {
  Bytes lent;
  for (const auto& [id, job] : jobs_) {
    if (job->state != Job::State::kEnding) lent += job->tier(tier).share;
  }
  return lent;
}

Bytes EngineState::Scrubbing(Tier tier) const {
  Bytes scrubbing;
  for (const auto& [id, job] : jobs_) {
    const JobTier& part = job->tier(tier);
    if (job->state == Job::State::kEnding) scrubbing += part.share;
    scrubbing += job->chunk_size * part.leaving.size();
  }
  return scrubbing;
}

absl::StatusOr<Bytes> EngineState::Share(Tier tier, Bytes asked, Bytes chunk_size) const {
  const Bytes capacity = capacity_[static_cast<int>(tier)];
  if (capacity.IsZero()) {
    if (asked.IsZero()) return Bytes(0);
    return absl::ResourceExhaustedError(absl::StrCat("asked for ", FormatBytes(asked), " of the ",
                                                     TierName(tier),
                                                     " pool, but this node has none"));
  }
  const Bytes free = std::min(Free(tier), Unclaimed(tier));
  const Bytes share = RoundDown(asked.IsZero() ? free : asked, chunk_size);
  // 32 bits count slots.
  const Bytes bounded = std::min(share, chunk_size * options_.limits.chunks);
  if (share > free || bounded / chunk_size < kMinSlots) {
    return NotEnough(tier, asked, chunk_size, kMinSlots);
  }
  return bounded;
}

absl::Status EngineState::NotEnough(Tier tier, Bytes asked, Bytes chunk_size,
                                    uint64_t least) const {
  const Bytes free = std::min(Free(tier), Unclaimed(tier));
  return absl::ResourceExhaustedError(
      absl::StrCat("the ", TierName(tier), " pool has ", FormatBytes(free), " free of ",
                   FormatBytes(capacity_[static_cast<int>(tier)]), "; asked for ",
                   asked.IsZero() ? "all that is free" : FormatBytes(asked), ", at least ", least,
                   " chunks of ", FormatBytes(chunk_size), " are needed"));
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
  JobTier& part = job.tier(tier);
  if (options_.placement != Placement::kForesight) part.victims = Victims(1);
  if (elastic) {
    MEMTIDE_RETURN_IF_ERROR(LendElastic(job, tier));
    part.slots = std::make_unique<SlotPool>(part.target);
    part.share = job.chunk_size * part.target;
    return absl::OkStatus();
  }
  MEMTIDE_ASSIGN_OR_RETURN(part.share, Share(tier, asked, job.chunk_size));
  if (part.share.IsZero()) return absl::OkStatus();
  const uint64_t slots = part.share / job.chunk_size;
  part.by_slot = tier == Tier::kDevice && job.device_memory == MemoryKind::kCudaDescriptor;
  if (part.by_slot) MEMTIDE_RETURN_IF_ERROR(CheckDeviceRegions(job, slots));
  part.target = part.most = static_cast<uint32_t>(slots);
  part.slots = std::make_unique<SlotPool>(part.target);
  part.slots_per_part = static_cast<uint32_t>(
      std::min(slots, std::max<uint64_t>(kMinSlots, kPartSize / job.chunk_size)));
  if (job.chunk_size * part.slots_per_part > kMaxRegionSize) {
    part.slots_per_part = static_cast<uint32_t>(kMaxRegionSize / job.chunk_size);
  }
  if (part.by_slot) part.slots_per_part = 1;
  return absl::OkStatus();
}

absl::Status EngineState::CheckDeviceRegions(const Job& job, uint64_t slots) const {
  // Those that are on their way out exist still.
  const uint64_t regions = slots + job.tier(Tier::kDevice).leaving.size();
  if (regions <= options_.limits.device_regions) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "device_regions: a device share of ", slots, " chunks of ", FormatBytes(job.chunk_size),
      " would have ", regions, " regions of one chunk each; the limit is ",
      options_.limits.device_regions, " a job. Use larger chunks or a smaller share"));
}

void EngineState::Grow(Job& job, Tier tier) {
  JobTier& part = job.tier(tier);
  if (part.making != kNoPart || !part.can_grow() || job.state == Job::State::kEnding) return;
  if (!part.by_slot && part.slots->unbacked_slots() > 0) return FillSlotOf(job);
  const uint32_t number = next_part_++;
  part.making = number;
  ++job.parts_pending;
  parts_.emplace(number, &job);
  const Bytes size = job.chunk_size * part.next_part();
  if (tier == Tier::kSsd) return Emit(MakeStore{StoreId(number), size, job.kept});
  const bool on_device = tier == Tier::kDevice;
  Emit(MakeRegion{RegionId(number), tier, job.uid, size, job.chunk_size,
                  on_device ? job.device_memory : MemoryKind::kSharedMemory,
                  job.kept && !on_device});
}

void EngineState::On(const RegionMade& event) {
  const auto found = parts_.find(event.region.value());
  if (found == parts_.end()) return;
  const bool on_device = found->second->tier(Tier::kDevice).making == event.region.value();
  PartMade(on_device ? Tier::kDevice : Tier::kHost, event.region.value(), event.status);
}

void EngineState::On(const StoreMade& event) {
  PartMade(Tier::kSsd, event.store.value(), event.status);
}

void EngineState::PartMade(Tier tier, uint32_t number, const absl::Status& status) {
  const auto found = parts_.find(number);
  if (found == parts_.end()) return;
  Job& job = *found->second;
  JobTier& part = job.tier(tier);
  MEMTIDE_CHECK(part.making == number);
  part.making = kNoPart;
  --job.parts_pending;
  if (!status.ok()) {
    parts_.erase(found);
    part.slots->Cap();
    if (part.is_elastic()) {
      part.most = part.slots->numbers();
      part.target = std::min(part.target, part.most);
      part.claim = std::min(part.claim, part.most);
      part.withheld = part.target - part.slots->size();
    } else if (!part.by_slot) {
      part.withheld = part.slots->numbers() - part.slots->size();
    }
    job.last_error = status;
    job.making_status.Update(status);
  } else if (part.by_slot && part.slots->missing_slots() == 0) {
    LetGo(job, number, {});  // The share shrank meanwhile.
  } else {
    BackPart(job, tier, number);
  }
  if (part.by_slot || part.is_elastic()) Charge(job, tier);
  if (job.state == Job::State::kEnding) return MaybeDropMemory(job);
  if (job.state == Job::State::kMaking) {
    const bool too_few = part.by_slot && part.slots->backed_slots() < kMinSlots;
    if (status.ok() && too_few) Grow(job, tier);
    if (job.parts_pending == 0) FinishOpening(job);
    return;
  }
  if (!status.ok()) RefuseWhatNoLongerFits(job, tier, status);
  FinishResize(job);
  LookAtRoom(job, tier);
  AllocateWaiting(job);
}

void EngineState::BackPart(Job& job, Tier tier, uint32_t number) {
  JobTier& part = job.tier(tier);
  Touch(job);
  if (part.by_slot) {
    const uint32_t slot = part.slots->BackOne();
    if (slot >= part.parts.size()) part.parts.resize(slot + 1, kNoPart);
    part.parts[slot] = number;
  } else {
    part.slots->Back(part.next_part());
    part.parts.push_back(number);
  }
  if (tier == Tier::kSsd || job.state == Job::State::kEnding) return;
  for (const SessionId session : job.sessions) {
    // Sessions that still wait for their Open get all regions with its answer.
    if (!FindSession(session)->opening) Emit(SendRegion{session, RegionId(number)});
  }
}

// The tier stays smaller than it was when these fetches were accepted.
void EngineState::RefuseWhatNoLongerFits(Job& job, Tier tier, const absl::Status& status) {
  std::vector<FetchOperation*> newest_first;
  for (auto entry = fetches_.rbegin(); entry != fetches_.rend(); ++entry) {
    FetchOperation* fetch = entry->second.get();
    if (fetch->job == &job && fetch->tier == tier) newest_first.push_back(fetch);
  }
  for (FetchOperation* fetch : newest_first) {
    const bool too_many = fetch->admitted && job.tier(tier).committed > job.LeaseLimit(tier);
    if (too_many || fetch->chunks.size() > job.LeaseLimit(tier)) Fail(*fetch, status);
  }
}

void EngineState::MaybeDropMemory(Job& job) {
  if (job.chunks > 0 || job.dying_chunks > 0 || job.parts_pending > 0) return;
  for (const Tier tier : kAllTiers) {
    for (const uint32_t part : job.tier(tier).parts) {
      if (part == kNoPart) continue;
      ++job.parts_pending;
      if (tier == Tier::kSsd) {
        Emit(DropStore{StoreId(part)});
      } else {
        Emit(DropRegion{RegionId(part)});
      }
    }
  }
  if (job.parts_pending == 0) ended_.push_back(job.id);
}

void EngineState::On(const RegionDropped& event) { PartDropped(event.region.value()); }
void EngineState::On(const StoreDropped& event) { PartDropped(event.store.value()); }

void EngineState::PartDropped(uint32_t number) {
  const auto found = parts_.find(number);
  if (found == parts_.end()) return;
  Job& job = *found->second;
  parts_.erase(found);
  --job.parts_pending;
  if (job.tier(Tier::kDevice).leaving.erase(number) > 0) {
    if (job.state == Job::State::kEnding) return MaybeDropMemory(job);
    return FinishResize(job);
  }
  MEMTIDE_CHECK(job.state == Job::State::kEnding);
  if (job.parts_pending == 0) ended_.push_back(job.id);
}

}  // namespace memtide
