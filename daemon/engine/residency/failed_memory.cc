// Memory of the device that failed (an uncorrectable ECC error): what it held is never stored or
// served, and its slot is lent no more.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

bool Residency::DeviceMemoryFailed(ChunkIndex index, const absl::Status& why) {
  const Chunk& chunk = core_.chunks[index];
  Job& job = *chunk.job;
  // A client that has the chunk leased, or is about to, meets the error itself. The slot goes when
  // the lease has ended, and the copy is to leave again. Slots at the home tier stay.
  const bool in_use = chunk.pinned_at(Tier::kDevice) && chunk.valid_at(Tier::kDevice);
  if (!chunk.slot(Tier::kDevice) || in_use || job.home == Tier::kDevice) return false;
  core_.MarkDirty(index);
  Copies& copies = copies_[index];
  const bool had_content = !copies.valid.empty();
  copies.valid.Remove(Tier::kDevice);
  memory_.RetireSlot(job, std::move(copies.slot(Tier::kDevice)));
  victims_.Rank(index);
  return had_content && LoseIfNoCopy(index, why);
}

// Calls that wait for what is lost would be given zeros.
bool Residency::LoseIfNoCopy(ChunkIndex index, const absl::Status& why) {
  Copies& copies = copies_[index];
  if (!copies.valid.empty()) return false;
  copies.torn = copies.memory_failed = true;
  for (const SessionId id : core_.chunks[index].job->sessions) {
    core_.sessions.Find(id)->has_lost_content = true;
  }
  core_.work.Send(PromotionFailed{core_.IdOf(index), why, /*is_lost=*/true});
  return true;
}

void Residency::LoseDeviceCopies(Job& job, const absl::Status& why) {
  for (const ChunkIndex index : job.members.chunks()) {
    if (!core_.chunks[index].live()) continue;
    Chunk& chunk = core_.chunks[index];
    if (chunk.copies().flight) {
      Flight& flight = *copies_[index].flight;
      flight.is_void = flight.is_void || flight.from == Tier::kDevice || flight.to == Tier::kDevice;
    }
    if (chunk.prefetch_to.has_value() && *chunk.prefetch_to == Tier::kDevice) StopPrefetch(chunk);
    if (!chunk.slot(Tier::kDevice)) continue;
    Copies& copies = copies_[index];
    const bool had_content = !copies.valid.empty();
    copies.valid.Remove(Tier::kDevice);
    if (had_content) LoseIfNoCopy(index, why);
    NoteChange(index);  // The slot goes when no transfer uses it.
  }
}

}  // namespace memtide
