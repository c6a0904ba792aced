// Value types that every package of the client library shares.
//
// A place is an index into the client's address range, one chunk wide. The daemon knows chunks, the
// training script knows places (addresses); LeaseCache alone maps one to the other.
#ifndef MEMTIDE_CLIENT_MEMORY_PLACE_H_
#define MEMTIDE_CLIENT_MEMORY_PLACE_H_

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/kinds.h"

namespace memtide::client {

using PlaceId = Id<struct PlaceTag, uint32_t>;

// `count` consecutive places.
struct PlaceRange {
  PlaceId first;
  uint32_t count = 0;

  std::vector<PlaceId> places() const {
    std::vector<PlaceId> places;
    for (uint32_t i = 0; i < count; ++i) places.emplace_back(first.value() + i);
    return places;
  }
};

// The content of a chunk before its first write. kUndefined chunks hold arbitrary bytes of the same
// job, and save the daemon the time to zero them.
enum class InitialContent : uint8_t { kZeros, kUndefined };

// The lowest tier that a chunk ever reaches: the node's, or host memory also above an SSD tier.
enum class HomeTier : uint8_t { kLowest, kHost };

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_PLACE_H_
