#include "base/content_sums.h"

// Its macros replace functions of xxhash.h by those that choose their vectors at run time.
#include <xxh_x86dispatch.h>

#include "base/check.h"

namespace memtide {
namespace {

absl::Span<const char> PieceOf(absl::Span<const char> content, size_t piece) {
  return content.subspan(piece * kSummedPiece.count(), kSummedPiece.count());
}

}  // namespace

uint64_t SumOf(absl::Span<const char> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

ContentSums SumsOf(absl::Span<const char> content) {
  ContentSums sums(SumsOfSize(Bytes(content.size())));
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = SumOf(PieceOf(content, i));
  return sums;
}

absl::optional<size_t> FirstWrongPiece(absl::Span<const char> content,
                                       const ContentSums& expected) {
  MEMTIDE_CHECK(expected.size() == SumsOfSize(Bytes(content.size()))) << expected.size();
  for (size_t i = 0; i < expected.size(); ++i) {
    if (SumOf(PieceOf(content, i)) != expected[i]) return i;
  }
  return absl::nullopt;
}

}  // namespace memtide
