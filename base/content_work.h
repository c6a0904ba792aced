// ContentWork: work on whole contents of chunks, as data: which are hashed, which are compared with
// another, and which are copied.
//
// The engine makes a ContentWork, and a step thread of the Mover runs it. Chunks are indices of a
// list that travels with the work. Targets of copies are only written, and all others only read.
//
// Plain values; Run() is pure but for the chunks, and runs in the calling thread.
#ifndef MEMTIDE_BASE_CONTENT_WORK_H_
#define MEMTIDE_BASE_CONTENT_WORK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/content_hash.h"
#include "base/digest.h"

namespace memtide {

struct ContentWork {
  struct Pair {
    uint32_t first = 0, second = 0;  // Indices in the list.
  };
  std::vector<uint32_t> hashes;
  std::vector<Pair> comparisons;
  std::vector<Pair> copies;  // From the first to the second.
};

struct ContentResult {
  std::vector<Digest> digests;  // In the order of `hashes`.
  std::vector<bool> are_equal;  // In the order of `comparisons`: whether all bytes are equal.
};

// `chunks` are the addresses of the list's chunks, of `size` bytes each. REQUIRES: all indices are
// in the list.
ContentResult Run(const ContentWork& work, absl::Span<char* const> chunks, Bytes size,
                  const HashSecret& secret);

// The part of a ContentWork that has been done.
struct ContentProgress {
  ContentResult result;
  size_t copies = 0;
};
// Does the next of what is left: one chunk is hashed, compared or copied. True: the work is done.
// REQUIRES: as Run().
bool RunNext(const ContentWork& work, absl::Span<char* const> chunks, Bytes size,
             const HashSecret& secret, ContentProgress* progress);

}  // namespace memtide

#endif  // MEMTIDE_BASE_CONTENT_WORK_H_
