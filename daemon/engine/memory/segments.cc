// Segments: the memory behind shares, made when it is needed and dropped with the job.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "daemon/engine/memory/memory.h"

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

absl::StatusOr<MemoryKind> Memory::DeviceMemory(const OpenCall& event) const {
  const std::vector<MemoryKind>& kinds = core_.options.device_kinds;
  // An emulated device has shared memory, whatever the client would take from a GPU.
  if (!event.device_memory.has_value() || kinds.front() == MemoryKind::kSharedMemory) {
    return kinds.front();
  }
  if (std::count(kinds.begin(), kinds.end(), *event.device_memory) > 0) return *event.device_memory;
  const auto name = [](std::string* out, MemoryKind kind) { absl::StrAppend(out, KindName(kind)); };
  return absl::FailedPreconditionError(absl::StrCat(
      "device_memory: the node cannot lend its memory as ", KindName(*event.device_memory),
      "; it can as ", absl::StrJoin(kinds, ", ", name)));
}

void Memory::TakeShares(Job& job, std::unique_ptr<JobShares> shares) {
  job.shares = std::move(shares);
  for (const Tier tier : kAllTiers) {
    if (!job.share(tier).exists()) continue;
    job.tier(tier).victims = EvictionQueue(core_.options.placement->dirty_weight());
  }
  job.home = job.shares->home();
  job.lease_tier = job.share(Tier::kDevice).exists() ? Tier::kDevice : Tier::kHost;
}

void Memory::GrowForHomes(Job& job, Tier tier, uint32_t count) {
  const Share& share = job.share(tier);
  const uint32_t wanted = tier == job.home ? job.HomeSlotsFor(job.chunks_at_home() + count)
                                           : share.slots_for_claims(count);
  const uint32_t slots = share.slots().size();
  if (share.is_elastic() && wanted > slots) GrowShare(job, tier, wanted - slots);
}

bool Memory::HasHomes(const Job& job, uint32_t count) {
  const SlotPool& slots = job.share(job.home).slots();
  return slots.free_slots() >= count &&
         (!job.is_durable() ||
          job.HomeSlotsFor(job.chunks_at_home() + count) <= slots.backed_slots());
}

Home Memory::TakeHome(Job& job, Tier tier) {
  if (tier != job.home) return {tier, Slot(), job.share(tier).Claim()};
  Home home{tier, job.share(tier).Take(), Count::Token()};
  MEMTIDE_CHECK(home.slot);
  return home;
}

void Memory::Grow(Job& job, Tier tier) {
  Share& share = job.share(tier);
  if (share.making() != kNoSegment || !share.can_grow()) return;
  if (job.state() == JobState::kEnding || job.is_replacing()) return;
  // Slots that were released to the machine lie in segments that exist. They are populated again
  // before a new segment is made.
  if (!share.by_slot() && share.slots().unbacked_slots() > 0) return PopulateNextSlot(job);
  const uint32_t number = core_.next_segment++;
  core_.segments.emplace(number, &job);
  const Bytes size = core_.ledger.MakeSegment(share, number);
  if (tier == Tier::kSsd)
    return core_.Emit(MakeStore{StoreId(number), size, job.persistent, job.id});
  // Device memory ends with the daemon, so that no region of it is persistent.
  const bool on_device = tier == Tier::kDevice;
  MakeRegion region{RegionId(number), share.pool(), job.uid, size, job.chunk_size};
  region.read_only = job.contents != nullptr;
  region.job = job.id;
  if (on_device) {
    region.memory = job.device_memory;
  } else {
    region.persistent = job.persistent;
    const Share& device = job.share(Tier::kDevice);
    if (device.exists()) region.near_device = device.pool().device;
  }
  core_.Emit(std::move(region));
}

void Memory::On(const RegionMade& event) {
  if (event.region.value() == replacement_) replacement_ = kNoSegment;
  const auto found = core_.segments.find(event.region.value());
  if (found == core_.segments.end()) return;
  if (found->second->share(Tier::kHost).replacing() == event.region.value()) {
    return RegionCopied(*found->second, event.status);
  }
  const bool on_device = found->second->share(Tier::kDevice).making() == event.region.value();
  SegmentMade(on_device ? Tier::kDevice : Tier::kHost, event.region.value(), event.status);
}

void Memory::On(const StoreMade& event) {
  if (event.status.ok()) NoteStripes(event.store, event.stripes);
  SegmentMade(Tier::kSsd, event.store.value(), event.status);
}

void Memory::SegmentMade(Tier tier, uint32_t number, const absl::Status& status) {
  const auto found = core_.segments.find(number);
  if (found == core_.segments.end()) return;
  Job& job = *found->second;
  Share& share = job.share(tier);
  if (!status.ok()) {
    core_.segments.erase(found);
    const absl::optional<ShareLedger::Change> smaller =
        core_.ledger.SegmentFailed(*job.shares, share, number);
    if (smaller.has_value()) Apply(*smaller);
    // Others may have what the share has lost: after a restart the job must not ask for it again.
    core_.MarkDirty(job);
    job.last_error = status;
    // Jobs refuses the job when the segments of the other tiers are made, too.
    if (job.state() == JobState::kMaking) job.making_status.Update(status);
    if (job.contents != nullptr) core_.work.Send(NoMemoryForContents{job.id});
    // The home tier makes no memory later by itself: the next allocation requests it again.
    if (tier == job.home && share.slots().backed_slots() < kMinSlots) {
      core_.work.Send(NoMemoryForChunks{job.id, tier, status});
    }
  } else if (core_.ledger.SegmentMade(share, number)) {
    core_.MarkDirty(job);
    if (tier != Tier::kSsd) SendRegions(job, number);
  } else {
    // The device share has shrunk while the region was made. No session has mapped it.
    LetGo(job, number, {});
  }
  if (job.state() == JobState::kEnding) return MaybeDropMemory(job);
  if (job.state() == JobState::kMaking) {
    // A share that grows by single slots needs several of them before the job can begin.
    const bool too_few = share.by_slot() && share.slots().backed_slots() < kMinSlots;
    if (status.ok() && too_few) Grow(job, tier);
    if (job.shares->pending() == 0) core_.work.Send(JobMade{job.id});
    return;
  }
  if (!status.ok()) core_.work.Send(TierShrunk{job.id, tier, status});
  core_.ScheduleRoomCheck(job, tier);
  core_.work.Send(AllocationsPossible{job.id});
  core_.work.NoteMovement();
}

void Memory::SendRegions(const Job& job, uint32_t region) {
  if (job.state() == JobState::kEnding) return;
  if (job.contents != nullptr) {
    for (const SessionId session : job.contents->lent_to) {
      core_.Emit(SendRegion{session, RegionId(region)});
    }
  }
  for (const SessionId session : job.sessions) {
    // Sessions that still wait for their Open get all regions with its answer.
    if (!core_.sessions.Find(session)->opening) core_.Emit(SendRegion{session, RegionId(region)});
  }
}

void Memory::MaybeDropMemory(Job& job) {
  // A transfer, a step part or the mover still uses the memory. The event that ends its use calls
  // again.
  if (!job.members.empty() || job.shares->pending() > 0) return;
  // Memory lent by legacy IPC must not be freed under the kernels of a process that has it mapped.
  if (job.share(Tier::kDevice).exists() &&
      job.share(Tier::kDevice).slots().quarantined_slots() > 0) {
    return;  // On(ClientQuiet) calls again.
  }
  for (const Tier tier : kAllTiers) {
    for (const uint32_t segment : core_.ledger.DropSegments(job.share(tier))) {
      if (tier == Tier::kSsd) {
        core_.Emit(DropStore{StoreId(segment), job.id});
      } else {
        core_.Emit(DropRegion{RegionId(segment), job.id});
      }
    }
  }
  if (job.shares->pending() == 0) ended_.push_back(job.id);
}

void Memory::On(const RegionDropped& event) { SegmentDropped(event.region.value()); }
void Memory::On(const StoreDropped& event) { SegmentDropped(event.store.value()); }

void Memory::SegmentDropped(uint32_t number) {
  const auto found = core_.segments.find(number);
  if (found == core_.segments.end()) return;
  Job& job = *found->second;
  core_.segments.erase(found);
  stripes_.erase(number);
  if (core_.ledger.SegmentDropped(*job.shares, number)) {
    if (job.state() == JobState::kEnding) return MaybeDropMemory(job);
    return FinishResize(job);
  }
  MEMTIDE_CHECK(job.state() == JobState::kEnding);
  if (job.shares->pending() == 0) ended_.push_back(job.id);
}

absl::Status Memory::CheckRegions(const Job& job) {
  if (!job.has_lost_regions) return absl::OkStatus();
  return absl::UnavailableError(
      "the device was lost after this session had opened its job; open it in a new session");
}

void Memory::NoteStripes(StoreId store, StripeCounts counts) {
  if (core_.writes.drives() < 2) return;
  const bool known = counts.size() == core_.writes.drives() && Stripes::Valid(counts);
  if (!known) counts = Stripes::Equal(core_.writes.drives());
  stripes_.emplace(store.value(), Stripes(std::move(counts)));
}

std::vector<Bytes> Memory::BytesByDrive(const MemoryPlace& place, Bytes size) const {
  std::vector<Bytes> parts(core_.writes.drives());
  const auto stripes = stripes_.find(place.region.value());
  if (stripes == stripes_.end()) {
    parts[0] = size;  // The only drive.
    return parts;
  }
  for (Bytes at = place.offset; at < place.offset + size;) {
    const Bytes end = std::min(stripes->second.EndOfStripe(at), place.offset + size);
    parts[stripes->second.DirectoryOf(at)] += end - at;
    at = end;
  }
  return parts;
}

}  // namespace memtide
