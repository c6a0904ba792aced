// Tier: the three kinds of memory, fastest first. The order of the enumerators is the order in
// which chunks leave (device, then host, then ssd). Pool: what a node has of one kind, or one of
// its devices.
#ifndef MEMTIDE_DAEMON_POOL_TIER_H_
#define MEMTIDE_DAEMON_POOL_TIER_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace memtide {

enum class Tier : uint8_t { kDevice = 0, kHost = 1, kSsd = 2 };
inline constexpr int kTiers = 3;
inline constexpr Tier kAllTiers[kTiers] = {Tier::kDevice, Tier::kHost, Tier::kSsd};
inline constexpr Tier kMemoryTiers[] = {Tier::kDevice, Tier::kHost};  // Clients can map them.

// "device", "host", "ssd": as in metrics, messages and the command line.
constexpr absl::string_view TierName(Tier tier) {
  return tier == Tier::kDevice ? "device" : tier == Tier::kHost ? "host" : "ssd";
}

// Any number of tiers, in one byte.
class TierSet {
 public:
  constexpr TierSet() = default;
  constexpr explicit TierSet(Tier tier) : bits_(BitOf(tier)) {}

  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool has(Tier tier) const { return (bits_ & BitOf(tier)) != 0; }
  // It has this tier, and no other.
  constexpr bool is_only(Tier tier) const { return bits_ == BitOf(tier); }
  constexpr void Add(Tier tier) { bits_ = static_cast<uint8_t>(bits_ | BitOf(tier)); }
  constexpr void Remove(Tier tier) { bits_ = static_cast<uint8_t>(bits_ & ~BitOf(tier)); }
  constexpr void Clear() { bits_ = 0; }

 private:
  static constexpr uint8_t BitOf(Tier tier) {
    return static_cast<uint8_t>(1u << static_cast<int>(tier));
  }

  uint8_t bits_ = 0;
};

// Devices are numbered from 0. Host and SSD memory have one pool each, with the number 0.
struct Pool {
  Tier tier = Tier::kHost;
  uint32_t device = 0;
};
inline bool operator==(const Pool& a, const Pool& b) {
  return a.tier == b.tier && a.device == b.device;
}
inline bool operator!=(const Pool& a, const Pool& b) { return !(a == b); }

// "device/0", "device/1", "host", "ssd".
inline std::string PoolName(const Pool& pool) {
  const std::string name(TierName(pool.tier));
  return pool.tier == Tier::kDevice ? absl::StrCat(name, "/", pool.device) : name;
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POOL_TIER_H_
