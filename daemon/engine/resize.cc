// Resize: the device share of a job changes while the job runs, slot by slot.
//
// The new share holds at once for all later calls. A share that shrinks has more slots with memory
// than its pool should have, its surplus: MakeRoom evicts chunks, and every slot that becomes free
// is given up. Its region is announced as gone and dropped when no session maps it any more. Until
// then the region is charged as scrubbing memory.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/engine/state.h"

namespace memtide {

absl::Status EngineState::CheckResize(const Job& job, const ResizeCall& event) const {
  const TierShare& share = job.tier(Tier::kDevice);
  if (!share.exists() || !share.by_slot) {
    return absl::FailedPreconditionError(
        share.exists() ? "the job's device memory is not lent slot by slot; open the job with "
                         "device_memory CUDA_DESCRIPTOR"
                       : "the node has no device memory");
  }
  if (job.home == Tier::kDevice) {
    return absl::FailedPreconditionError(
        "the device is where the job's chunks have their home; give the node a host pool");
  }
  MEMTIDE_RETURN_IF_ERROR(CheckDeadline(event.deadline));
  const uint64_t slots = event.device_share / job.chunk_size;
  if (slots < kMinSlots) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device_share_bytes: ", FormatBytes(event.device_share), " are ", slots, " chunks of ",
        FormatBytes(job.chunk_size), "; at least ", kMinSlots, " are needed"));
  }
  if (draining_) {
    return absl::UnavailableError("the memtide daemon is draining and resizes no job");
  }
  MEMTIDE_RETURN_IF_ERROR(CheckDeviceRegions(job, slots));
  const Bytes wanted = job.chunk_size * slots;
  const Bytes free = Free(Tier::kDevice);
  if (wanted > share.lent && wanted - share.lent > free) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the device pool has ", FormatBytes(free), " free; the job would grow by ",
                     FormatBytes(wanted - share.lent), ", from ", FormatBytes(share.lent)));
  }
  return absl::OkStatus();
}

void EngineState::On(const ResizeCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  const absl::Status status = CheckResize(job, event);
  if (!status.ok()) return Refuse(event.call, status);
  EndResize(job, absl::AbortedError("another Resize of the job took the place of this one"));

  TierShare& share = job.tier(Tier::kDevice);
  const uint32_t slots = static_cast<uint32_t>(event.device_share / job.chunk_size);
  const bool grows = slots > share.target;
  share.target = slots;
  MarkDirty(job);
  share.slots->Resize(slots);
  Charge(job, Tier::kDevice);
  job.resize = ResizeOperation{
      event.call, event.session,
      now_ + (event.deadline == Duration(0) ? options_.limits.max_wait : event.deadline)};
  if (grows && job.SurplusRegions() == 0) {
    EndResize(job, absl::OkStatus());  // Regions that still leave belong to an earlier call.
  } else {
    FinishResize(job);
  }
  RefuseWhatNoLongerFits(
      job, Tier::kDevice,
      absl::ResourceExhaustedError(absl::StrCat("the job's device share was resized to ", slots,
                                                " chunks, which are too few for this call")));
  ScheduleRoomCheck(job, Tier::kDevice);
}

void EngineState::Charge(Job& job, Tier tier) {
  TierShare& share = job.tier(tier);
  const Bytes before =
      std::exchange(share.lent, job.chunk_size * std::max(share.target, share.made_slots()));
  freed_ = freed_ || share.lent < before;
}

void EngineState::GiveSurplusBack(Job& job) {
  TierShare& share = job.tier(Tier::kDevice);
  if (job.state == Job::State::kEnding || share.slots->surplus_slots() == 0) return;
  while (share.slots->surplus_slots() > 0 && share.slots->free_slots() > 0) {
    const uint32_t slot = share.slots->Unback(share.slots->Take());
    share.slots->Gone(slot);
    const uint32_t region = std::exchange(share.segments[slot], kNoSegment);
    for (const SessionId session : job.sessions) {
      Emit(SendRegionGone{session, RegionId(region), share.slots->size(), job.LeaseBudget()});
    }
    LetGo(job, region, job.sessions);
  }
  Charge(job, Tier::kDevice);
  if (now_ - job.leases_revoked_at < kRevokePeriod) return;
  const uint32_t limit = job.LeaseLimit(Tier::kDevice);
  if (share.pinned_chunks() <= limit) return;
  job.leases_revoked_at = now_;
  for (const SessionId session : job.sessions) {
    if (sessions_.Find(session)->leases.value() == 0) continue;
    ++counters_.revokes;
    Emit(Revoke{session, share.pinned_chunks() - limit, {}});
  }
}

void EngineState::LetGo(Job& job, uint32_t region, std::vector<SessionId> holders) {
  if (holders.empty()) DropLeaving(job, region);
  job.tier(Tier::kDevice).leaving.emplace(region, std::move(holders));
}

void EngineState::DropLeaving(Job& job, uint32_t region) {
  ++job.segments_pending;
  Emit(DropRegion{RegionId(region)});
}

void EngineState::RegionReturned(Job& job, uint32_t region, SessionId session) {
  auto& leaving = job.tier(Tier::kDevice).leaving;
  const auto found = leaving.find(region);
  if (found == leaving.end()) return;
  std::vector<SessionId>& holders = found->second;
  const auto holder = std::find(holders.begin(), holders.end(), session);
  if (holder == holders.end()) return;
  holders.erase(holder);
  if (holders.empty()) DropLeaving(job, region);
}

void EngineState::On(const ReturnRegionsCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (event.regions.size() > options_.limits.device_regions) {
    return Refuse(event.call, absl::InvalidArgumentError(absl::StrCat(
                                  "region_ids: ", event.regions.size(), " regions; at most ",
                                  options_.limits.device_regions, " (device_regions)")));
  }
  for (const RegionId region : event.regions) {
    RegionReturned(*session->job, region.value(), event.session);
  }
  Answer(event.call);
}

void EngineState::LeaveRegions(Job& job, SessionId session) {
  for (const auto& [region, holders] : job.tier(Tier::kDevice).leaving) {
    RegionReturned(job, region, session);
  }
}

void EngineState::FinishResize(Job& job) {
  if (job.SurplusRegions() > 0 || !job.tier(Tier::kDevice).leaving.empty()) return;
  EndResize(job, absl::OkStatus());
}

void EngineState::EndResize(Job& job, const absl::Status& status) {
  if (!job.resize.has_value()) return;
  const CallId call = job.resize->call;
  job.resize.reset();
  if (!status.ok()) return Refuse(call, status);
  Reply reply;
  reply.call = call;
  reply.value = ResizeReply{job.tier(Tier::kDevice).slots->size(), job.LeaseBudget()};
  Emit(std::move(reply));
}

void EngineState::ExpireResizes() {
  for (const auto& [id, job] : jobs_) {
    if (!job->resize.has_value() || now_ < job->resize->deadline) continue;
    ++counters_.deadlines_exceeded;
    const TierShare& share = job->tier(Tier::kDevice);
    std::string text =
        absl::StrCat("the device share of ", share.target,
                     " chunks holds, and is reached later: ", share.pinned_chunks(),
                     " chunks are leased, and ", job->SurplusRegions(), " regions are used, and ",
                     share.leaving.size(), " not yet returned, above it");
    if (!job->last_error.ok()) {
      absl::StrAppend(&text, "; last failure: ", job->last_error.message());
    }
    EndResize(*job, absl::DeadlineExceededError(text));
  }
}

}  // namespace memtide
