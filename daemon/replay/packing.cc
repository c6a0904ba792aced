#include "daemon/replay/packing.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "base/check.h"

namespace memtide {

namespace {

constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
constexpr uint32_t kLine = ~uint32_t{0};  // In place of an interval: the step to the next point.

// Only points at which an interval begins or ends matter; a node is the number of such a point.
std::vector<uint32_t> Corners(const std::vector<Interval>& intervals) {
  std::vector<uint32_t> corners;
  for (const Interval& interval : intervals) {
    corners.push_back(interval.begin);
    corners.push_back(interval.end);
  }
  std::sort(corners.begin(), corners.end());
  corners.erase(std::unique(corners.begin(), corners.end()), corners.end());
  return corners;
}

// The flow. Node i is corner i; the source is the first, the sink the last.
class Flow {
 public:
  explicit Flow(const std::vector<Interval>& intervals);

  // Sends one more unit along the cheapest path. Returns false, and sends none, if that gains
  // nothing.
  bool Augment();
  const std::vector<bool>& taken() const { return taken_; }

 private:
  struct Edge {
    uint32_t from, to;
    int64_t weight;
  };

  uint32_t nodes() const { return static_cast<uint32_t>(corners_.size()); }
  void InitialPotentials();
  void FindPath();
  void Relax(uint32_t from, uint32_t to, int64_t cost, uint32_t by);

  const std::vector<uint32_t> corners_;
  std::vector<Edge> edges_;                         // By interval; empty ones have from == to.
  std::vector<std::vector<uint32_t>> begin_, end_;  // Intervals by node.
  std::vector<bool> taken_;                         // By interval: whether it carries a unit.
  std::vector<uint32_t> line_;                      // Units from a node to the next.
  std::vector<int64_t> potential_, distance_;
  std::vector<std::pair<uint32_t, uint32_t>> came_;  // From which node, by which interval.
  std::priority_queue<std::pair<int64_t, uint32_t>, std::vector<std::pair<int64_t, uint32_t>>,
                      std::greater<>>
      open_;
};

Flow::Flow(const std::vector<Interval>& intervals)
    : corners_(Corners(intervals)),
      begin_(corners_.size()),
      end_(corners_.size()),
      taken_(intervals.size()),
      line_(corners_.size()),
      came_(corners_.size()) {
  const auto node = [this](uint32_t point) {
    return static_cast<uint32_t>(std::lower_bound(corners_.begin(), corners_.end(), point) -
                                 corners_.begin());
  };
  for (uint32_t i = 0; i < intervals.size(); ++i) {
    MEMTIDE_CHECK(intervals[i].begin <= intervals[i].end);
    edges_.push_back({node(intervals[i].begin), node(intervals[i].end), intervals[i].weight});
    if (edges_[i].from == edges_[i].to) {
      // An empty interval overlaps nothing, so it is taken unless it costs something.
      taken_[i] = intervals[i].weight >= 0;
    } else if (intervals[i].weight > 0) {
      begin_[edges_[i].from].push_back(i);
      end_[edges_[i].to].push_back(i);
    }
  }
  InitialPotentials();
}

// Costs are negative weights, so that the first distances are found along the line's order; from
// then on no reduced cost is negative.
void Flow::InitialPotentials() {
  potential_.assign(nodes(), 0);
  for (uint32_t node = 1; node < nodes(); ++node) {
    potential_[node] = potential_[node - 1];
    for (const uint32_t i : end_[node]) {
      potential_[node] = std::min(potential_[node], potential_[edges_[i].from] - edges_[i].weight);
    }
  }
}

// A step of Dijkstra's algorithm, on costs that the potentials keep from being negative.
void Flow::Relax(uint32_t from, uint32_t to, int64_t cost, uint32_t by) {
  const int64_t reduced = distance_[from] + cost + potential_[from] - potential_[to];
  if (reduced >= distance_[to]) return;
  distance_[to] = reduced;
  came_[to] = {from, by};
  open_.emplace(reduced, to);
}

void Flow::FindPath() {
  distance_.assign(nodes(), kFar);
  distance_[0] = 0;
  open_.emplace(0, 0);
  while (!open_.empty()) {
    const auto [distance, node] = open_.top();
    open_.pop();
    // A farther entry is outdated: a priority_queue cannot lower a key, so nodes are entered again.
    if (distance > distance_[node]) continue;
    if (node + 1 == nodes()) break;
    Relax(node, node + 1, 0, kLine);
    // A path may go back where a unit flows already: in this way it undoes an earlier choice.
    if (node > 0 && line_[node - 1] > 0) Relax(node, node - 1, 0, kLine);
    for (const uint32_t i : begin_[node]) {
      if (!taken_[i]) Relax(node, edges_[i].to, -edges_[i].weight, i);
    }
    for (const uint32_t i : end_[node]) {
      if (taken_[i]) Relax(node, edges_[i].from, edges_[i].weight, i);
    }
  }
  // The search stops at the sink, so nodes beyond it have no final distance. With the sink's
  // distance in its place, no reduced cost becomes negative.
  open_ = {};
  for (uint32_t node = 0; node < nodes(); ++node) {
    potential_[node] += std::min(distance_[node], distance_[nodes() - 1]);
  }
}

bool Flow::Augment() {
  if (nodes() < 2) return false;
  FindPath();
  const uint32_t sink = nodes() - 1;
  // The difference of the potentials is the real cost of the cheapest path.
  if (potential_[sink] - potential_[0] >= 0) return false;
  for (uint32_t node = sink; node != 0;) {
    const auto [from, by] = came_[node];
    if (by != kLine) {
      // The path takes the interval, or goes back over it and undoes that it was taken.
      taken_[by] = !taken_[by];
    } else if (from < node) {
      ++line_[from];
    } else {
      --line_[node];
    }
    node = from;
  }
  return true;
}

}  // namespace

std::vector<bool> HeaviestPacking(const std::vector<Interval>& intervals, uint32_t tracks) {
  Flow flow(intervals);
  for (uint32_t track = 0; track < tracks && flow.Augment(); ++track) {
  }
  return flow.taken();
}

}  // namespace memtide
