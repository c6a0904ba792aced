// Exposed regions: host memory to which a process that is no session any more may still write.
//
// A session that is not renewed in time ends, and its process, stopped or hung, may go on later:
// the memory stays mapped there. So do sessions of the last daemon end, while their processes may
// live. A chunk that such a process had leased for writing is torn; but once the job is resumed and
// has written it again, a late store of that process would change it unseen.
//
// So no session joins a job before its exposed regions have been replaced, one after the other, by
// copies that no process has mapped. A region is copied while the job has no session and nothing of
// it moves; the old one is emptied when it is dropped. A process whose connection closed has ended,
// and its mappings before it.
//
// One region is copied at a time, in memory beyond the pool: its size is what the machine needs
// more for that while. Where it has not so much, the job keeps its regions (RegionsStayExposed), as
// it would otherwise be lost. Device memory: see jobs/quarantine.cc.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/memory/memory.h"

namespace memtide {

void Memory::ExposeRegions(Job& job) {
  for (const uint32_t region : job.share(Tier::kHost).segments()) {
    job.exposed_regions.insert(region);
  }
  if (!job.exposed_regions.empty()) exposed_.insert(job.id);
}

absl::Status Memory::CheckExposed(const Job& job) {
  if (job.exposed_regions.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "job \"", job.name, "\" has lost a session that was not renewed, and has ",
      job.sessions.size(), " others: it can be joined again when these have ended. End them"));
}

bool Memory::CanReplace(const Job& job) const {
  if (job.state() != JobState::kLingering) return false;
  if (job.steps.value() > 0 || job.share(Tier::kHost).pending() > 0) return false;
  return std::none_of(core_.transfers.begin(), core_.transfers.end(), [&](const auto& transfer) {
    return core_.chunks[transfer.second].job == &job;
  });
}

void Memory::ReplaceExposed() {
  if (replacement_ != kNoSegment) return;
  for (auto id = exposed_.begin(); id != exposed_.end();) {
    Job* const found = core_.FindJob(*id);
    if (found == nullptr || found->state() == JobState::kEnding) {
      id = exposed_.erase(id);
      continue;
    }
    Job& job = *found;
    if (!CanReplace(job)) {
      ++id;
      continue;
    }
    const uint32_t old = *job.exposed_regions.begin(), copy = core_.next_segment++;
    replacement_ = copy;
    const Share& share = job.share(Tier::kHost);
    core_.segments.emplace(copy, &job);
    core_.ledger.ReplaceSegment(job.share(Tier::kHost), copy);
    MakeRegion region{RegionId(copy), share.pool(), job.uid, share.SizeOf(old), job.chunk_size};
    region.persistent = job.persistent;
    region.job = job.id;
    const Share& device = job.share(Tier::kDevice);
    if (device.exists()) region.near_device = device.pool().device;
    region.copy_of = RegionId(old);
    return core_.Emit(std::move(region));
  }
}

void Memory::RegionCopied(Job& job, const absl::Status& status) {
  Share& share = job.share(Tier::kHost);
  if (!status.ok()) {
    core_.segments.erase(share.replacing());
    core_.ledger.ReplacementFailed(share);
    job.exposed_regions.clear();
    core_.Emit(RegionsStayExposed{job.id, job.name, status});
  } else {
    const uint32_t old = *job.exposed_regions.begin();
    job.exposed_regions.erase(old);
    core_.ledger.SegmentReplaced(share, old);
    core_.MarkDirty(job);
    core_.Emit(DropRegion{RegionId(old), job.id});
  }
  if (job.state() == JobState::kEnding) return MaybeDropMemory(job);
  for (const ChunkIndex index : job.members.chunks()) core_.ScheduleChunk(index);
  // No room was made meanwhile, at the device either.
  for (const Tier tier : kMemoryTiers) {
    if (job.share(tier).exists()) core_.ScheduleRoomCheck(job, tier);
  }
  if (job.exposed_regions.empty()) {
    exposed_.erase(job.id);
    core_.work.Send(RegionsReplaced());
  }
}

}  // namespace memtide
