#include "daemon/policy/residency_plan.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"

namespace memtide {

namespace {

using Kind = ResidencyPlan::Event::Kind;

constexpr double kFar = std::numeric_limits<double>::infinity();
// Slots that leases hold whatever the plan says: the chunk in use and the one before it.
constexpr uint32_t kLeased = 2;
// Slots left to transfers in flight: 1/kOnItsWay of a tier, and in the middle tier at least one for
// each direction.
constexpr uint32_t kOnItsWay = 32, kPassing = 2;
// An upper tier of at least this many slots leaves one of them to prefetches.
constexpr uint32_t kEnoughForEarly = 5;
// Prices in moves per slot for a whole iteration. The first is so small that the member that saves
// most per slot is the last to leave.
constexpr double kFirstPressure = 1, kPressureGrowth = 1.1, kHistoryGrowth = 0.4;
constexpr double kLeastPrice = 1e-6;  // Breaks ties in favour of the shorter stay.
constexpr int kMostRounds = 40;
constexpr int kRefinements = 2;
constexpr double kTooMuch = 4;  // For a slot that is taken, in moves per point.
// Cost model of Work: one unit per choice, plus one per 16 events.
constexpr size_t kEventsAChoice = 16;
// A member with more events is not planned: its choice would hold up the engine's loop.
constexpr size_t kMostEvents = 4096;
// The price of a transfer that is late by its own length, in moves.
constexpr double kLate = 1;
// How many points before its next use a member may be back.
constexpr uint32_t kMostAhead = 16;
constexpr double kLeastMicros = 1e-3;  // Between two events, so that no point is empty.
// Spread evenly, the transfers of a slow link leave a tenth of its time free.
constexpr double kSpare = 1.1;

// A member's state as two bits: whether the middle and the lowest tier hold its content.
constexpr int State(bool middle, bool lowest) { return 2 * middle + lowest; }

int32_t Less(uint32_t slots, uint32_t spare) {
  return static_cast<int32_t>(std::max(slots, spare + 1) - spare);
}

// The beginning of each point and the end of the last one, in microseconds. A job reports several
// uses at a time: those at one time are spread over the time until the next one.
std::vector<double> ClockOf(const std::vector<ResidencyPlan::Event>& events, uint32_t points) {
  std::vector<double> clock(events.size() + 1), by_point(points + 1);
  for (size_t begin = 0, end = 0; begin < events.size(); begin = end) {
    while (end < events.size() && events[end].micros == 0) ++end;
    end = std::min(end + 1, events.size());
    const double each =
        static_cast<double>(events[end - 1].micros) / static_cast<double>(end - begin);
    for (size_t i = begin; i < end; ++i) clock[i + 1] = clock[i] + each + kLeastMicros;
  }
  for (size_t point = 1; point <= points; ++point) {
    by_point[point] = clock[point * events.size() / points];
  }
  return by_point;
}

}  // namespace

ResidencyPlan::ResidencyPlan(const std::vector<Event>& events, const Slots& slots,
                             const Transfers& transfers)
    : slots_(slots),
      length_(static_cast<uint32_t>(events.size())),
      points_(std::min(length_, kMostPoints)),
      times_(events.size()),
      kinds_(events.size()),
      stays_(events.size()),
      trips_(events.size()),
      in_(ClockOf(events, points_), transfers.in_micros),
      out_(ClockOf(events, points_), transfers.out_micros),
      pressure_(kFirstPressure / std::max(1u, points_)) {
  uint32_t members = 0;
  for (const Event& event : events) members = std::max(members, event.member.value() + 1);
  first_.resize(members + 1);
  for (const Event& event : events) ++first_[event.member.value() + 1];
  // The events are sorted by member: first_ counts those of each member, and its sums are where
  // they begin.
  for (uint32_t member = 0; member < members; ++member) first_[member + 1] += first_[member];
  std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
  for (uint32_t time = 0; time < length_; ++time) {
    const uint32_t at = next[events[time].member.value()]++;
    times_[at] = time;
    kinds_[at] = events[time].kind;
  }
  const uint32_t early =
      std::max<uint32_t>(slots.upper >= kEnoughForEarly, slots.upper / kOnItsWay);
  uint32_t used = 0;
  for (uint32_t member = 0; member < members; ++member) used += count(member) > 0;
  // Where each has a slot, nothing is on its way.
  upper_.slots =
      used <= slots.upper ? static_cast<int32_t>(slots.upper) : Less(slots.upper, kLeased + early);
  if (slots.middle.has_value()) {
    middle_.slots = Less(*slots.middle, kPassing + *slots.middle / kOnItsWay);
  }
  for (Tier* tier : {&upper_, &middle_}) {
    tier->used.resize(points_);
    tier->history.resize(points_);
    tier->sums.resize(points_ + 1);
  }
  done_ = members == 0;
}

bool ResidencyPlan::is_planned(uint32_t member) const {
  return count(member) > 0 && count(member) <= kMostEvents;
}

absl::optional<ResidencyPlan::Stay> ResidencyPlan::After(Member member, uint32_t nth) const {
  const uint32_t number = member.value();
  if (number >= members() || nth >= count(number) || !is_planned(number)) return absl::nullopt;
  return stays_[first_[number] + nth];
}

void ResidencyPlan::Work(uint32_t choices) {
  MEMTIDE_CHECK(!done_);
  credit_ += choices;
  while (credit_ > 0 && !done_) {
    --credit_;
    if (is_planned(turn_)) {
      credit_ -= static_cast<int64_t>(count(turn_) / kEventsAChoice);
      Choose(turn_);
    }
    if (++turn_ < members()) continue;
    turn_ = 0;
    done_ = EndRound();
  }
}

// Raises prices until no slot is wanted twice, or for kMostRounds. Prices that have risen have sent
// some members away for which there is room now: in the rounds that follow, a slot that is free
// costs nothing, and one that is taken too much. Returns true after these.
bool ResidencyPlan::EndRound() {
  if (refined_ > 0) return refined_++ == kRefinements;
  bool fits = true;
  for (Tier* tier : {&upper_, &middle_}) {
    for (uint32_t point = 0; point < points_; ++point) {
      const int32_t missing = tier->used[point] - tier->slots;
      if (missing <= 0) continue;
      fits = false;
      // A point that was contested stays dearer. Otherwise members would return to it as soon as
      // others have left.
      tier->history[point] += kHistoryGrowth / points_ * missing;
    }
  }
  pressure_ *= kPressureGrowth;
  const double pace =
      std::max({1.0, kSpare * in_.PaceOfTransfers(), kSpare * out_.PaceOfTransfers()});
  in_.SetPace(pace);
  out_.SetPace(pace);
  if (!fits && ++rounds_ < kMostRounds) return false;
  refined_ = 1;
  ++rounds_;
  pressure_ = kTooMuch;
  for (Tier* tier : {&upper_, &middle_}) std::fill(tier->history.begin(), tier->history.end(), 0);
  return false;
}

uint32_t ResidencyPlan::PointOf(uint64_t time) const {
  return static_cast<uint32_t>((time * points_ + length_ / 2) / length_);
}

ResidencyPlan::Gap ResidencyPlan::GapAfter(uint32_t member, size_t nth) const {
  const size_t at = first_[member] + nth;
  const bool last = nth + 1 == count(member);
  const uint32_t begin = times_[at];
  // The iteration is a circle: after its last event the member waits for its first one.
  const uint32_t end = last ? times_[first_[member]] + length_ : times_[at + 1];
  // Leases cover the first kLeased events of a stay. Where not all members fit, the constructor
  // has subtracted their slots.
  return {{PointOf(std::min(end, begin + kLeased)), PointOf(end)},
          {PointOf(begin + 1), PointOf(end)}};
}

// With prefix sums the price of a stay is the difference of two of them.
void ResidencyPlan::SumPrices(Tier* tier) const {
  double sum = 0;
  for (uint32_t point = 0; point < points_; ++point) {
    tier->sums[point] = sum;
    // The one more is the member that is about to choose.
    const int32_t missing = std::max(0, tier->used[point] + 1 - tier->slots);
    sum += kLeastPrice + tier->history[point] + pressure_ * missing;
  }
  tier->sums[points_] = sum;
}

double ResidencyPlan::Price(const Tier& tier, Span span) const {
  if (span.begin >= span.end) return 0;
  const auto until = [&](uint32_t point) {
    return point < points_ ? tier.sums[point]
                           : tier.sums[points_] + (point < 2 * points_ ? tier.sums[point - points_]
                                                                       : tier.sums[points_]);
  };
  return until(span.end) - until(span.begin);
}

// The best transfers with which a member leaves the upper tier for the gap, and the price of that
// beside the moves.
// `only`: no other tier has the content.
ResidencyPlan::Trip ResidencyPlan::TripIn(const Gap& gap, bool only, bool returns) const {
  const auto [begin, end] = gap.upper;
  Trip trip;
  trip.leaves = only;
  trip.returns = returns;
  trip.out = trip.in = {begin, begin};
  if (only) {
    trip.out.end = std::min(out_.After(begin).end, end);
    trip.price = kLate * (out_.Price(trip.out) + out_.Missing({begin, end}));
    trip.price += Price(upper_, trip.out);
  }
  if (!returns) return trip;
  const uint32_t away = trip.out.end;
  double least = kFar;
  for (uint32_t ahead = 0; ahead <= std::min(kMostAhead, end - away); ++ahead) {
    Span in = in_.Before(end - ahead);
    // Only the latest possible transfer may be too long for the gap.
    if (in.begin < away && ahead > 0) break;
    double late = in_.Price(in);
    if (in.begin < away) {
      in.begin = away;
      late += in_.Missing(in);
    }
    const double price = kLate * late + Price(upper_, {in.begin, end});
    if (price < least) {
      least = price;
      trip.in = in;
    }
    // An earlier transfer only takes its slot for longer.
    if (late == 0) break;
  }
  trip.price += least;
  return trip;
}

void ResidencyPlan::Take(Tier* tier, Span span, int by) const {
  for (uint32_t point = span.begin; point < span.end; ++point) {
    tier->used[point < points_ ? point : point - points_] += by;
  }
}

void ResidencyPlan::Occupy(uint32_t member, int by) {
  for (size_t nth = 0; nth < count(member); ++nth) {
    const size_t at = first_[member] + nth;
    if (kinds_[at] == Kind::kFree) continue;
    const Gap gap = GapAfter(member, nth);
    const Stay stay = stays_[at];
    if (stay.middle && slots_.middle.has_value()) Take(&middle_, gap.middle, by);
    if (stay.upper) {
      Take(&upper_, gap.upper, by);
      continue;
    }
    const Trip& trip = trips_[at];
    if (trip.leaves) {
      Take(&upper_, trip.out, by);
      out_.Take(trip.out, by);
    }
    if (trip.returns) {
      Take(&upper_, {trip.in.begin, gap.upper.end}, by);
      in_.Take(trip.in, by);
    }
  }
}

// Extends the cheapest ways from the states after event `nth` to the states after the next event.
void ResidencyPlan::ExtendWays(uint32_t member, size_t nth, size_t step) {
  const Kind next = kinds_[first_[member] + (nth + 1) % count(member)];
  const Gap gap = GapAfter(member, nth);
  const bool exists = kinds_[first_[member] + nth] != Kind::kFree;
  // Content that is freed next is never read again.
  const double back = next == Kind::kFree ? 0 : 1;
  const double stays_upper = Price(upper_, gap.upper);
  const bool unlimited = !slots_.middle.has_value();
  const double stays_middle = unlimited ? 0 : Price(middle_, gap.middle);
  std::array<absl::optional<double>, 2> prices;  // By whether no other tier has the content.
  const auto trip = [&](bool only) {
    if (!prices[only]) prices[only] = TripIn(gap, only, next != Kind::kFree).price;
    return *prices[only];
  };
  Way* const to = &ways_[(step + 1) * kStates];
  for (int state = 0; state < kStates; ++state) to[state] = {kFar, 0, {}};
  for (int state = 0; state < kStates; ++state) {
    const double so_far = ways_[step * kStates + state].cost;
    if (so_far == kFar) continue;
    const bool in_middle = state & 2, in_lowest = state & 1;
    const auto reach = [&](bool middle, bool lowest, double cost, Stay stay) {
      // A write or a free makes the copies of the other tiers stale.
      Way& way = to[next == Kind::kRead ? State(middle, lowest) : State(false, false)];
      if (so_far + cost < way.cost) way = {so_far + cost, static_cast<uint8_t>(state), stay};
    };
    const double to_middle = in_middle ? 0 : 1;
    if (!exists) {
      reach(false, false, 0, {false, false});
      continue;
    }
    reach(true, in_lowest, stays_middle + to_middle + back + trip(!in_middle), {false, true});
    if (unlimited) {
      reach(in_middle, false, stays_upper, {true, true});
      continue;
    }
    reach(false, in_lowest, stays_upper, {true, false});
    if (in_middle) {
      reach(true, in_lowest, stays_upper + stays_middle, {true, true});
      // The middle copy is written back before it is dropped, so that the upper copy is clean
      // later.
      reach(false, true, stays_upper + (in_lowest ? 0 : 1), {true, false});
    }
    const double to_lowest = in_lowest ? 0 : to_middle + 1;
    reach(true, true, to_lowest + 2 * back + trip(!in_middle && !in_lowest), {false, false});
  }
}

// The stay after the member's event `nth`, where its content is in the tiers of `state`.
void ResidencyPlan::Settle(uint32_t member, size_t nth, int state, Stay stay) {
  const size_t at = first_[member] + nth;
  stays_[at] = stay;
  const bool in_middle = state & 2, in_lowest = state & 1;
  const bool only = !in_middle && (stay.middle || !in_lowest);
  const bool returns = kinds_[first_[member] + (nth + 1) % count(member)] != Kind::kFree;
  if (stay.upper) return;
  const Gap gap = GapAfter(member, nth);
  trips_[at] = TripIn(gap, only, returns);
  stays_[at].ahead =
      in_.known() ? (gap.upper.end - trips_[at].in.begin) * length_ / points_ : length_;
}

void ResidencyPlan::Choose(uint32_t member) {
  const size_t events = count(member);
  // The member gives its own slots back before it chooses, or it would be priced out by itself.
  if (rounds_ > 0) Occupy(member, -1);
  SumPrices(&upper_);
  if (slots_.middle.has_value()) SumPrices(&middle_);
  in_.SumPrices();
  out_.SumPrices();
  // After a write or a free only one state is possible, so cutting the circle there needs one pass
  // instead of one per possible state.
  size_t cut = 0;
  while (cut < events && kinds_[first_[member] + cut] == Kind::kRead) ++cut;
  const bool only_read = cut == events;
  if (only_read) cut = 0;
  const bool unlimited = !slots_.middle.has_value();
  ways_.resize((events + 1) * kStates);
  double least = kFar;
  for (int start = 0; start < kStates; ++start) {
    const bool possible = !only_read  ? start == State(false, false)
                          : unlimited ? start == State(true, false)
                                      : start == State(false, true) || start == State(true, true);
    if (!possible) continue;
    for (int state = 0; state < kStates; ++state) ways_[state].cost = state == start ? 0 : kFar;
    for (size_t step = 0; step < events; ++step) ExtendWays(member, (cut + step) % events, step);
    const double cost = ways_[events * kStates + start].cost;
    if (cost >= least) continue;
    least = cost;
    int state = start;
    for (size_t step = events; step > 0; --step) {
      const Way& way = ways_[step * kStates + state];
      Settle(member, (cut + step - 1) % events, way.from, way.stay);
      state = way.from;
    }
  }
  Occupy(member, 1);
}

}  // namespace memtide
