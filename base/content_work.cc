#include "base/content_work.h"

#include <cstring>
#include <utility>

namespace memtide {

bool RunNext(const ContentWork& work, absl::Span<char* const> chunks, Bytes size,
             const HashSecret& secret, ContentProgress* progress) {
  ContentResult& result = progress->result;
  if (result.digests.size() < work.hashes.size()) {
    ContentHash hash(&secret);
    hash.Update({chunks[work.hashes[result.digests.size()]], size.count()});
    result.digests.push_back(hash.Value());
  } else if (result.are_equal.size() < work.comparisons.size()) {
    const ContentWork::Pair& pair = work.comparisons[result.are_equal.size()];
    const int order = std::memcmp(chunks[pair.first], chunks[pair.second], size.count());
    result.are_equal.push_back(order == 0);
  } else if (progress->copies < work.copies.size()) {
    const ContentWork::Pair& pair = work.copies[progress->copies++];
    std::memcpy(chunks[pair.second], chunks[pair.first], size.count());
  }
  return result.digests.size() == work.hashes.size() &&
         result.are_equal.size() == work.comparisons.size() &&
         progress->copies == work.copies.size();
}

ContentResult Run(const ContentWork& work, absl::Span<char* const> chunks, Bytes size,
                  const HashSecret& secret) {
  ContentProgress progress;
  while (!RunNext(work, chunks, size, secret, &progress)) {
  }
  return std::move(progress.result);
}

}  // namespace memtide
