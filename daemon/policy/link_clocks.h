// LinkClocks: the links between neighbouring tiers as the transfers of one job see them: how many
// are on the way, and how long one occupies its link.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_POLICY_LINK_CLOCKS_H_
#define MEMTIDE_DAEMON_POLICY_LINK_CLOCKS_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "base/clock.h"
#include "daemon/pool/tier.h"

namespace memtide {

// One direction between two neighbouring tiers.
struct Link {
  Tier from = Tier::kHost, to = Tier::kDevice;
};
inline constexpr Link kLinks[] = {{Tier::kHost, Tier::kDevice},
                                  {Tier::kDevice, Tier::kHost},
                                  {Tier::kSsd, Tier::kHost},
                                  {Tier::kHost, Tier::kSsd}};

class LinkClocks {
 public:
  // A transfer starts, or ends as a success or a failure.
  void Start(Link link) { ++Get(link).in_flight; }
  // REQUIRES: in_flight(link) > 0.
  void End(Link link) {
    MEMTIDE_CHECK(in_flight(link) > 0);
    --Get(link).in_flight;
  }
  // A transfer that started at `start` has succeeded at `end`. The time in which it waited behind
  // the one before it does not count.
  void Measure(Link link, Instant start, Instant end) {
    Clock& clock = Get(link);
    const auto micros = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(end - std::max(start, clock.free_at))
            .count());
    clock.free_at = end;
    clock.micros = clock.micros == 0 ? micros : (7 * clock.micros + micros) / 8;
  }

  uint32_t in_flight(Link link) const { return clocks_[Index(link)].in_flight; }
  // How long a transfer occupies the link, in microseconds (a moving average); 0: unknown.
  uint64_t micros(Link link) const { return clocks_[Index(link)].micros; }

 private:
  struct Clock {
    uint32_t in_flight = 0;
    uint64_t micros = 0;
    Instant free_at;  // The end of the last transfer.
  };
  static constexpr size_t Index(Link link) {
    return 2 * static_cast<size_t>(std::min(link.from, link.to)) + (link.from < link.to ? 1 : 0);
  }
  Clock& Get(Link link) { return clocks_[Index(link)]; }

  std::array<Clock, 4> clocks_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_LINK_CLOCKS_H_
