// ContentSums: 64-bit sums of the bytes of a content, one for each MiB, by which wrong bytes show.
//
// The sums are XXH3-64 without a secret: they find what a drive or a memory does to bytes, not what
// somebody does who wants equal sums. Changed bytes have the old sum with a probability of 2^-64.
// The algorithm is frozen (base/content_hash.h), so that sums outlive the process and its version.
//
// Thread safety: pure functions.
#ifndef MEMTIDE_BASE_CONTENT_SUMS_H_
#define MEMTIDE_BASE_CONTENT_SUMS_H_

#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/bytes.h"

namespace memtide {

inline constexpr Bytes kSummedPiece = MiB(1);

// By piece of kSummedPiece; the last piece may be shorter. Empty: no sums are known.
using ContentSums = std::vector<uint64_t>;

// How many sums a content of that size has.
inline size_t SumsOfSize(Bytes size) {
  return (size.count() + kSummedPiece.count() - 1) / kSummedPiece.count();
}

uint64_t SumOf(absl::Span<const char> bytes);
ContentSums SumsOf(absl::Span<const char> content);
// The first piece whose sum is not the expected one. REQUIRES: `expected` has the sums of a content
// of this size.
absl::optional<size_t> FirstWrongPiece(absl::Span<const char> content, const ContentSums& expected);

}  // namespace memtide

#endif  // MEMTIDE_BASE_CONTENT_SUMS_H_
