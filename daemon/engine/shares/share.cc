#include "daemon/engine/shares/share.h"

#include "base/check.h"

namespace memtide {

namespace {

// A job retains one slot in this many. With fewer, it would read each chunk for each use.
constexpr uint32_t kRetainedPart = 4;

// Beside claims a job has an eighth of its slots, so that it goes on at a fair pace, and at least
// the 12 that one step part may need at once (decision 18) and one for chunks on their way.
constexpr uint32_t kUnclaimedPart = 8, kLeastUnclaimed = 12 + 1;

}  // namespace

uint32_t Share::made_slots() const {
  const uint32_t making = making_ != kNoSegment ? next_segment_slots() : 0;
  return making + (by_slot_ ? slots_->backed_slots() : slots_->numbers() - slots_->gone_slots());
}

uint32_t Share::withheld_slots() const {
  if (by_slot_) return 0;
  const uint32_t unbacked = slots_->unbacked_slots();
  if (!is_elastic()) return unbacked;
  // Slots that went to other jobs, or came from them and are not needed yet, have no pages either.
  const uint32_t charged = std::max(target_, made_slots());
  return std::min({unbacked, balloon_, charged - slots_->backed_slots()});
}

bool Share::can_grow() const {
  // RetrySegments() resets make_later_ at the next Tick.
  if (make_later_) return false;
  const uint32_t missing = slots_->missing_slots();
  if (missing == 0 || by_slot_) return missing > 0;
  // A slot of the balloon is populated alone, while a new segment is made whole.
  const bool fills = slots_->unbacked_slots() > 0;
  // Slots that are being given back still exist.
  if (is_elastic() && made_slots() + (fills ? 1 : next_segment_slots()) > target_) return false;
  return fills || missing >= next_segment_slots();
}

uint32_t Share::surplus_regions() const {
  if (!by_slot_) return 0;
  const uint32_t regions = slots_->backed_slots() + (making_ != kNoSegment);
  return regions - std::min(regions, slots_->size());
}

// All segments but the last have the same number of slots.
Bytes Share::SizeOf(uint32_t segment) const {
  const auto found = std::find(segments_.begin(), segments_.end(), segment);
  MEMTIDE_CHECK(found != segments_.end()) << segment;
  const auto before = static_cast<uint32_t>(found - segments_.begin()) * slots_per_segment_;
  return chunk_size_ * std::min(slots_per_segment_, slots_->numbers() - before);
}

MemoryPlace Share::PlaceOf(SlotNumber slot) const {
  return {RegionId(segments_[slot.value() / slots_per_segment_]),
          chunk_size_ * (slot.value() % slots_per_segment_)};
}

SlotNumber Share::NumberOf(const MemoryPlace& place) const {
  const auto region = std::find(segments_.begin(), segments_.end(), place.region.value());
  MEMTIDE_CHECK(region != segments_.end());
  return SlotNumber(static_cast<uint32_t>(region - segments_.begin()) * slots_per_segment_ +
                    static_cast<uint32_t>(place.offset / chunk_size_));
}

absl::optional<std::vector<Slot>> Share::TakeNumbers(const std::vector<SlotNumber>& numbers) {
  if (!exists()) return absl::nullopt;
  return slots_->TakeNumbers(numbers);
}

// Below `made` any number can be reached, because slots are populated one by one.
uint32_t Share::Reachable(uint64_t slots, bool up) const {
  const uint64_t made =
      exists() ? slots_->numbers() + (making_ == kNoSegment ? 0 : next_segment_slots()) : 0;
  if (slots >= limit_) return limit_;
  if (slots <= made) return static_cast<uint32_t>(slots);
  const uint64_t each = slots_per_segment_;
  const uint64_t segments = (slots - made + (up ? each - 1 : 0)) / each;
  return static_cast<uint32_t>(std::min<uint64_t>(limit_, made + segments * each));
}

// The slot that is being populated counts as changing, but is not going.
uint32_t Share::going_slots() const {
  return slots_->surplus_slots() + slots_->changing_slots() - deflating_;
}

uint32_t Share::coming_slots() const {
  return std::min(slots_->missing_slots(), slots_->gone_slots() + deflating_);
}

uint32_t Share::slots_for_claims(uint32_t more) const {
  const uint32_t claims = claims_.value() + more;
  return claims == 0 ? 0 : claims + std::max(kLeastUnclaimed, limit_ / kUnclaimedPart);
}

uint32_t Share::inflatable_slots() const {
  const uint32_t retained =
      std::max({kMinSlots, slots_with_balloon() / kRetainedPart, slots_for_claims()});
  return std::max(retained, std::min(slots_->size(), slots_->backed_slots())) - retained;
}

void Share::CheckInvariants() const {
  if (!exists()) {
    MEMTIDE_CHECK(bytes_.IsZero() && target_ == 0 && limit_ == 0 && pending() == 0);
    return;
  }
  // The pool is smaller than the target by the balloon, or where memory could not be made.
  MEMTIDE_CHECK(slots_->size() <= target_);
  MEMTIDE_CHECK(chunk_size_ *
                    (slots_->used_slots() + slots_->quarantined_slots() + withheld_slots()) <=
                bytes_)
      << "the share is charged " << bytes_ << " for " << slots_->used_slots() << " used slots and "
      << withheld_slots() << " that the balloon has";
  MEMTIDE_CHECK(slots_for_claims() <= std::min(slots_->size(), slots_->backed_slots()))
      << claims() << " slots are claimed of " << slots_->size();
  for (const auto& [region, holders] : leaving_) {
    MEMTIDE_CHECK(by_slot_ && holders.empty() == (dropping_.count(region) > 0))
        << "region " << region << " is dropped while a session maps it, or is kept for nobody";
  }
  by_slot_ ? CheckRegionsOfSlots() : CheckSegments();
}

void Share::CheckRegionsOfSlots() const {
  std::set<uint32_t> regions;
  for (const uint32_t region : segments_) {
    if (region == kNoSegment) continue;
    MEMTIDE_CHECK(regions.insert(region).second) << "region " << region << " is two slots";
    MEMTIDE_CHECK(leaving_.count(region) == 0) << "region " << region << " left and stayed";
  }
  MEMTIDE_CHECK(regions.size() == slots_->backed_slots());
  MEMTIDE_CHECK(balloon_ == 0);
  MEMTIDE_CHECK(!is_elastic() || (guaranteed_ <= limit_ && target_ <= limit_));
  MEMTIDE_CHECK(bytes_ == chunk_size_ * std::max(target_, made_slots()));
}

void Share::CheckSegments() const {
  MEMTIDE_CHECK(slots_with_balloon() <= target_);
  MEMTIDE_CHECK(slots_->numbers() <= limit_ && target_ <= limit_);
  if (is_elastic()) {
    MEMTIDE_CHECK(bytes_ == chunk_size_ * std::max(target_, made_slots()));
    MEMTIDE_CHECK(slots_with_balloon() == target_);
  } else {
    // The job is charged for its whole share, also for what the balloon has or could not be made.
    // An elastic share whose first segment failed has no slots left, and is charged until its job,
    // which cannot begin, has ended.
    MEMTIDE_CHECK(target_ == limit_ && (limit_ == 0 || bytes_ == chunk_size_ * limit_));
  }
  MEMTIDE_CHECK(balloon_ == 0 || tier() == Tier::kHost);
  MEMTIDE_CHECK(slots_->changing_slots() >= deflating_);
}

}  // namespace memtide
