#include "daemon/engine/writes/day_window.h"

#include <algorithm>

#include "daemon/engine/writes/token_bucket.h"

namespace memtide {

namespace {

// The slot of a time, which may be before the clock's zero.
int64_t SlotOf(Instant at) {
  const int64_t time = at.time_since_epoch().count();
  const int64_t slot = DayWindow::kSlot.count();
  return time >= 0 ? time / slot : -((-time + slot - 1) / slot);
}

}  // namespace

void DayWindow::Add(Instant at, Bytes bytes) {
  slots_[SlotOf(at)] += bytes;
  sum_ += bytes;
}

void DayWindow::Remove(Instant at, Bytes bytes) {
  const auto slot = slots_.find(SlotOf(at));
  if (slot == slots_.end()) return;  // It counts no more.
  const Bytes removed = std::min(slot->second, bytes);
  slot->second -= removed;
  sum_ -= removed;
}

Bytes DayWindow::Sum(Instant now) {
  const int64_t first = SlotOf(now - kDay);
  while (!slots_.empty() && slots_.begin()->first < first) {
    sum_ -= slots_.begin()->second;
    slots_.erase(slots_.begin());
  }
  return sum_;
}

std::map<Instant, Bytes> DayWindow::Slots() const {
  std::map<Instant, Bytes> slots;
  for (const auto& [number, bytes] : slots_) slots.emplace(Instant(kSlot * number), bytes);
  return slots;
}

}  // namespace memtide
