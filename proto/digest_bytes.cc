#include "proto/digest_bytes.h"

#include "base/check.h"

namespace memtide {
namespace {

constexpr size_t kHalf = kDigestBytes / 2;

void AppendHalf(uint64_t half, std::string* bytes) {
  for (size_t i = 0; i < kHalf; ++i) {
    bytes->push_back(static_cast<char>(half >> (8 * (kHalf - 1 - i))));
  }
}

uint64_t ReadHalf(absl::string_view bytes) {
  uint64_t half = 0;
  for (size_t i = 0; i < kHalf; ++i) half = half << 8 | static_cast<unsigned char>(bytes[i]);
  return half;
}

}  // namespace

std::string ToProto(const Digest& digest) {
  std::string bytes;
  if (!digest.is_set()) return bytes;
  AppendHalf(digest.high, &bytes);
  AppendHalf(digest.low, &bytes);
  return bytes;
}

Digest FromProto(absl::string_view bytes) {
  if (bytes.empty()) return {};
  MEMTIDE_CHECK(bytes.size() == kDigestBytes);
  return {ReadHalf(bytes), ReadHalf(bytes.substr(kHalf))};
}

}  // namespace memtide
