// LeaseCache, ahead: leases of chunks that are there before the program asks for them.
#include <algorithm>

#include "client/lease/lease_cache.h"

namespace memtide::client {
namespace {

// Leases that may be taken ahead. With one more, TakeForHeadroom() would take some back, where the
// chunks do not all fit.
uint32_t RoomAhead(uint32_t budget, uint32_t bound, uint32_t held) {
  const uint32_t most = bound > budget ? budget - 1 : budget;
  return most - std::min(most, held);
}

}  // namespace

void LeaseCache::SetAhead(const ChunksAhead& ahead) {
  const auto places = [this](const std::vector<ChunkId>& chunks) {
    std::vector<PlaceId> known;
    for (const ChunkId chunk : chunks) {
      const auto found = places_.find(chunk);
      if (found != places_.end()) known.emplace_back(found->second);
    }
    return known;
  };
  ahead_reads_ = places(ahead.reads);
  ahead_writes_ = places(ahead.writes);
}

bool LeaseCache::IsWantedAhead(PlaceId place, Access access) const {
  const Entry& entry = entries_[place.value()];
  if (entry.state == State::kReading) return access == Access::kWrite && entry.uses == 0;
  return entry.state == State::kAbsent && RoomAhead(limits_.budget(), bound_, held_ + leasing_) > 0;
}

void LeaseCache::EndAhead(const LeasePlan& plan) {
  ++ended_ahead_;
  upgraded_ahead_ -= static_cast<uint32_t>(plan.upgrade.size());
  for (const PlaceId place : plan.upgrade) at(place).is_ahead = false;
}

bool LeaseCache::HasAhead() const {
  for (const PlaceId place : ahead_writes_) {
    if (IsWantedAhead(place, Access::kWrite)) return true;
  }
  for (const PlaceId place : ahead_reads_) {
    if (IsWantedAhead(place, Access::kRead)) return true;
  }
  return false;
}

LeasePlan LeaseCache::PlanAhead() {
  for (const Access access : {Access::kWrite, Access::kRead}) {
    std::vector<PlaceId>& listed = access == Access::kWrite ? ahead_writes_ : ahead_reads_;
    std::vector<PlaceId> wanted;
    uint32_t free = RoomAhead(limits_.budget(), bound_, held_ + leasing_);
    for (const PlaceId place : listed) {
      if (!IsWantedAhead(place, access)) continue;
      if (at(place).state == State::kAbsent && free-- == 0) break;
      wanted.push_back(place);
    }
    listed.clear();
    if (wanted.empty()) continue;
    LeasePlan plan = MakePlan(wanted, access);
    plan.counts_uses = false;
    plan.is_ahead = true;
    ++plans_ahead_;
    upgraded_ahead_ += static_cast<uint32_t>(plan.upgrade.size());
    for (const PlaceId place : plan.upgrade) at(place).is_ahead = true;
    return plan;
  }
  return {};
}

}  // namespace memtide::client
