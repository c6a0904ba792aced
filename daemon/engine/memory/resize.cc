// Resize: the device share of a job changes while the job runs, slot by slot.
//
// The new share holds at once for all later calls. If the share is elastic, the new size is its
// limit, below which other jobs may reclaim. A share that shrinks has more slots with memory than
// its pool should have, its surplus: MakeRoom evicts chunks, and every slot that becomes free is
// given up. Its region is announced as gone and dropped when no session maps it any more. Until
// then the region is charged as scrubbing memory.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/engine/errors.h"
#include "daemon/engine/memory/memory.h"

namespace memtide {

absl::Status Memory::CheckResize(const Job& job, const ResizeCall& event) const {
  const Share& share = job.share(Tier::kDevice);
  if (!share.by_slot()) {
    return absl::FailedPreconditionError(
        share.exists() ? "the job's device memory is not lent slot by slot; open the job with "
                         "device_memory CUDA_DESCRIPTOR"
                       : "the node has no device memory");
  }
  // Chunks never leave their home tier, so that none of its slots could be given back.
  if (job.home == Tier::kDevice) {
    return absl::FailedPreconditionError(
        "the device is where the job's chunks have their home; give the node a host pool");
  }
  MEMTIDE_RETURN_IF_ERROR(CheckDeadline(core_.options.limits, event.deadline));
  const uint64_t slots = event.device_share / job.chunk_size;
  if (slots < kMinSlots) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device_share_bytes: ", FormatBytes(event.device_share), " are ", slots, " chunks of ",
        FormatBytes(job.chunk_size), "; at least ", kMinSlots, " are needed"));
  }
  if (core_.draining) {
    return absl::UnavailableError("the memtide daemon is draining and resizes no job");
  }
  MEMTIDE_RETURN_IF_ERROR(core_.ledger.CheckDeviceRegions(share, slots));
  if (share.is_elastic()) return absl::OkStatus();
  if (slots > share.target())
    MEMTIDE_RETURN_IF_ERROR(core_.ledger.quotas().CheckQuota(share, slots));
  const Bytes wanted = job.chunk_size * slots;
  const Bytes free = core_.ledger.pools().Free(share.pool());
  if (wanted > share.bytes() && wanted - share.bytes() > free) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the ", PoolName(share.pool()), " pool has ", FormatBytes(free),
                     " free; the job would grow by ", FormatBytes(wanted - share.bytes()),
                     ", from ", FormatBytes(share.bytes())));
  }
  return absl::OkStatus();
}

void Memory::On(const ResizeCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  const absl::Status status = CheckResize(job, event);
  if (!status.ok()) return core_.Refuse(event.call, status);
  EndResize(job, absl::AbortedError("another Resize of the job took the place of this one"));

  Share& share = job.share(Tier::kDevice);
  const uint32_t slots = static_cast<uint32_t>(event.device_share / job.chunk_size);
  const bool grows = slots > (share.is_elastic() ? share.limit() : share.target());
  const bool was_below_limit = share.slots().size() < share.limit();
  core_.ledger.Resize(share, slots);
  // At its limit, the share has what is announced, and the reply says so: a budget that comes on
  // another way could come later, and be the one before.
  const bool is_below_limit = share.slots().size() < share.limit();
  if (share.is_elastic() && (was_below_limit || is_below_limit)) {
    SendBudgets(job, core_.ledger.pools().ChangeOf(share));
  }
  core_.MarkDirty(job);
  job.resize = ResizeOperation{event.call, event.session, core_.DeadlineIn(event.deadline)};
  if (grows && share.surplus_regions() == 0) {
    EndResize(job, absl::OkStatus());  // Regions that still leave belong to an earlier call.
  } else {
    FinishResize(job);
  }
  if (!grows) {
    core_.work.Send(TierShrunk{
        job.id, Tier::kDevice,
        absl::ResourceExhaustedError(absl::StrCat("the job's device share was resized to ", slots,
                                                  " chunks, which are too few for this call"))});
  }
  core_.ScheduleRoomCheck(job, Tier::kDevice);
}

void Memory::GiveSurplusBack(Job& job) {
  Share& share = job.share(Tier::kDevice);
  const SlotPool& slots = share.slots();
  if (job.state() == JobState::kEnding || slots.surplus_slots() == 0) return;
  while (slots.surplus_slots() > 0 && slots.free_slots() > 0) {
    const uint32_t region = core_.ledger.GiveUpRegion(share);
    for (const SessionId session : job.sessions) {
      core_.Emit(
          SendRegionGone{session, RegionId(region), slots.size(), job.AnnouncedLeaseBudget()});
    }
    // Memory is free only when all handles and mappings in all processes are gone (decision 9). So
    // each session must return the region, or end.
    LetGo(job, region, job.sessions);
  }
  // Clients have to release chunks that are still pinned above the limit.
  if (core_.now - job.leases_revoked_at < kRevokePeriod) return;
  const uint32_t limit = job.LeaseLimit(Tier::kDevice);
  const uint32_t pinned = job.tier(Tier::kDevice).pinned_chunks();
  if (pinned <= limit) return;
  job.leases_revoked_at = core_.now;
  for (const SessionId session : job.sessions) {
    if (core_.sessions.Find(session)->leases.value() == 0) continue;
    ++core_.counters.revokes;
    core_.Emit(Revoke{session, pinned - limit, {}});
  }
}

void Memory::LetGo(Job& job, uint32_t region, std::vector<SessionId> holders) {
  if (!core_.ledger.Leave(job.share(Tier::kDevice), region, std::move(holders))) return;
  core_.Emit(DropRegion{RegionId(region), job.id});
}

// Ignores a region that the session does not have to return: the number comes from a client.
void Memory::RegionReturned(Job& job, uint32_t region, SessionId session) {
  if (!core_.ledger.Return(job.share(Tier::kDevice), region, session)) return;
  core_.Emit(DropRegion{RegionId(region), job.id});
}

void Memory::On(const ReturnRegionsCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (event.regions.size() > core_.options.limits.device_regions) {
    return core_.Refuse(event.call, absl::InvalidArgumentError(absl::StrCat(
                                        "region_ids: ", event.regions.size(), " regions; at most ",
                                        core_.options.limits.device_regions, " (device_regions)")));
  }
  for (const RegionId region : event.regions) {
    RegionReturned(*session->job, region.value(), event.session);
  }
  core_.Answer(event.call);
}

void Memory::LeaveRegions(Job& job, SessionId session) {
  // The loop is safe, because a region stays in leaving() until On(RegionDropped).
  for (const auto& [region, holders] : job.share(Tier::kDevice).leaving()) {
    RegionReturned(job, region, session);
  }
}

// Runs after a region is dropped, and after the share has changed.
void Memory::FinishResize(Job& job) {
  const Share& share = job.share(Tier::kDevice);
  if (share.surplus_regions() > 0 || !share.leaving().empty()) return;
  EndResize(job, absl::OkStatus());
}

void Memory::EndResize(Job& job, const absl::Status& status) {
  if (!job.resize.has_value()) return;
  const CallId call = job.resize->call;
  job.resize.reset();
  if (!status.ok()) return core_.Refuse(call, status);
  core_.AnswerWith(
      call, ResizeReply{job.share(Tier::kDevice).slots().size(), job.AnnouncedLeaseBudget()});
}

// The share keeps its new size: only the call that waits for it ends.
void Memory::ExpireResizes() {
  for (const auto& [id, job] : core_.jobs) {
    if (!job->resize.has_value() || core_.now < job->resize->deadline) continue;
    if (core_.writes.WaitingOf(id) > 0) {
      EndResize(*job, AwaitsBudget("the new share"));
      continue;
    }
    ++core_.counters.deadlines_exceeded;
    const Share& share = job->share(Tier::kDevice);
    std::string text =
        absl::StrCat("the share of ", share.target(), " chunks of ", PoolName(share.pool()),
                     " holds, and is reached later: ", job->tier(Tier::kDevice).pinned_chunks(),
                     " chunks are leased, and ", share.surplus_regions(), " regions are used, and ",
                     share.leaving().size(), " not yet returned, above it");
    if (!job->last_error.ok()) {
      absl::StrAppend(&text, "; last failure: ", job->last_error.message());
    }
    EndResize(*job, absl::DeadlineExceededError(text));
  }
}

void Memory::RetireSlot(Job& job, Slot slot) {
  Share& share = job.share(Tier::kDevice);
  const SlotPool& slots = share.slots();
  core_.ScheduleRoomCheck(job, Tier::kDevice);
  // On(ClientQuiet) needs the slot. The device refuses memory that failed, so that what is copied
  // there later fails and tries another slot.
  if (share.by_slot() && slots.in_quarantine(slot.number())) return;
  // With fewer slots the job could not go on. The device refuses memory that failed, so that what
  // is copied there fails and tries another slot: any other one that is free.
  if (!share.by_slot() || (slots.surplus_slots() == 0 && slots.size() <= kMinSlots)) {
    return share.FreeLast(std::move(slot));
  }
  if (slots.surplus_slots() == 0) core_.ledger.LoseSlot(share);
  const uint32_t region = core_.ledger.GiveUpRegion(share, std::move(slot));
  for (const SessionId session : job.sessions) {
    core_.Emit(SendRegionGone{session, RegionId(region), slots.size(), job.AnnouncedLeaseBudget()});
  }
  LetGo(job, region, job.sessions);
  core_.work.Send(
      TierShrunk{job.id, Tier::kDevice,
                 absl::ResourceExhaustedError(absl::StrCat(
                     "memory of the GPU failed, and the job has ", slots.size(),
                     " slots there now, which are too few for this call; raise --device-pool"))});
}

}  // namespace memtide
