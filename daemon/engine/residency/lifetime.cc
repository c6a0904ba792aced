// Lifetime: chunks begin, and end when nothing uses their slots any more, as common contents do
// with their last reader.
#include <algorithm>
#include <utility>

#include "daemon/engine/residency/residency.h"

namespace memtide {

ChunkIndex Residency::MakeChunk(Job& job, NewChunk made) {
  const ChunkIndex index = made.recorded.has_value()
                               ? core_.chunks.MakeRestored(*made.recorded, &job)
                               : core_.chunks.Make(&job);
  Chunk& chunk = core_.chunks[index];
  chunk.owner = made.owner;
  chunk.version = made.version;
  chunk.kind = made.kind;
  chunk.undefined = made.undefined;
  chunk.transient = made.transient;
  chunk.repeats_offer = made.repeats_offer;
  copies_[index] = std::move(made.copies);
  SetHome(index, std::move(made.home));
  if (made.reads != nullptr) Read(job, index, *made.reads);
  chunk.member = job.members.Add(index);
  victims_.Update(index);
  if (made.recorded.has_value()) return index;
  job.trace.Use(chunk.member, TracedOperation::kAllocate);
  if (made.is_unnamed) job.names.AddUnnamed(index, core_.IdOf(index));
  core_.MarkDirty(index);
  return index;
}

void Residency::SetHome(ChunkIndex index, Home home) {
  Copies& copies = copies_[index];
  copies.home = home.tier;
  copies.claim = std::move(home.claim);
  if (home.slot) copies.slot(home.tier) = std::move(home.slot);
}

void Residency::Read(Job& job, ChunkIndex index, CommonContent& content) {
  Copies& copies = copies_[index];
  copies.home = Tier::kHost;
  copies.common = &content;
  copies.of_readers = content.readers.Take();
  copies.of_common = job.common.Take();
  if (content.whole) copies.valid.Add(Tier::kHost);
}

// A reader has gone.
void Residency::LeaveContent(CommonContent& content) {
  if (content.readers.value() > 0) return;
  CommonContents& contents = *content.of;
  Job& job = *contents.job;
  contents.Remove(content);
  if (&contents == &job.duplicated) return core_.ScheduleRoomCheck(job, Tier::kHost);
  core_.work.Send(ContentEnded{job.id});
}

bool Residency::EndChunk(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  Job& job = *chunk.job;
  CancelMovements(index);
  UnlinkShadow(index);
  core_.chunks.Free(index);
  // A slot that a transfer still uses will be free without the chunk's doing.
  copies_[index].claim.End();
  copies_[index].of_common.End();
  job.members.Free(chunk.member);
  job.trace.Use(chunk.member, TracedOperation::kFree);
  job.forecast.Free(chunk.member, job.clock.MicrosecondsAt(core_.now));
  victims_.Update(index);
  return ReleaseIfUnused(index);
}

bool Residency::ReleaseIfUnused(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  // On(TransferDone) or On(StepDone) calls again.
  if (chunk.copies().flight || chunk.in_step()) return false;
  Job& job = *chunk.job;
  for (const Tier tier : kAllTiers) {
    if (!chunk.slot(tier)) continue;
    copies_[index].slot(tier).Free();
    if (tier != Tier::kSsd) core_.ScheduleRoomCheck(job, tier);
  }
  job.members.Remove(chunk.member);
  CommonContent* const common = chunk.common();
  core_.chunks.Release(index);
  if (common != nullptr) LeaveContent(*common);
  // Memory of the job, or slots at its home tier, may have become free.
  if (job.state() != JobState::kEnding) return !job.allocating.empty();
  memory_.MaybeDropMemory(job);
  return false;
}

}  // namespace memtide
