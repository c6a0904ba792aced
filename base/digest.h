// Digest: 128 bits that stand for bytes which somebody has hashed.
//
// A value type. All zero: no digest.
#ifndef MEMTIDE_BASE_DIGEST_H_
#define MEMTIDE_BASE_DIGEST_H_

#include <cstdint>
#include <tuple>

namespace memtide {

struct Digest {
  uint64_t high = 0, low = 0;

  bool is_set() const { return high != 0 || low != 0; }
  friend bool operator==(const Digest& a, const Digest& b) {
    return a.high == b.high && a.low == b.low;
  }
  friend bool operator!=(const Digest& a, const Digest& b) { return !(a == b); }
  friend bool operator<(const Digest& a, const Digest& b) {
    return std::tie(a.high, a.low) < std::tie(b.high, b.low);
  }
};

}  // namespace memtide

#endif  // MEMTIDE_BASE_DIGEST_H_
