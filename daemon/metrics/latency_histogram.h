// LatencyHistogram: counts durations by size, for Prometheus. Five classes for each power of ten,
// so that a quantile is known to a factor of 1.6. Thread-safe; counts only grow.
#ifndef MEMTIDE_DAEMON_METRICS_LATENCY_HISTOGRAM_H_
#define MEMTIDE_DAEMON_METRICS_LATENCY_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace memtide {

class LatencyHistogram {
 public:
  // The largest duration of each class. There is one more class, for longer durations.
  static constexpr std::array<Duration, 31> kBounds = [] {
    std::array<Duration, 31> bounds{};
    const std::array<int64_t, 5> steps = {1000, 1600, 2500, 4000, 6300};
    int64_t power = 1;
    for (size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] = Duration(steps[i % steps.size()] * power);
      if (i % steps.size() == steps.size() - 1) power *= 10;
    }
    return bounds;
  }();

  void Add(Duration duration) {
    const auto* const bound = std::lower_bound(kBounds.begin(), kBounds.end(), duration);
    counts_[bound - kBounds.begin()].fetch_add(1, std::memory_order_relaxed);
    nanoseconds_.fetch_add(static_cast<uint64_t>(duration.count()), std::memory_order_relaxed);
  }

  // The durations of class `i`, which are in no other class.
  uint64_t Count(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  // All durations together.
  Duration Sum() const { return Duration(nanoseconds_.load(std::memory_order_relaxed)); }

 private:
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<uint64_t> nanoseconds_{0};
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_METRICS_LATENCY_HISTOGRAM_H_
