// Quarantined slots: copies in slots at the device to which the work of a process that died may
// still write (jobs/quarantine.cc).
#include "daemon/engine/residency/copies.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

bool Residency::InQuarantine(const Chunk& chunk) const {
  const Slot& slot = chunk.slot(Tier::kDevice);
  return slot && chunk.job->share(Tier::kDevice).slots().in_quarantine(slot.number());
}

void Residency::LeaveQuarantine(ChunkIndex index) {
  const Chunk& chunk = core_.chunks[index];
  // Slots at the home tier stay.
  if (chunk.job->home == Tier::kDevice) return;
  const bool needed = chunk.pinned_at(Tier::kDevice) || IsOnlyCopy(chunk, Tier::kDevice);
  if (chunk.valid_at(Tier::kDevice) && needed) return;
  DropCopy(index, Tier::kDevice);
}

// Before the chunk is written to SSD: it leaves a slot that a snapshot names. False: there is no
// other slot until a snapshot is saved.
bool Residency::LeaveSnapshotSlot(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  Job& job = *chunk.job;
  Share& ssd = job.share(Tier::kSsd);
  Slot& slot = chunk.slot(Tier::kSsd);
  if (!job.is_durable() || !ssd.slots().in_quarantine(slot.number())) return true;
  Slot other = ssd.Take();
  if (other) {
    slot = std::move(other);
    core_.MarkDirty(index);
    return true;
  }
  RetryLater(index);
  return false;
}

}  // namespace memtide
