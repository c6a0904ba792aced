// Segments: the regions and stores that a share's memory is made of.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "daemon/engine/shares/share_ledger.h"

namespace memtide {

Bytes ShareLedger::MakeSegment(Share& share, uint32_t segment) {
  MEMTIDE_CHECK(share.making_ == kNoSegment && share.can_grow());
  share.making_ = segment;
  return share.chunk_size() * share.next_segment_slots();
}

bool ShareLedger::SegmentMade(Share& share, uint32_t segment) {
  MEMTIDE_CHECK(share.making_ == segment);
  share.making_ = kNoSegment;
  // A device share may have shrunk while the region was made.
  const bool wanted = !share.by_slot() || share.slots_->missing_slots() > 0;
  if (wanted) BackSegment(share, segment);
  pools_.Charge(share);
  return wanted;
}

absl::optional<SharePools::Change> ShareLedger::SegmentFailed(const JobShares& job, Share& share,
                                                              uint32_t segment) {
  MEMTIDE_CHECK(share.making_ == segment);
  share.making_ = kNoSegment;
  SlotPool& slots = *share.slots_;
  if (job.state() != JobState::kMaking && slots.backed_slots() < kMinSlots) {
    // A restored job may have no memory yet. If its share were to stay so, no call could use it.
    share.make_later_ = share.tier() != job.home();
    pools_.Charge(share);
    return absl::nullopt;
  }
  slots.Cap();
  if (share.by_slot() && share.is_elastic()) {
    // Slots beyond the pool's size are on their way back.
    share.limit_ = share.target_ = slots.size();
    share.guaranteed_ = std::min(share.guaranteed_, share.limit_);
  } else if (share.is_elastic()) {
    share.limit_ = slots.numbers();
    share.target_ = std::min(share.target_, share.limit_);
    share.guaranteed_ = std::min(share.guaranteed_, share.limit_);
    share.balloon_ = share.target_ - slots.size();
  } else if (!share.by_slot()) {
    share.balloon_ = slots.numbers() - slots.size();
  }
  pools_.Charge(share);
  return SharePools::ChangeOf(share);
}

void ShareLedger::RetrySegments(JobShares& job) {
  for (Share& share : job.shares_) share.make_later_ = false;
}

void ShareLedger::BackSegment(Share& share, uint32_t segment) {
  std::vector<uint32_t>& segments = share.segments_;
  if (!share.by_slot()) {
    share.slots_->Back(share.next_segment_slots());
    return segments.push_back(segment);
  }
  const uint32_t slot = share.slots_->BackOne().value();
  // A slot that was given up has a new region under its old number.
  if (slot >= segments.size()) segments.resize(slot + 1, kNoSegment);
  segments[slot] = segment;
}

void ShareLedger::ReplaceSegment(Share& share, uint32_t copy) {
  MEMTIDE_CHECK(share.tier() == Tier::kHost && share.pending() == 0) << "of job " << share.job();
  share.replacing_ = copy;
}

void ShareLedger::SegmentReplaced(Share& share, uint32_t segment) {
  const auto found = std::find(share.segments_.begin(), share.segments_.end(), segment);
  MEMTIDE_CHECK(found != share.segments_.end() && share.replacing_ != kNoSegment) << segment;
  *found = std::exchange(share.replacing_, kNoSegment);
  share.dropping_.insert(segment);
  share.replaced_.insert(segment);
}

std::vector<uint32_t> ShareLedger::DropSegments(Share& share) {
  std::vector<uint32_t> dropped;
  for (const uint32_t segment : share.segments_) {
    if (segment == kNoSegment) continue;
    dropped.push_back(segment);
    share.dropping_.insert(segment);
  }
  return dropped;
}

bool ShareLedger::SegmentDropped(JobShares& shares, uint32_t segment) {
  for (Share& share : shares.shares_) {
    if (share.dropping_.erase(segment) == 0) continue;
    const bool left = share.leaving_.erase(segment) > 0;
    if (left) pools_.NoteFreed();  // Until now it was charged as scrubbing.
    return share.replaced_.erase(segment) > 0 || left;
  }
  MEMTIDE_CHECK(false) << "segment " << segment << " goes unasked";
  return false;
}

}  // namespace memtide
