// Shorthands by which tests write places.
#ifndef MEMTIDE_CLIENT_TESTING_PLACES_H_
#define MEMTIDE_CLIENT_TESTING_PLACES_H_

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "client/memory/place.h"

namespace memtide::client {

inline std::vector<PlaceId> Places(std::initializer_list<uint32_t> numbers) {
  std::vector<PlaceId> places;
  for (const uint32_t number : numbers) places.push_back(PlaceId(number));
  return places;
}

// The n-th place of a range, from 0.
inline PlaceId Nth(PlaceRange range, uint32_t n) { return PlaceId(range.first.value() + n); }

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_TESTING_PLACES_H_
