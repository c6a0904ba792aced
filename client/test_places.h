// Places by their numbers, as tests write them.
#ifndef MEMTIDE_CLIENT_TEST_PLACES_H_
#define MEMTIDE_CLIENT_TEST_PLACES_H_

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "client/types.h"

namespace memtide::client {

inline std::vector<PlaceId> Places(std::initializer_list<uint32_t> numbers) {
  std::vector<PlaceId> places;
  for (const uint32_t number : numbers) places.push_back(PlaceId(number));
  return places;
}

// The n-th of a range.
inline PlaceId Nth(PlaceRange range, uint32_t n) { return PlaceId(range.first.value() + n); }

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_TEST_PLACES_H_
