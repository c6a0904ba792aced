#include "base/content_work.h"

#include <cstring>

namespace memtide {

ContentResult Run(const ContentWork& work, absl::Span<char* const> chunks, Bytes size,
                  const HashSecret& secret) {
  ContentResult result;
  for (const uint32_t chunk : work.hashes) {
    ContentHash hash(&secret);
    hash.Update({chunks[chunk], size.count()});
    result.digests.push_back(hash.Value());
  }
  for (const ContentWork::Pair& pair : work.comparisons) {
    result.are_equal.push_back(std::memcmp(chunks[pair.first], chunks[pair.second], size.count()) ==
                               0);
  }
  for (const ContentWork::Pair& pair : work.copies) {
    std::memcpy(chunks[pair.second], chunks[pair.first], size.count());
  }
  return result;
}

}  // namespace memtide
