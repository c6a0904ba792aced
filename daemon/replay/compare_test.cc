#include "daemon/replay/compare.h"

#include "daemon/replay/report.h"
#include "daemon/replay/testing/trace_builder.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

AccessSequence Loop() {
  absl::StatusOr<AccessSequence> sequence =
      ToAccessSequence(BuildTrace(std::vector<std::string>(62, "ar br cr dr er fr")));
  EXPECT_TRUE(sequence.ok()) << sequence.status();
  return *std::move(sequence);
}

ReplayOptions FourAndSix() {
  ReplayOptions options;
  options.device_slots = 4;
  options.host_slots = 6;
  return options;
}

TEST(CompareTest, EveryPolicyHasAName) {
  for (const std::string& name : PolicyNames()) {
    const absl::StatusOr<absl::optional<Policy>> policy = ParsePolicy(name);
    ASSERT_TRUE(policy.ok()) << policy.status();
    EXPECT_EQ(policy->has_value(), name != kOptimum);
  }
  const absl::Status unknown = ParsePolicy("best").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.message().find("there are lru, "), std::string::npos) << unknown;
}

TEST(CompareTest, CostsAreThoseOfAnIterationAndNoPolicyBeatsTheOptimum) {
  const absl::StatusOr<std::vector<Outcome>> outcomes =
      Compare(Loop(), FourAndSix(), PolicyNames());
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  ASSERT_EQ(outcomes->size(), PolicyNames().size());
  for (const Outcome& outcome : *outcomes) {
    EXPECT_GE(outcome.against_optimum, 0.98) << outcome.policy;
    EXPECT_EQ(outcome.stalled.has_value(), outcome.policy != kOptimum) << outcome.policy;
  }
  const Outcome& lru = outcomes->front();
  EXPECT_EQ(lru.policy, "lru");
  EXPECT_EQ(lru.moved.to_device, MiB(12));
  // Four chunks are not leased; each can stay for half of the time.
  EXPECT_NEAR(lru.against_optimum, 2, 0.02);
}

TEST(CompareTest, WhereNothingMovesAllAreAsGoodAsTheOptimum) {
  ReplayOptions all = FourAndSix();
  all.device_slots = 6;
  const absl::StatusOr<std::vector<Outcome>> outcomes = Compare(Loop(), all, {"lru"});
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_EQ(outcomes->front().moved.Total(), Bytes(0));
  EXPECT_EQ(outcomes->front().against_optimum, 1);
}

TEST(ReportTest, HasALineForEachPolicyAndNoTimesForTheOptimum) {
  Comparison comparison;
  comparison.trace = "a \"loop\"";
  comparison.chunk_size = MiB(2);
  comparison.chunks = 6;
  comparison.device_slots = 4;
  comparison.outcomes = *Compare(Loop(), FourAndSix(), {"lru", "optimum"});
  const std::string table = AsTable(comparison);
  EXPECT_NE(table.find("6 chunks of 2 MiB, 4 slots on the device"), std::string::npos) << table;
  EXPECT_NE(table.find("\n  lru              12.0"), std::string::npos) << table;
  const std::string json = AsJson({comparison});
  EXPECT_NE(json.find(R"("trace": "a \"loop\"")"), std::string::npos) << json;
  EXPECT_EQ(json.find("stalled_seconds"), json.rfind("stalled_seconds")) << json;
}

}  // namespace
}  // namespace memtide
