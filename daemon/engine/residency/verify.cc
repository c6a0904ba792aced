// Verify: what the SSD returns is compared with the sums of what was written there, when a chunk is
// read, and while it is at rest (scrubber.h).
//
// The sums belong to the content, not to its place: they move with it at a commit, and are in its
// record. So a write that the drive forgot, or put elsewhere, shows as well as a bit that flipped.
#include "base/content_sums.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

bool Residency::IsVerified(const Chunk& chunk) const {
  const Verify verify = core_.options.verify;
  if (verify != Verify::kKept) return verify == Verify::kAll;
  // A transient chunk ends with the job's last session, whatever the job's time to live.
  return chunk.job->time_to_live > Duration(0) && !chunk.transient;
}

ContentSums Residency::SumsToCompare(const Chunk& chunk) const {
  return IsVerified(chunk) ? chunk.copies().sums : ContentSums();
}

bool Residency::BadCopy(ChunkIndex index, const absl::Status& what) {
  Chunk& chunk = core_.chunks[index];
  TierSet others = chunk.copies().valid;
  others.Remove(Tier::kSsd);
  core_.Emit(
      BadCopyFound{chunk.job->id, chunk.job->name, core_.IdOf(index), !others.empty(), what});
  if (others.empty()) {
    copies_[index].unreadable = true;
    return false;
  }
  chunk.write_back_from = others.has(Tier::kHost) ? Tier::kHost : Tier::kDevice;
  EndSsdCopy(index);
  return true;
}

void Residency::DistrustSsd(ChunkIndex index) {
  const Copies& copies = copies_[index];
  if (copies.flight != nullptr && copies.flight->to == Tier::kSsd) {
    copies_[index].flight->is_unflushed = true;
  }
  if (!copies.valid.has(Tier::kSsd)) return;
  if (copies.valid.has(Tier::kHost)) return EndSsdCopy(index);
  copies_[index].unflushed = true;
  core_.MarkDirty(index);
}

void Residency::EndSsdCopy(ChunkIndex index) {
  Copies& copies = copies_[index];
  copies.valid.Remove(Tier::kSsd);
  copies.sums.clear();
  copies.unflushed = false;
  core_.MarkDirty(index);
  NoteChange(index);
}

}  // namespace memtide
