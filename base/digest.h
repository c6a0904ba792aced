// Digest: 128 bits that stand for bytes which somebody has hashed (content_hash.h).
//
// A value type. All zero: no digest.
#ifndef MEMTIDE_BASE_DIGEST_H_
#define MEMTIDE_BASE_DIGEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <ostream>
#include <tuple>

namespace memtide {

inline constexpr size_t kDigestBytes = 16;

struct Digest {
  uint64_t high = 0, low = 0;

  bool is_set() const { return high != 0 || low != 0; }

  // `high` first, each half with its highest byte first: xxHash's canonical form.
  std::array<uint8_t, kDigestBytes> ToBytes() const {
    std::array<uint8_t, kDigestBytes> bytes;
    for (size_t i = 0; i < kDigestBytes; ++i) {
      bytes[i] = static_cast<uint8_t>((i < 8 ? high : low) >> (56 - 8 * (i % 8)));
    }
    return bytes;
  }
  static Digest FromBytes(const std::array<uint8_t, kDigestBytes>& bytes) {
    Digest digest;
    for (size_t i = 0; i < kDigestBytes; ++i) {
      uint64_t& half = i < 8 ? digest.high : digest.low;
      half = half << 8 | bytes[i];
    }
    return digest;
  }

  friend bool operator==(const Digest& a, const Digest& b) {
    return a.high == b.high && a.low == b.low;
  }
  friend bool operator!=(const Digest& a, const Digest& b) { return !(a == b); }
  // The order of their bytes.
  friend bool operator<(const Digest& a, const Digest& b) {
    return std::tie(a.high, a.low) < std::tie(b.high, b.low);
  }
  // 32 hexadecimal digits.
  friend std::ostream& operator<<(std::ostream& out, const Digest& digest) {
    const std::ios::fmtflags flags = out.flags();
    const char fill = out.fill('0');
    out << std::hex << std::setw(16) << digest.high << std::setw(16) << digest.low;
    out.flags(flags);
    out.fill(fill);
    return out;
  }
};

}  // namespace memtide

#endif  // MEMTIDE_BASE_DIGEST_H_
