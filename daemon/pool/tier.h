// Tier: the three kinds of memory, fastest first. The order of the enumerators is the order in
// which chunks leave (device, then host, then ssd).
#ifndef MEMTIDE_DAEMON_POOL_TIER_H_
#define MEMTIDE_DAEMON_POOL_TIER_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace memtide {

enum class Tier : uint8_t { kDevice = 0, kHost = 1, kSsd = 2 };
inline constexpr int kTiers = 3;
inline constexpr Tier kAllTiers[kTiers] = {Tier::kDevice, Tier::kHost, Tier::kSsd};

// "device", "host", "ssd": as in metrics, messages and the command line.
constexpr absl::string_view TierName(Tier tier) {
  return tier == Tier::kDevice ? "device" : tier == Tier::kHost ? "host" : "ssd";
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POOL_TIER_H_
