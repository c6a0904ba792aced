#include "daemon/replay/activations/plan_report.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "daemon/replay/activations/testing/three_blocks.h"

namespace memtide {
namespace {

using testing::HasSubstr;

Found SomePlan() {
  Found found;
  found.candidate.blocks = {
      {kMove, kAgain, kAgain}, {kMove, kAgain, kAgain}, {kKeep, kKeep, kKeep}};
  found.verdict.emplace();
  found.verdict->division = {12, Chunks(3)};
  found.verdict->elapsed = std::chrono::milliseconds(123);
  found.forced = {{"all kept", {}, absl::nullopt}};
  found.least_budget = Chunks(4);
  return found;
}

TEST(PlanReportTest, ThePlanSaysWhereAMoveGoesAndNothingForWhatABlockDoesNotSave) {
  ActivationModel model = ThreeBlocks(Chunks(15));
  model.blocks[1].bytes[1] = Bytes(0);
  const v1::ActivationPlan plan = ToProto(model, SomePlan(), true);
  ASSERT_EQ(plan.blocks_size(), 3);
  EXPECT_EQ(plan.blocks(0).input(), v1::ACTIVATION_CHOICE_MOVE_TO_HOST);
  EXPECT_EQ(plan.blocks(0).attention(), v1::ACTIVATION_CHOICE_RECOMPUTE);
  EXPECT_EQ(plan.blocks(1).attention(), v1::ACTIVATION_CHOICE_UNSPECIFIED);
  EXPECT_EQ(plan.blocks(2).rest(), v1::ACTIVATION_CHOICE_KEEP);
  EXPECT_EQ(plan.others(), v1::ACTIVATION_CHOICE_UNSPECIFIED);
  EXPECT_EQ(plan.slots(), 12u);
  EXPECT_EQ(plan.least_budget_bytes(), 0u);
  EXPECT_EQ(ToProto(model, SomePlan(), false).blocks(0).input(), v1::ACTIVATION_CHOICE_MOVE_TO_SSD);
}

TEST(PlanReportTest, JsonIsReadBackUnchanged) {
  const v1::ActivationPlan plan = ToProto(ThreeBlocks(Chunks(15)), SomePlan(), true);
  v1::ActivationPlan read;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(AsJson(plan), &read).ok());
  EXPECT_EQ(read.SerializeAsString(), plan.SerializeAsString());
  EXPECT_THAT(AsJson(plan), HasSubstr("\"allowance_bytes\": \"6291456\""));
}

TEST(PlanReportTest, TheTableJoinsNeighborsThatAreTreatedAlike) {
  const ActivationModel model = ThreeBlocks(Chunks(15));
  const std::string table = AsTable(model, ToProto(model, SomePlan(), true));
  EXPECT_THAT(table, HasSubstr("  0 to 1              to host    recompute  recompute"));
  EXPECT_THAT(table, HasSubstr("  2                   keep       keep       keep"));
  EXPECT_THAT(table, HasSubstr("  this plan          0.1230 s"));
  EXPECT_THAT(table, HasSubstr("  all kept        does not fit"));
}

TEST(PlanReportTest, WithoutAPlanTheLeastBudgetIsNamed) {
  const ActivationModel model = ThreeBlocks(Chunks(1));
  Found found = SomePlan();
  found.verdict.reset();
  const v1::ActivationPlan plan = ToProto(model, found, true);
  EXPECT_EQ(plan.least_budget_bytes(), Chunks(4).count());
  EXPECT_EQ(AsTable(model, plan), "no plan fits 2 MiB; 8 MiB would do\n");
}

}  // namespace
}  // namespace memtide
