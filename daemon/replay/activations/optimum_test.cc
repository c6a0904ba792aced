#include "daemon/replay/activations/optimum.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "daemon/replay/activations/search.h"
#include "daemon/replay/activations/testing/random_chain.h"

namespace memtide {
namespace {

Found MustFind(const RandomChain& chain, uint32_t most_replays) {
  SearchOptions options;
  options.replay = chain.options;
  options.most_replays = most_replays;
  options.most_time = Duration::max();
  absl::StatusOr<Found> found = Search(chain.model, options);
  MEMTIDE_CHECK(found.ok()) << found.status();
  return *std::move(found);
}

TEST(OptimumTest, NoSearchIsBetterThanTheBestOfAllPlansAndNoPlanIsBelowTheBound) {
  constexpr uint64_t kChains = 12;
  // Time is divided among uses in whole nanoseconds.
  constexpr Duration kRounding = std::chrono::microseconds(1);
  uint64_t planned = 0;
  for (uint64_t seed = 0; seed < kChains; ++seed) {
    const RandomChain chain = MakeRandomChain(seed, 3 + 2 * static_cast<uint32_t>(seed % 3));
    const Found found = MustFind(chain, 50);
    const absl::StatusOr<BestPlan> best =
        BestOfAllPlans(chain.model, TimeByReplay(chain.model, chain.options));
    ASSERT_TRUE(best.ok()) << best.status();
    ASSERT_EQ(found.verdict.has_value(), best->elapsed.has_value()) << seed;
    if (!found.verdict.has_value()) continue;
    ++planned;
    EXPECT_GE(found.verdict->elapsed + kRounding, *best->elapsed) << seed;
    EXPECT_GE(*best->elapsed + kRounding, found.lower_bound) << seed;
  }
  EXPECT_GE(planned, kChains * 9 / 10);
}

TEST(OptimumTest, TheSearchIsWithinTwoPercentOfTheBestMostOften) {
  constexpr uint64_t kChains = 100;
  uint64_t near = 0;
  for (uint64_t seed = 0; seed < kChains; ++seed) {
    const RandomChain chain = MakeRandomChain(seed, 3 + 2 * static_cast<uint32_t>(seed % 4));
    const TimeOfPlan time_of = TimeByTimeline(chain.model, chain.options);
    const absl::StatusOr<BestPlan> found = BestRanked(chain.model, chain.options, time_of, 400);
    const absl::StatusOr<BestPlan> best = BestOfAllPlans(chain.model, time_of);
    ASSERT_TRUE(found.ok() && best.ok());
    ASSERT_TRUE(found->elapsed.has_value() && best->elapsed.has_value()) << seed;
    EXPECT_GE(*found->elapsed, *best->elapsed) << seed;
    if (*found->elapsed <= *best->elapsed * 102 / 100) ++near;
  }
  EXPECT_GE(near, kChains * 95 / 100);
}

TEST(OptimumTest, TheSameSeedGivesTheSameChain) {
  const RandomChain once = MakeRandomChain(7, 9), again = MakeRandomChain(7, 9);
  EXPECT_EQ(once.model.blocks.size(), 4u);
  EXPECT_EQ(once.model.moments(), 9u);
  EXPECT_EQ(once.model.budget, again.model.budget);
  EXPECT_EQ(MustFind(once, 20).verdict->elapsed, MustFind(again, 20).verdict->elapsed);
  EXPECT_NE(once.model.budget, MakeRandomChain(8, 9).model.budget);
}

}  // namespace
}  // namespace memtide
