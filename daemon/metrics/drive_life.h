// LifeYears: how long the endurance of a drive lasts if each day is as the last one.
#ifndef MEMTIDE_DAEMON_METRICS_DRIVE_LIFE_H_
#define MEMTIDE_DAEMON_METRICS_DRIVE_LIFE_H_

#include <algorithm>

#include "absl/types/optional.h"
#include "base/bytes.h"

namespace memtide {

// `written`: in the drive's life so far. nullopt: the endurance is not known (zero), or nothing was
// written in the last day.
inline absl::optional<double> LifeYears(Bytes endurance, Bytes written, Bytes last_day) {
  constexpr double kDaysPerYear = 365.25;
  if (endurance.IsZero() || last_day.IsZero()) return absl::nullopt;
  const Bytes left = endurance - std::min(endurance, written);
  return static_cast<double>(left.count()) / static_cast<double>(last_day.count()) / kDaysPerYear;
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_METRICS_DRIVE_LIFE_H_
