// PlannedLink: one direction of a link in a residency plan: how many transfers each point of the
// iteration has, and what one more would cost there.
//
// A transfer that begins where another one is on the link is late, so that the job stalls. The
// price of a span says which part of a transfer finds the link taken. It is low for all spans where
// transfers are spread, and so a plan that minimises prices spreads them: with layers that are used
// in turn, it lets every k-th one leave (granular offloading, Lin et al., M6-10T, 2021), and not
// neighbours, whose transfers would queue while the rest of the iteration has none.
//
// Where a link is slower than the job, all of it takes longer: SetPace() makes each point that much
// longer, so that the price still compares points with each other.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_POLICY_PLANNED_LINK_H_
#define MEMTIDE_DAEMON_POLICY_PLANNED_LINK_H_

#include <cstdint>
#include <vector>

namespace memtide {

// Points of an iteration, which is a circle: `end` may lie in the next round.
struct PointSpan {
  uint32_t begin = 0, end = 0;
};

class PlannedLink {
 public:
  // `clock` has the beginning of each point and the end of the last one, in microseconds of
  // computing; one transfer takes `transfer_micros`. 0: that is unknown, and no span has a price.
  PlannedLink(const std::vector<double>& clock, uint64_t transfer_micros);

  bool known() const { return transfer_ > 0; }
  // How much longer than to compute it takes to be through a point; at least 1.
  void SetPace(double pace);
  // The pace at which the transfers fill the link, were they spread evenly.
  double PaceOfTransfers() const;

  // The points in which a transfer fits that ends where `end` begins. Empty: it takes less than
  // that one point.
  PointSpan Before(uint32_t end) const;
  // The same for a transfer that begins with `begin`.
  PointSpan After(uint32_t begin) const;
  // Which part of a transfer the points of the span are too few for.
  double Missing(PointSpan span) const;

  // A transfer takes the span, or with -1 no longer does. An empty span stands for the point before
  // it.
  void Take(PointSpan span, int by);
  // Makes Price() know the transfers so far.
  void SumPrices();
  // The part of one more transfer in the span that would find the link taken, from 0 to 1.
  double Price(PointSpan span) const;

 private:
  uint32_t points() const { return static_cast<uint32_t>(load_.size()); }
  double ClockOf(uint32_t point) const;
  double SumUntil(uint32_t point) const;

  std::vector<double> clock_;
  double transfer_ = 0;       // Microseconds of computing, at the present pace.
  double micros_ = 0;         // The same at pace 1.
  std::vector<double> load_;  // Transfers, by point.
  std::vector<double> sums_;  // Prefix sums of the prices of points, weighted by their length.
  std::vector<uint32_t> before_, after_;  // By point: how many points a transfer takes.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POLICY_PLANNED_LINK_H_
