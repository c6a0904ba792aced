#include "proto/digest_bytes.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace memtide {

std::string ToProto(const Digest& digest) {
  if (!digest.is_set()) return "";
  const std::array<uint8_t, kDigestBytes> bytes = digest.ToBytes();
  return std::string(bytes.begin(), bytes.end());
}

Digest FromProto(absl::string_view bytes) {
  if (bytes.empty()) return {};
  MEMTIDE_CHECK(bytes.size() == kDigestBytes);
  std::array<uint8_t, kDigestBytes> array;
  std::copy(bytes.begin(), bytes.end(), array.begin());
  return Digest::FromBytes(array);
}

}  // namespace memtide
