// Discard: content that ends while its chunk stays, or becomes another one in place.
#include "base/check.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

void Residency::Discard(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  MEMTIDE_CHECK(!chunk.pinned());
  ForgetWishes(index);
  chunk.blank = copies_[index].discarded = false;
  BeginVersion(index, TierSet());
  victims_.Rank(index);
  if (chunk.is_shadow) victims_.Rank(chunk.counterpart);
  core_.ScheduleChunk(index);
}

void Residency::DiscardUndefined(ChunkIndex index) {
  Discard(index);
  copies_[index].discarded = true;
  core_.chunks[index].prefetched_to.Clear();
}

void Residency::WriteInPlace(ChunkIndex index) {
  const Chunk& chunk = core_.chunks[index];
  BeginVersion(index, TierSet(chunk.pin_tier));
  if (chunk.job->snapshots.saving.has_value()) core_.ScheduleChunk(index);
}

void Residency::BeginVersion(ChunkIndex index, TierSet valid) {
  Chunk& chunk = core_.chunks[index];
  // A transfer of the old content in flight does not count at its end.
  chunk.version = Version(chunk.version.value() + 1);
  copies_[index].torn = copies_[index].memory_failed = false;
  copies_[index].valid = valid;
  core_.MarkDirty(index);
  for (const Tier tier : kMemoryTiers) {
    // The slots of a transfer in flight are freed when it ends.
    const Flight* const flight = chunk.copies().flight.get();
    const bool in_use = flight != nullptr && (flight->to == tier || flight->from == tier);
    const bool stays = chunk.valid_at(tier) || chunk.KeepsSlot(tier) || in_use;
    if (chunk.slot(tier) && !stays) DropCopy(index, tier);
  }
}

}  // namespace memtide
