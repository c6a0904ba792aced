#include "daemon/policy/planned_link.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace memtide {

namespace {

// The link has at least one point for each transfer.
PointSpan OnLink(PointSpan span) {
  if (span.begin < span.end) return span;
  return span.begin > 0 ? PointSpan{span.begin - 1, span.begin} : PointSpan{0, 1};
}

}  // namespace

PlannedLink::PlannedLink(const std::vector<double>& clock, uint64_t transfer_micros)
    : clock_(clock),
      micros_(clock.back() > 0 ? static_cast<double>(transfer_micros) : 0),
      load_(clock.size() - 1),
      sums_(clock.size()),
      before_(clock.size() - 1),
      after_(clock.size() - 1) {
  SetPace(1);
}

double PlannedLink::ClockOf(uint32_t point) const {
  return point < points() ? clock_[point] : clock_.back() + clock_[point - points()];
}

void PlannedLink::SetPace(double pace) {
  MEMTIDE_CHECK(pace >= 1);
  transfer_ = micros_ / pace;
  if (!known()) return;
  const double whole = clock_.back();
  // The first point from which a transfer fits before `end`, which only moves on.
  uint32_t begin = 0;
  for (uint32_t end = points(); end < 2 * points(); ++end) {
    begin = std::max(begin, end - points());
    while (begin < end && ClockOf(begin) < ClockOf(end) - transfer_) ++begin;
    before_[end - points()] = end - begin;
  }
  uint32_t end = 0;
  for (uint32_t point = 0; point < points(); ++point) {
    end = std::max(end, point);
    while (end < point + points() && end + 1 < 2 * points() &&
           ClockOf(end + 1) - ClockOf(point) <= std::min(transfer_, whole)) {
      ++end;
    }
    after_[point] = end - point;
  }
}

double PlannedLink::PaceOfTransfers() const {
  double transfers = 0;
  for (const double load : load_) transfers += load;
  return known() ? transfers * micros_ / clock_.back() : 0;
}

PointSpan PlannedLink::Before(uint32_t end) const {
  return known() ? PointSpan{end - std::min(end, before_[end % points()]), end}
                 : PointSpan{end, end};
}

PointSpan PlannedLink::After(uint32_t begin) const {
  return {begin, begin + (known() ? after_[begin % points()] : 0)};
}

double PlannedLink::Missing(PointSpan span) const {
  if (!known()) return 0;
  return std::max(0.0, 1 - (ClockOf(span.end) - ClockOf(span.begin)) / transfer_);
}

void PlannedLink::Take(PointSpan span, int by) {
  if (!known()) return;
  const PointSpan on = OnLink(span);
  const double length = ClockOf(on.end) - ClockOf(on.begin);
  for (uint32_t point = on.begin; point < on.end; ++point) {
    load_[point % points()] += by * (ClockOf(point + 1) - ClockOf(point)) / length;
  }
}

void PlannedLink::SumPrices() {
  if (!known()) return;
  double sum = 0;
  const double transfers_a_micro = 1 / transfer_;
  for (uint32_t point = 0; point < points(); ++point) {
    sums_[point] = sum;
    const double length = clock_[point + 1] - clock_[point];
    const double fits = length * transfers_a_micro;
    // A point that is shorter than a transfer has one at most, and others part of one more.
    const double taken = fits < 1 ? load_[point] * transfer_ : length * (load_[point] + 1 - fits);
    sum += std::clamp(taken, 0.0, length);
  }
  sums_[points()] = sum;
}

double PlannedLink::SumUntil(uint32_t point) const {
  return point < points() ? sums_[point] : sums_.back() + sums_[point - points()];
}

double PlannedLink::Price(PointSpan span) const {
  if (!known()) return 0;
  const PointSpan on = OnLink(span);
  return (SumUntil(on.end) - SumUntil(on.begin)) / (ClockOf(on.end) - ClockOf(on.begin));
}

}  // namespace memtide
