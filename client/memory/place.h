// PlaceId, PlaceRange, InitialContent: value types that every package of the client library shares.
//
// A place is an index into the client's address range, one chunk wide. The daemon knows chunks, the
// training script knows places (addresses); LeaseCache alone maps one to the other.
#ifndef MEMTIDE_CLIENT_MEMORY_PLACE_H_
#define MEMTIDE_CLIENT_MEMORY_PLACE_H_

#include <cstdint>

#include "base/ids.h"
#include "base/kinds.h"

namespace memtide::client {

using PlaceId = Id<struct PlaceTag, uint32_t>;

// `count` consecutive places.
struct PlaceRange {
  PlaceId first;
  uint32_t count = 0;
};

// What a chunk reads as before its first write. kUndefined chunks hold arbitrary bytes of the same
// job, and save the daemon the time to zero them.
enum class InitialContent : uint8_t { kZeros, kUndefined };

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_PLACE_H_
