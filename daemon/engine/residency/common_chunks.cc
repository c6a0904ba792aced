// Common chunks: chunks that read a common content (sharing/contents.cc), and leave it when they
// are written or end.
#include <utility>

#include "daemon/engine/residency/residency.h"

namespace memtide {

// The chunk has a content of its own from now on, in `valid`, and a home in the slot.
void Residency::LeaveCommon(Job& job, ChunkIndex index, Slot slot, TierSet valid) {
  Chunk& chunk = core_.chunks[index];
  chunk.slot(job.home) = std::move(slot);
  chunk.home = job.home;
  chunk.copies.valid = valid;
  chunk.prefetched_to.Remove(Tier::kHost);
  CommonContent& content = *std::exchange(chunk.common, nullptr);
  chunk.of_common.End();
  chunk.of_readers.End();
  core_.MarkDirty(index);
  victims_.Rank(index);
  victims_.Update(index);
  LeaveContent(content);
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

}  // namespace memtide
