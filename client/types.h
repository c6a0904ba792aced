// Words that every part of the client library shares.
//
// Value types. A place is a position of the client's address range, one chunk wide; the daemon
// knows chunks, the training script knows places (addresses), and only the lease cache knows both.
#ifndef MEMTIDE_CLIENT_TYPES_H_
#define MEMTIDE_CLIENT_TYPES_H_

#include <cstdint>

#include "base/ids.h"
#include "base/kinds.h"

namespace memtide::client {

using PlaceId = Id<struct PlaceTag, uint32_t>;

// Consecutive places.
struct PlaceRange {
  PlaceId first;
  uint32_t count = 0;
};

// What a chunk reads as until it is first written; undefined: anything that the job has held, and
// no time is spent on it.
enum class Unwritten : uint8_t { kZeros, kUndefined };

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_TYPES_H_
