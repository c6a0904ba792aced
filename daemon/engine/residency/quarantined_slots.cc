// Quarantined slots: those at the device to which the work of a process that died may still write
// (jobs/quarantine.cc), and those on SSD that a snapshot names (records/snapshots.cc).
#include "daemon/engine/residency/copies.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

bool Residency::InQuarantine(const Chunk& chunk) const {
  const Slot& slot = chunk.slot(Tier::kDevice);
  return slot && chunk.job->share(Tier::kDevice).slots().in_quarantine(slot.number());
}

SlotNumber Residency::QuarantineCopy(ChunkIndex index, Access access) {
  const Chunk& chunk = core_.chunks[index];
  const SlotNumber slot = chunk.slot(Tier::kDevice).number();
  chunk.job->share(Tier::kDevice).Quarantine(slot);
  // A transfer from the slot may be in flight: then the slot follows when that has ended.
  if (access == Access::kWrite) copies_[index].valid.Remove(Tier::kDevice);
  core_.ScheduleChunk(index);
  return slot;
}

void Residency::LeaveQuarantine(ChunkIndex index) {
  const Chunk& chunk = core_.chunks[index];
  // Slots at the home tier stay.
  if (chunk.job->home == Tier::kDevice) return;
  const bool needed = chunk.pinned_at(Tier::kDevice) || IsOnlyCopy(chunk, Tier::kDevice);
  if (chunk.valid_at(Tier::kDevice) && needed) return;
  DropCopy(index, Tier::kDevice);
}

bool Residency::LeaveSnapshotSlot(ChunkIndex index) {
  Share& ssd = core_.chunks[index].job->share(Tier::kSsd);
  Slot& slot = copies_[index].slot(Tier::kSsd);
  if (!ssd.slots().in_quarantine(slot.number())) return true;
  Slot other = ssd.Take();
  if (other) {
    slot = std::move(other);
    core_.MarkDirty(index);
    return true;
  }
  // Another victim leaves instead.
  CancelEviction(core_.chunks[index]);
  RetryLater(index);
  return false;
}

}  // namespace memtide
