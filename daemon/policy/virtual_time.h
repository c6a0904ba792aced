// VirtualTime: a moment in the predicted sequence of a job's uses.
//
// It advances by one with each event (a use or a free) of the iteration that is followed, however
// long that takes. So it can be compared across the members of a job. The difference of two times
// is a number of events. Value type; value() is the only way to the integer.
#ifndef MEMTIDE_DAEMON_POLICY_VIRTUAL_TIME_H_
#define MEMTIDE_DAEMON_POLICY_VIRTUAL_TIME_H_

#include <cstdint>
#include <ostream>

namespace memtide {

class VirtualTime {
 public:
  constexpr VirtualTime() = default;
  constexpr explicit VirtualTime(uint64_t value) : value_(value) {}
  constexpr uint64_t value() const { return value_; }

  VirtualTime& operator++() {
    ++value_;
    return *this;
  }
  VirtualTime& operator+=(uint64_t events) { return *this = *this + events; }
  friend constexpr VirtualTime operator+(VirtualTime time, uint64_t events) {
    return VirtualTime(time.value_ + events);
  }
  // The number of events from `b` to `a`. REQUIRES: a >= b.
  friend constexpr uint64_t operator-(VirtualTime a, VirtualTime b) { return a.value_ - b.value_; }

  friend constexpr bool operator==(VirtualTime a, VirtualTime b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(VirtualTime a, VirtualTime b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(VirtualTime a, VirtualTime b) { return a.value_ < b.value_; }
  friend constexpr bool operator<=(VirtualTime a, VirtualTime b) { return a.value_ <= b.value_; }
  friend constexpr bool operator>(VirtualTime a, VirtualTime b) { return a.value_ > b.value_; }
  friend constexpr bool operator>=(VirtualTime a, VirtualTime b) { return a.value_ >= b.value_; }
  friend std::ostream& operator<<(std::ostream& out, VirtualTime time) {
    return out << time.value_;
  }

 private:
  uint64_t value_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_VIRTUAL_TIME_H_
