// LeaseCache, ahead: leases of chunks that are there before the program asks for them.
#include "client/lease/lease_cache.h"

namespace memtide::client {

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
  return entry.state == State::kAbsent && held_ + leasing_ < limits_.budget();
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
    uint32_t free = limits_.budget() - std::min(limits_.budget(), held_ + leasing_);
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
    return plan;
  }
  return {};
}

}  // namespace memtide::client
