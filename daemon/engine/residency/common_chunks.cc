// Common chunks: chunks that come to read a common content (sharing/hidden_jobs.cc), and leave it
// when they are written or end.
#include <utility>

#include "base/check.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

void Residency::HoldInCommon(Job& job, ChunkIndex index) {
  UnlinkShadow(index);
  CancelMovements(index);
  const Chunk& chunk = core_.chunks[index];
  MEMTIDE_CHECK(chunk.valid_at(Tier::kHost) && !chunk.copies().flight && !chunk.pinned());
  Copies& copies = copies_[index];
  job.duplicated.job = &job;
  CommonContent& content = job.duplicated.AddWhole(std::move(copies.slot(Tier::kHost)));
  if (job.home != Tier::kHost) content.claim = job.share(Tier::kHost).Claim();
  copies.valid.Remove(Tier::kSsd);
  copies.sums.clear();
  copies.unreadable = false;
  copies.slot(Tier::kSsd).Free();
  core_.HomesFreed(job);
  Read(job, index, content);
  core_.MarkDirty(index);
  victims_.Rank(index);
  // The room of a smaller limit of leases is that of the chunk.
  core_.ScheduleRoomCheck(job, Tier::kHost);
}

void Residency::BecomeCommon(ChunkIndex index, ChunkIndex reader) {
  Copies& from = copies_[index];
  Copies& to = copies_[reader];
  if (from.valid.has(Tier::kDevice) && from.flight == nullptr) {
    constexpr int kDevice = static_cast<int>(Tier::kDevice);
    to.slots[kDevice] = std::move(from.slots[kDevice]);
    to.valid.Add(Tier::kDevice);
    to.insertion_seq[kDevice] = from.insertion_seq[kDevice];
    from.valid.Remove(Tier::kDevice);
  }
  const Version version = core_.chunks[index].version;
  SwapContents(index, reader);
  core_.chunks[index].version = version;
}

void Residency::LeaveCommon(ChunkIndex index, Home home, TierSet valid) {
  SetHome(index, std::move(home));
  Copies& copies = copies_[index];
  copies.valid = valid;
  core_.chunks[index].prefetched_to.Remove(Tier::kHost);
  CommonContent& content = *std::exchange(copies.common, nullptr);
  copies.of_common.End();
  copies.of_readers.End();
  core_.MarkDirty(index);
  victims_.Rank(index);
  LeaveContent(content);
}

}  // namespace memtide
