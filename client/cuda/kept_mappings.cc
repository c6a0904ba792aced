#include "client/cuda/kept_mappings.h"

namespace memtide::client {

bool KeptMappings::Release(PlaceId place) {
  entries_[place.value()].held = false;
  return keeps_ && quiet_ >= kQuietIterations && (place.value() + iterations_) % kSample != 0;
}

std::vector<PlaceId> KeptMappings::Kept(const Region* region) const {
  std::vector<PlaceId> places;
  for (uint32_t place = 0; place < entries_.size(); ++place) {
    const Entry& entry = entries_[place];
    if (entry.held || entry.region == nullptr) continue;
    if (region == nullptr || entry.region == region) places.push_back(PlaceId(place));
  }
  return places;
}

void KeptMappings::EndIteration() {
  if (!keeps_ || quiet_ < kQuietIterations) ++protected_;
  ++iterations_;
  ++quiet_;
}

}  // namespace memtide::client
