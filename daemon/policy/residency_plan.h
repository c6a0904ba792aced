// ResidencyPlan: which tiers keep each chunk between two of its uses, planned for a whole iteration
// that repeats, so that few chunks move.
//
// Between two events a member stays in the upper tier, waits in the middle tier, or in neither. A
// copy that stays takes a slot. A copy that leaves costs moves: one each way over each boundary,
// and none to drop a copy that the tier below has too. Belady's rule decides one victim at one
// boundary at a time; a plan sees that leaving the device is free only if host memory kept the
// copy.
//
// Each member takes its cheapest way through the iteration (states: whether the middle and the
// lowest tier hold its content). A slot has a price at each point of time, which rises with the
// number of members that want it now (`pressure_`) and with how often they did (`history`). Members
// choose again in turn while prices rise, until no slot is wanted twice. This is negotiated
// congestion from circuit routing (McMurchie and Ebeling, PathFinder, FPGA 1995). On the shipped
// traces, and before transfers had a price, one iteration cost 1.02 to 1.16 of what a linear
// program finds for the same slots (decision 15).
//
// A plan that knows how long computing and transfers take has two prices more. A transfer over
// the link to the upper tier is dear where it would find the link taken (planned_link.h), and a
// member on its way takes a slot of the upper tier: the slower the link, the longer.
//
// An iteration is a circle: its end is followed by its beginning. Time is in events, and coarser if
// there are more than kMostPoints. Memory: 46 bytes per event, 4 per member, 104 per point.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_POLICY_RESIDENCY_PLAN_H_
#define MEMTIDE_DAEMON_POLICY_RESIDENCY_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "base/ids.h"
#include "daemon/policy/planned_link.h"
#include "daemon/pool/slot_pool.h"

namespace memtide {

class ResidencyPlan {
 public:
  struct Event {
    enum class Kind : uint8_t { kRead, kWrite, kFree };

    Member member;
    Kind kind = Kind::kRead;
    uint32_t micros = 0;  // Until the next event, without stalls.
  };
  // How long a transfer to the upper tier, or from it, takes in microseconds; 0: unknown.
  struct Transfers {
    uint64_t in_micros = 0, out_micros = 0;
  };
  struct Slots {
    uint32_t upper = 0;
    absl::optional<uint32_t> middle;  // nullopt: it is the lowest tier and holds all members.
    // The slots of the upper tier, where a SlotPlan gives them to members, because to change the
    // slot of a member costs.
    std::vector<SlotNumber> fixed;

    friend bool operator==(const Slots& a, const Slots& b) {
      return a.upper == b.upper && a.middle == b.middle && a.fixed == b.fixed;
    }
  };
  // The tiers that keep the member's copy from one of its events to the next.
  struct Stay {
    bool upper = false, middle = false;
    // How many events before the next one the upper tier has a slot for a member that comes back.
    uint32_t ahead = 0;
  };

  // Every use is in the upper tier. Where not all members fit, the plan leaves some of `slots` free
  // for transfers in flight.
  ResidencyPlan(const std::vector<Event>& events, const Slots& slots, const Transfers& transfers);

  // Continues for about `choices` units of work; one unit is the choice of a member with few
  // events. REQUIRES: !done().
  void Work(uint32_t choices);
  bool done() const { return done_; }
  const Slots& slots() const { return slots_; }

  // The stay after the member's event `nth` of the iteration, from 0; nullopt if the member has no
  // such event, or has too many events to be planned.
  absl::optional<Stay> After(Member member, uint32_t nth) const;

 private:
  static constexpr uint32_t kMostPoints = 512;

  struct Tier {
    int32_t slots = 0;
    std::vector<int32_t> used;      // By point of time.
    std::vector<double> history;    // The part of the price that never falls.
    std::vector<double> sums = {};  // Prefix sums of prices, by point.
  };
  using Span = PointSpan;
  // The points at which a stay from one event to the next takes a slot of each tier.
  struct Gap {
    Span upper, middle;
  };
  // The cheapest way to a state: its cost in moves, the state before and the stay that leads here.
  struct Way {
    double cost = 0;
    uint8_t from = 0;
    Stay stay;
  };
  static constexpr int kStates = 4;
  // The transfers of a member that leaves the upper tier for a gap. It takes slots there, too.
  struct Trip {
    bool leaves = false, returns = false;  // By the link; a clean copy leaves without a transfer.
    Span out, in;                          // `in` may end before the gap does.
    double price = 0;
  };

  size_t count(uint32_t member) const { return first_[member + 1] - first_[member]; }
  bool is_planned(uint32_t member) const;
  uint32_t members() const { return static_cast<uint32_t>(first_.size() - 1); }
  uint32_t PointOf(uint64_t time) const;
  Gap GapAfter(uint32_t member, size_t nth) const;
  void SumPrices(Tier* tier) const;
  double Price(const Tier& tier, Span span) const;
  Trip TripIn(const Gap& gap, bool only, bool returns) const;
  void Take(Tier* tier, Span span, int by) const;
  void Occupy(uint32_t member, int by);
  void Settle(uint32_t member, size_t nth, int state, Stay stay);
  void Choose(uint32_t member);
  void ExtendWays(uint32_t member, size_t nth, size_t step);
  bool EndRound();

  Slots slots_;
  uint32_t length_;  // Events.
  uint32_t points_;
  std::vector<uint32_t> first_;  // By member: index of its first event in the vectors below.
  std::vector<uint32_t> times_;
  std::vector<Event::Kind> kinds_;
  std::vector<Stay> stays_;
  std::vector<Trip> trips_;  // After the events after which the member leaves the upper tier.
  Tier upper_, middle_;
  PlannedLink in_, out_;  // To the upper tier, and from it.
  double pressure_;
  int rounds_ = 0, refined_ = 0;
  uint32_t turn_ = 0;   // The member that chooses next.
  int64_t credit_ = 0;  // Units of work left; see Work.
  bool done_ = false;
  std::vector<Way> ways_;  // By step and state.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_RESIDENCY_PLAN_H_
