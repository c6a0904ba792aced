#include "daemon/replay/optimum.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/types/optional.h"
#include "base/check.h"
#include "daemon/replay/packing.h"

namespace memtide {

namespace {

using Kind = ChunkEvent::Kind;

constexpr int64_t kUnit = int64_t{1} << 20;  // The weight of one move.
constexpr int kMostAscents = 24;
// Relative gap at which the search ends: the bound is this near to a real schedule.
constexpr double kCloseEnough = 0.001;
constexpr size_t kEnoughEvents = 2000;
constexpr uint32_t kClean = ~uint32_t{0};

// The time between two uses of a chunk.
struct Gap {
  uint32_t first_use = 0, next_use = 0;
  uint32_t dirt = kClean;  // The write whose bytes it still carries, numbered.
  double share = 0;        // Part of that write-back's cost.
};

struct Problem {
  std::vector<Gap> gaps;
  // Uses whose preceding use ended in a free: the freed chunk takes no slot while they are fetched.
  std::vector<uint32_t> alone;
  uint32_t uses = 0;
  std::vector<std::vector<uint32_t>> dirts;  // Gaps by write.
  uint32_t first_reads = 0;                  // First uses of chunks that exist from the start.
};

class Builder {
 public:
  explicit Builder(const AccessSequence& sequence) : chunks_(sequence.chunks.size()) {
    for (size_t i = 0; i < chunks_.size(); ++i) chunks_[i].below = sequence.chunks[i].from_start;
    for (const PlayedMoment& moment : sequence.moments) {
      for (const ChunkEvent& event : moment.events) Take(event);
    }
  }

  Problem Finish() {
    problem_.uses = uses_;
    problem_.dirts.resize(dirts_);
    for (uint32_t i = 0; i < problem_.gaps.size(); ++i) {
      if (problem_.gaps[i].dirt != kClean) problem_.dirts[problem_.gaps[i].dirt].push_back(i);
    }
    for (const std::vector<uint32_t>& gaps : problem_.dirts) {
      // The search begins with equal parts of each write-back.
      for (const uint32_t i : gaps) problem_.gaps[i].share = 1.0 / static_cast<double>(gaps.size());
    }
    return std::move(problem_);
  }

 private:
  struct State {
    bool below = false;  // Exists from the start and has not been used yet.
    absl::optional<uint32_t> last_use;
    uint32_t dirt = kClean;
  };

  void Take(const ChunkEvent& event) {
    State& chunk = chunks_[event.chunk];
    // A chunk that is allocated or freed has no content to read or to write back.
    if (!event.IsUse()) {
      chunk = State();
      if (last_chunk_ == event.chunk) last_chunk_.reset();
      return;
    }
    // Consecutive uses of a chunk count as one.
    if (last_chunk_ != event.chunk) {
      ++uses_;
      if (!last_chunk_.has_value()) problem_.alone.push_back(uses_);
    }
    last_chunk_ = event.chunk;
    if (chunk.last_use.has_value() && *chunk.last_use != uses_) {
      problem_.gaps.push_back({*chunk.last_use, uses_, chunk.dirt, 0});
    }
    problem_.first_reads += chunk.below;
    chunk.below = false;
    chunk.last_use = uses_;
    // Later gaps carry the bytes of this write until the next one.
    if (event.kind == Kind::kWrite) chunk.dirt = dirts_++;
  }

  std::vector<State> chunks_;
  absl::optional<uint32_t> last_chunk_;
  uint32_t uses_ = 0, dirts_ = 0;
  Problem problem_;
};

// A packing has `slots - 1` tracks: one slot is the current lease's. Where the last use's lease
// holds another one, an interval that is heavier than all gaps together takes a track away.
void AddLeasesOfLastUse(const Problem& problem, std::vector<Interval>* intervals) {
  const int64_t most = 3 * kUnit * static_cast<int64_t>(problem.gaps.size() + 1);
  uint32_t begin = 0;
  for (const uint32_t use : problem.alone) {
    if (begin < use) intervals->push_back({begin, use, most});
    begin = use + 1;
  }
  if (begin <= problem.uses) intervals->push_back({begin, problem.uses + 1, most});
}

std::vector<bool> Keep(const Problem& problem, uint32_t slots) {
  std::vector<Interval> intervals;
  intervals.reserve(problem.gaps.size() + problem.alone.size() + 1);
  for (const Gap& gap : problem.gaps) {
    // One lease of the chunk covers its use and the use after that, another covers the next use of
    // it, so a gap takes a slot of its own only in between.
    const uint32_t begin = std::min(gap.first_use + 2, gap.next_use);
    intervals.push_back(
        {begin, gap.next_use, kUnit + std::llround(gap.share * static_cast<double>(kUnit))});
  }
  AddLeasesOfLastUse(problem, &intervals);
  std::vector<bool> resident = HeaviestPacking(intervals, slots - 1);
  // The intervals of leases come after those of the gaps, and are no part of the answer.
  resident.resize(problem.gaps.size());
  return resident;
}

// The cost with the present shares: a lower bound of what any schedule costs.
LeastMoves Cost(const Problem& problem, const std::vector<bool>& resident) {
  LeastMoves cost;
  cost.reads = problem.first_reads;
  for (size_t i = 0; i < resident.size(); ++i) {
    if (resident[i]) continue;
    cost.reads += 1;
    cost.writes += problem.gaps[i].share;
  }
  return cost;
}

// The real cost of this choice, with a write-back for each write whose gaps are not all kept.
double CostOfSchedule(const Problem& problem, const std::vector<bool>& resident) {
  double cost = problem.first_reads +
                static_cast<double>(std::count(resident.begin(), resident.end(), false));
  for (const std::vector<uint32_t>& gaps : problem.dirts) {
    cost += std::any_of(gaps.begin(), gaps.end(), [&resident](uint32_t i) { return !resident[i]; });
  }
  return cost;
}

// Moves `part` of each write-back's cost to its gaps that are not kept.
void ShiftShares(const std::vector<bool>& resident, double part, Problem* problem) {
  for (const std::vector<uint32_t>& gaps : problem->dirts) {
    const auto open =
        std::count_if(gaps.begin(), gaps.end(), [&](uint32_t i) { return !resident[i]; });
    if (open == 0) continue;
    for (const uint32_t i : gaps) {
      double& share = problem->gaps[i].share;
      share *= 1 - part;
      if (!resident[i]) share += part / static_cast<double>(open);
    }
  }
}

}  // namespace

LeastMoves LeastMovesOnce(const AccessSequence& sequence, uint32_t slots) {
  // Two leases are held while a chunk is fetched.
  MEMTIDE_CHECK(slots >= 2);
  Problem problem = Builder(sequence).Finish();
  LeastMoves best;
  double possible = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kMostAscents; ++i) {
    const std::vector<bool> resident = Keep(problem, slots);
    const LeastMoves cost = Cost(problem, resident);
    // Each division of the shares gives a lower bound, so the greatest is the best; `possible` is
    // what a real schedule costs, and bounds the optimum from above.
    if (cost.Total() > best.Total()) best = cost;
    possible = std::min(possible, CostOfSchedule(problem, resident));
    if (best.Total() >= (1 - kCloseEnough) * possible) break;
    // A subgradient search converges only with steps that become smaller.
    ShiftShares(resident, 0.5 * std::min(1.0, std::pow(0.8, i - 5)), &problem);
  }
  return best;
}

LeastMoves LeastMovesRepeating(const AccessSequence& sequence, uint32_t slots, size_t first) {
  size_t events = 0;
  for (size_t i = sequence.IterationBegin(first); i < sequence.moments.size(); ++i) {
    events += sequence.moments[i].events.size();
  }
  // The best schedule may repeat only after several iterations, so short traces are repeated more.
  const size_t more = std::min<size_t>(16, 1 + kEnoughEvents / std::max<size_t>(1, events));
  const LeastMoves shorter = LeastMovesOnce(Repeated(sequence, first, 1), slots);
  const LeastMoves longer = LeastMovesOnce(Repeated(sequence, first, 1 + more), slots);
  // The difference leaves out what the beginning and the end of a schedule cost once.
  const auto times = static_cast<double>(more);
  return {(longer.reads - shorter.reads) / times, (longer.writes - shorter.writes) / times};
}

LinkBytes LeastBytes(const AccessSequence& sequence, const BoundOptions& options, size_t first) {
  const auto bytes = [&sequence](double chunks) {
    const double moved = std::max(0.0, chunks) * static_cast<double>(sequence.chunk_size.count());
    return Bytes(static_cast<uint64_t>(std::llround(moved)));
  };
  LinkBytes least;
  if (options.device_slots > 0) {
    const LeastMoves moves = LeastMovesRepeating(sequence, options.device_slots, first);
    // Over the device's boundary, a read moves a chunk to the device and a write-back from it.
    least.to_device = bytes(moves.reads);
    least.from_device = bytes(moves.writes);
  }
  if (!options.host_holds_all) {
    // Device and host memory together are above the disk's boundary.
    const LeastMoves moves =
        LeastMovesRepeating(sequence, options.device_slots + options.host_slots, first);
    least.disk_read = bytes(moves.reads);
    least.disk_written = bytes(moves.writes);
  }
  return least;
}

}  // namespace memtide
