// LeaseCache, reclaim: which leases to release, because they are revoked, for headroom, or for a
// fetch.
#include <algorithm>

#include "client/lease/lease_cache.h"

namespace memtide::client {

bool LeaseCache::NeedsReclaim() const {
  if (idle_.size() == 0) return false;
  if (revoked_ > 0) return true;
  for (const uint32_t place : revoked_places_) {
    if (IsTakable(place)) return true;
  }
  for (const uint32_t place : leaving_) {
    if (IsTakable(place) && entries_[place].IsSettled(moment_)) return true;
  }
  if (bound_ <= limits_.budget())
    return false;  // All chunks fit: nothing will have to be released.
  // The next lease would have to wait for a release. TakeForHeadroom spares recently faulted
  // places, so there must be others.
  return idle_.size() > kRecentFaults && held_ + leasing_ >= limits_.MostHeld(in_use());
}

std::vector<PlaceId> LeaseCache::TakeForHeadroom() {
  const uint32_t most = limits_.MostHeld(in_use());
  if (bound_ <= limits_.budget() || held_ + leasing_ < most) return {};
  ++stamp_;  // Begins a request without places, so that TakeOldest spares none of the last request.
  return TakeOldest(held_ + leasing_ - most + limits_.headroom(), Recent::kSpare);
}

void LeaseCache::SetEvictionHints(absl::Span<const ChunkId> chunks, size_t leaving) {
  eviction_hints_.clear();
  leaving_.clear();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto found = places_.find(chunks[i]);
    if (found == places_.end()) continue;
    eviction_hints_.push_back(found->second);
    if (i < leaving) leaving_.push_back(found->second);
  }
}

void LeaseCache::Revoke(absl::Span<const ChunkId> chunks, uint32_t additional) {
  for (const ChunkId chunk : chunks) {
    const auto found = places_.find(chunk);
    if (found == places_.end()) continue;
    const State state = entries_[found->second].state;
    // A revocation comes on another socket than leases, so it may overtake the lease that it is
    // about.
    if (IsHeld(state) || state == State::kLeasing) revoked_places_.insert(found->second);
  }
  // Repeated revocations cannot add up to more leases than there are.
  revoked_ =
      static_cast<uint32_t>(std::min<uint64_t>(uint64_t{revoked_} + additional, held_ + leasing_));
}

bool LeaseCache::IsTakable(uint32_t place) const {
  return entries_[place].IsIdle() && !IsMoving(entries_[place].state);
}

std::vector<PlaceId> LeaseCache::TakeRevoked() {
  std::vector<PlaceId> taken;
  const std::vector<uint32_t> named(revoked_places_.begin(), revoked_places_.end());
  for (const uint32_t place : named) {
    // Named chunks that are in use stay in revoked_places_ until their uses end.
    if (IsTakable(place)) MarkReleasing(place, &taken);
  }
  for (const uint32_t place : leaving_) {
    if (IsTakable(place) && entries_[place].IsSettled(moment_)) MarkReleasing(place, &taken);
  }
  ++stamp_;
  const std::vector<PlaceId> oldest = TakeOldest(revoked_, Recent::kLast);
  revoked_ -= oldest.size();
  taken.insert(taken.end(), oldest.begin(), oldest.end());
  return taken;
}

std::vector<PlaceId> LeaseCache::TakeIdle(absl::optional<absl::Span<const PlaceId>> places) {
  std::vector<PlaceId> taken;
  if (!places.has_value()) {
    while (idle_.oldest() != kNone) MarkReleasing(idle_.oldest(), &taken);
    return taken;
  }
  for (const PlaceId place : *places) {
    if (IsBound(place) && IsTakable(place.value())) {
      MarkReleasing(place.value(), &taken);
    }
  }
  return taken;
}

std::vector<PlaceId> LeaseCache::TakeOldest(uint32_t count, Recent recent) {
  std::vector<PlaceId> taken;
  const auto may_go = [this](uint32_t place) {
    return entries_[place].stamp != stamp_ && !IsRecent(place);
  };
  // The daemon predicts the next use of each chunk, so its hints beat the order of last uses
  // (decision 10).
  for (const uint32_t place : eviction_hints_) {
    if (taken.size() >= count) break;
    if (entries_[place].IsSettled(moment_) && IsTakable(place) && may_go(place))
      MarkReleasing(place, &taken);
  }
  for (uint32_t place = idle_.oldest(); place != kNone && taken.size() < count;) {
    const uint32_t next = idle_.NewerThan(place);
    if (may_go(place)) MarkReleasing(place, &taken);
    place = next;
  }
  if (recent == Recent::kSpare) return taken;
  // A fault that needs room must get it even from recently faulted places: the oldest fault first.
  for (uint32_t i = kRecentFaults; i > 0 && taken.size() < count; --i) {
    const uint32_t place = recent_[i - 1];
    if (place == kNone || !entries_[place].IsIdle() || entries_[place].stamp == stamp_) continue;
    MarkReleasing(place, &taken);
  }
  return taken;
}

void LeaseCache::MarkReleasing(uint32_t place, std::vector<PlaceId>* taken) {
  idle_.Remove(place);
  entries_[place].state = State::kReleasing;
  revoked_places_.erase(place);
  --held_;
  ++moving_;
  taken->push_back(PlaceId(place));
}

}  // namespace memtide::client
