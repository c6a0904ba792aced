// Discard: content that ends while its chunk stays, and chunks that end.
#include <algorithm>

#include "base/check.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

void Residency::Discard(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  MEMTIDE_CHECK(!chunk.pinned());
  // A transfer of the discarded content in flight does not count at its end.
  chunk.version = Version(chunk.version.value() + 1);
  chunk.copies.valid.Clear();
  chunk.copies.torn = chunk.copies.memory_failed = chunk.copies.discarded = chunk.blank = false;
  core_.MarkDirty(index);
  ForgetWishes(index);
  for (const Tier tier : kMemoryTiers) {
    // The slots of a transfer in flight are freed when it ends.
    const bool in_use = chunk.copies.flight &&
                        (chunk.copies.flight->to == tier || chunk.copies.flight->from == tier);
    if (!chunk.KeepsSlot(tier) && chunk.slot(tier) && !in_use) DropCopy(index, tier);
  }
  victims_.Rank(index);
  if (chunk.is_shadow) victims_.Rank(chunk.counterpart);
  core_.ScheduleChunk(index);
}

bool Residency::ForgetChunk(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  // On(TransferDone) or On(StepDone) calls again.
  if (chunk.copies.flight || chunk.in_step()) return false;
  Job& job = *chunk.job;
  for (const Tier tier : kAllTiers) {
    if (!chunk.slot(tier)) continue;
    chunk.slot(tier).Free();
    if (tier != Tier::kSsd) core_.ScheduleRoomCheck(job, tier);
  }
  job.members.Remove(chunk.member);
  // The next chunk with this index has no failed write-back.
  job.retry_after_tick.erase(
      std::remove(job.retry_after_tick.begin(), job.retry_after_tick.end(), index),
      job.retry_after_tick.end());
  CommonContent* const common = chunk.common;
  core_.chunks.Release(index);
  if (common != nullptr) LeaveContent(*common);
  // Memory of the job, or slots at its home tier, may have become free.
  if (job.state() != JobState::kEnding) return !job.allocating.empty();
  memory_.MaybeDropMemory(job);
  return false;
}

}  // namespace memtide
