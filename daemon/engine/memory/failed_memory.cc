// Memory of the device that failed (an uncorrectable ECC error): what it held is never stored or
// served, and its slot is lent no more.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/state.h"

namespace memtide {

bool EngineState::DeviceMemoryFailed(ChunkIndex index, const absl::Status& why) {
  Chunk& chunk = core_.chunks[index];
  Job& job = *chunk.job;
  // A client that has the chunk leased, or is about to, meets the error itself. The slot goes when
  // the lease has ended, and the copy is to leave again. Slots at the home tier stay.
  const bool in_use = chunk.pinned_at(Tier::kDevice) && chunk.valid_at(Tier::kDevice);
  if (!chunk.slot(Tier::kDevice) || in_use || job.home == Tier::kDevice) return false;
  core_.MarkDirty(index);
  const bool had_content = !chunk.copies.valid.empty();
  chunk.copies.valid.Remove(Tier::kDevice);
  RetireSlot(job, std::exchange(chunk.slot(Tier::kDevice), Slot()));
  Rank(index);
  if (!had_content || !chunk.copies.valid.empty()) return false;
  chunk.copies.torn = chunk.copies.memory_failed = true;
  core_.work.Send(PromotionFailed{index, why, /*is_lost=*/true});
  return true;
}

void EngineState::RetireSlot(Job& job, Slot slot) {
  Share& share = job.share(Tier::kDevice);
  const SlotPool& slots = share.slots();
  core_.ScheduleRoomCheck(job, Tier::kDevice);
  // On(ClientQuiet) needs the slot. The device refuses memory that failed, so that what is copied
  // there later fails and tries another slot.
  if (share.by_slot() && slots.in_quarantine(slot.number())) return;
  // With fewer slots the job could not go on. The device refuses memory that failed, so that what
  // is copied there fails and tries another slot.
  if (!share.by_slot() || (slots.surplus_slots() == 0 && slots.size() <= kMinSlots)) return;
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
