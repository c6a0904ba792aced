// Plan: where each chunk waits between two uses, so that an iteration that repeats moves little.
//
// Between two uses of a member it stays on the upper tier, or waits in the middle one, or in
// neither; copies that stay take slots, others cost moves: one each way over each boundary, and
// none to drop what the tier below has, too. Belady's rule decides one victim at a time and one
// boundary at a time; a plan sees that a chunk leaves the device for nothing only where its copy in
// host memory was kept.
//
// Each member takes its cheapest way through the iteration (states: whether the middle and the
// lowest tier have its content), where a slot has a price at each moment: higher the more members
// want it now (`pressure_`), and the more often they did (`history`). Members choose again in turn,
// prices rise, until no slot is wanted twice. This is negotiated congestion, from the routing of
// circuits (McMurchie and Ebeling, PathFinder, FPGA 1995). Of the shipped traces, one iteration
// costs 1.02 to 1.16 of what a linear program finds for the same slots.
//
// An iteration is a circle: its end is followed by its beginning. Time is in events, and coarser
// where there are more than kMostPoints. Pure, deterministic, thread-compatible. Memory: 7 bytes an
// event, 4 a member, 40 a point of time.
#ifndef MEMTIDE_DAEMON_POLICY_PLAN_H_
#define MEMTIDE_DAEMON_POLICY_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/types/optional.h"

namespace memtide {

class Plan {
 public:
  struct Event {
    enum class Kind : uint8_t { kRead, kWrite, kFree };

    uint32_t member = 0;
    Kind kind = Kind::kRead;
  };
  struct Slots {
    uint32_t upper = 0;
    absl::optional<uint32_t> middle;  // nullopt: it is the lowest tier, and has room for all.

    friend bool operator==(const Slots& a, const Slots& b) {
      return a.upper == b.upper && a.middle == b.middle;
    }
  };
  // After an event, until the member's next one.
  struct Stay {
    bool upper = false, middle = false;
  };

  // All uses are of the upper tier. Of `slots`, the plan leaves some for what is on its way.
  Plan(const std::vector<Event>& events, const Slots& slots);

  // Goes on for as long as so many choices take, of members of few events. REQUIRES: !done().
  void Work(uint32_t choices);
  bool done() const { return done_; }
  const Slots& slots() const { return slots_; }

  // After the member's event number `nth` of the iteration, from zero; nullopt: it has none, or so
  // many that it is not planned.
  absl::optional<Stay> After(uint32_t member, uint32_t nth) const;

 private:
  static constexpr uint32_t kMostPoints = 512;

  struct Tier {
    int32_t slots = 0;
    std::vector<int32_t> used;      // By point.
    std::vector<double> history;    // Part of the price that stays.
    std::vector<double> sums = {};  // Of prices, up to a point.
  };
  struct Span {
    uint32_t begin = 0, end = 0;  // Points; the end may be a round later.
  };
  // When a slot is taken by staying from an event of a member to the next.
  struct Gap {
    Span upper, middle;
  };
  // The cheapest way to a state.
  struct Way {
    double cost = 0;
    uint8_t from = 0;
    Stay stay;
  };
  static constexpr int kStates = 4;

  size_t count(uint32_t member) const { return first_[member + 1] - first_[member]; }
  bool is_planned(uint32_t member) const;
  uint32_t members() const { return static_cast<uint32_t>(first_.size() - 1); }
  uint32_t PointOf(uint64_t time) const;
  Gap GapAfter(uint32_t member, size_t nth) const;
  void SumPrices(Tier* tier) const;
  double Price(const Tier& tier, Span span) const;
  void Take(Tier* tier, Span span, int by) const;
  void Occupy(uint32_t member, int by);
  void Choose(uint32_t member);
  void ExtendWays(uint32_t member, size_t nth, size_t step);
  bool EndRound();

  Slots slots_;
  uint32_t length_;  // Events.
  uint32_t points_;
  std::vector<uint32_t> first_;  // By member: index of its first event in those below.
  std::vector<uint32_t> times_;
  std::vector<Event::Kind> kinds_;
  std::vector<Stay> stays_;
  Tier upper_, middle_;
  double pressure_;
  int rounds_ = 0;
  uint32_t turn_ = 0;   // Whose it is to choose.
  int64_t credit_ = 0;  // Choices.
  bool done_ = false;
  std::vector<Way> ways_;  // By step and state.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_PLAN_H_
