// DayWindow: how many bytes were written in the last 24 hours, and when, in slots of ten minutes.
//
// A slot counts as long as a part of it is in the last 24 hours: the sum is never too small.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_DAEMON_ENGINE_WRITES_DAY_WINDOW_H_
#define MEMTIDE_DAEMON_ENGINE_WRITES_DAY_WINDOW_H_

#include <cstdint>
#include <map>

#include "base/bytes.h"
#include "base/clock.h"

namespace memtide {

class DayWindow {
 public:
  static constexpr Duration kSlot = std::chrono::minutes(10);

  void Add(Instant at, Bytes bytes);
  // The bytes that were added then were not written.
  void Remove(Instant at, Bytes bytes);
  Bytes Sum(Instant now);
  // By the beginning of the slot; those that count at the last Sum().
  std::map<Instant, Bytes> Slots() const;

 private:
  std::map<int64_t, Bytes> slots_;  // By their number since the clock's zero.
  Bytes sum_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_WRITES_DAY_WINDOW_H_
