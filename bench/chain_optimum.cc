// Measures how far the search for activation plans is from the best of all plans, on random chains
// of up to nine tasks, in virtual time.
//
//   chain_optimum [--chains N] [--first SEED] [--most N] [--replay]
//
// Each chain's best plan is that of an exhaustive search, judged by what judges the search: the
// quick Timeline, or with --replay the engine's replay, as in a run. Prints a line after every 500
// chains, and at the end the share within 2%, the mean and the worst.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "bench/harness.h"
#include "daemon/replay/activations/optimum.h"
#include "daemon/replay/activations/testing/random_chain.h"

ABSL_FLAG(uint64_t, chains, 10'000, "chains, of seeds one after another");
ABSL_FLAG(uint64_t, first, 0, "the first seed");
ABSL_FLAG(uint32_t, most, 400, "plans that a search judges at most, beside those of no search");
ABSL_FLAG(bool, replay, false, "judge by the engine's replay");

namespace memtide {
namespace {

constexpr double kNear = 1.02, kEqual = 1 + 1e-6;

// Chains of each even number of passes up to eight, and the step; most are the longest, which have
// the most plans.
uint32_t TasksOf(uint64_t seed) {
  const uint32_t draw = static_cast<uint32_t>(seed % 8);
  return draw < 4 ? 9 : draw < 6 ? 7 : draw < 7 ? 5 : 3;
}

class Distances {
 public:
  void Take(uint64_t seed, double ratio) {
    ratios_.push_back(ratio);
    if (ratio > worst_) {
      worst_ = ratio;
      worst_seed_ = seed;
    }
  }

  void Print() const {
    std::vector<double> sorted = ratios_;
    std::sort(sorted.begin(), sorted.end());
    double sum = 0;
    for (const double ratio : sorted) sum += ratio;
    const auto near = std::upper_bound(sorted.begin(), sorted.end(), kNear) - sorted.begin();
    const auto count = static_cast<double>(sorted.size());
    std::cout << absl::StrFormat(
        "%d chains: %.2f%% within 2%% of the optimum, %.2f%% equal to it; mean %.4f, "
        "99th percentile %.4f, worst %.4f (seed %d)\n",
        sorted.size(), 100 * static_cast<double>(near) / count,
        100 *
            static_cast<double>(std::upper_bound(sorted.begin(), sorted.end(), kEqual) -
                                sorted.begin()) /
            count,
        sum / count, sorted[static_cast<size_t>(0.99 * (count - 1))], worst_, worst_seed_);
    std::cout.flush();
  }

 private:
  std::vector<double> ratios_;
  double worst_ = 0;
  uint64_t worst_seed_ = 0;
};

void MeasureAll() {
  Distances distances;
  uint64_t judged = 0, all_judged = 0, none = 0;
  Duration searching{0}, trying{0};
  const uint64_t chains = absl::GetFlag(FLAGS_chains);
  for (uint64_t i = 0; i < chains; ++i) {
    const uint64_t seed = absl::GetFlag(FLAGS_first) + i;
    const RandomChain chain = MakeRandomChain(seed, TasksOf(seed));
    const TimeOfPlan time_of = absl::GetFlag(FLAGS_replay)
                                   ? TimeByReplay(chain.model, chain.options)
                                   : TimeByTimeline(chain.model, chain.options);
    BestPlan found, best;
    searching += TimeOf([&] {
      found = OrDie(BestRanked(chain.model, chain.options, time_of, absl::GetFlag(FLAGS_most)));
    });
    trying += TimeOf([&] { best = OrDie(BestOfAllPlans(chain.model, time_of)); });
    MEMTIDE_CHECK(found.elapsed.has_value() == best.elapsed.has_value());
    if (!best.elapsed.has_value()) {
      ++none;
      continue;
    }
    // Replayed time is divided among uses in whole nanoseconds.
    MEMTIDE_CHECK(*best.elapsed <= *found.elapsed + std::chrono::microseconds(1));
    judged += found.judged;
    all_judged += best.judged;
    distances.Take(seed, Seconds(*found.elapsed) / Seconds(*best.elapsed));
    if (i % 500 == 499) distances.Print();
  }
  distances.Print();
  const auto count = static_cast<double>(chains - none);
  std::cout << absl::StrFormat(
      "a search: %.1f plans, %.1f ms; all plans: %.1f, %.1f ms; %d chains fit no plan\n",
      static_cast<double>(judged) / count, 1e3 * Seconds(searching) / count,
      static_cast<double>(all_judged) / count, 1e3 * Seconds(trying) / count, none);
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  memtide::MeasureAll();
  return 0;
}
