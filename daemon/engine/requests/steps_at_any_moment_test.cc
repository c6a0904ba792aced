// Whatever dies or fails, at any I/O of a step, the job is at a step or at the one before, and to
// make a step again gives the same bits.
#include "daemon/engine/testing/step_training.h"

namespace memtide {
namespace {

struct StepCase {
  const char* name;
  EngineOptions options;
};

class StepsAtAnyMomentTest : public testing::TestWithParam<StepCase> {};

// A client dies at every I/O of a step; another one finds the job at the step before, or at this
// one, and goes on to the same end.
TEST_P(StepsAtAnyMomentTest, DeathLeavesAWholeStep) {
  const std::vector<State> expected = Expected(GetParam().options);
  bool died_in_time = true;
  for (int at = 0; died_in_time; ++at) {
    SCOPED_TRACE(at);
    EngineByteHarness node(GetParam().options);
    SessionId session = node.Open("job", std::chrono::hours(1));
    StepTraining training(&node, session);
    training.Step(1);
    training.FillGradient(2);
    training.Displace();
    const CallId step = training.StartStep();
    for (int i = 0; i < at && !node.Answered(step); ++i) node.Advance();
    died_in_time = !node.Answered(step);
    if (!died_in_time) training.Commit(2);
    node.Post(ClientGone{session});
    OpenReply opened;
    session = node.Open("job", std::chrono::hours(1), &opened);
    training.GoOnIn(session);
    ASSERT_EQ(opened.committed_step, died_in_time ? 1u : 2u);
    ASSERT_EQ(training.Read(), expected[opened.committed_step]);
    for (uint64_t next = opened.committed_step + 1; next <= kSteps; ++next) training.Step(next);
    ASSERT_EQ(training.Read(), expected[kSteps]);
  }
}

// The daemon dies at every I/O of a step; the next one finds the job at the step before, or at this
// one, whatever of what was in flight still happened, and goes on to the same end.
TEST_P(StepsAtAnyMomentTest, TheDaemonsDeathLeavesAWholeStep) {
  EngineOptions options = GetParam().options;
  options.persistent_jobs = true;
  const std::vector<State> expected = Expected(options);
  bool died_in_time = true;
  for (uint32_t at = 0; died_in_time; ++at) {
    for (const uint32_t torn : {0u, 1u, 2u, 1000003u * (at + 1)}) {
      SCOPED_TRACE(testing::Message() << at << " of " << torn);
      EngineByteHarness node(options);
      StepTraining training(&node, node.Open("job", std::chrono::hours(1)));
      training.Step(1);
      training.FillGradient(2);
      training.Displace();
      const CallId step = training.StartStep();
      for (uint32_t i = 0; i < at && !node.Answered(step); ++i) node.Advance();
      died_in_time = !node.Answered(step);
      if (!died_in_time) training.Commit(2);
      ASSERT_TRUE(node.DaemonDies(torn).empty());
      OpenReply opened;
      training.GoOnIn(node.Open("job", std::chrono::hours(1), &opened));
      ASSERT_EQ(opened.committed_step, died_in_time ? 1u : 2u);
      ASSERT_EQ(opened.manifest, "step " + std::to_string(opened.committed_step));
      ASSERT_EQ(training.Read(), expected[opened.committed_step]);
      for (uint64_t next = opened.committed_step + 1; next <= kSteps; ++next) training.Step(next);
      ASSERT_EQ(training.Read(), expected[kSteps]);
    }
  }
}

// Every I/O of a step fails once; the step fails or not, and made again it is the same.
TEST_P(StepsAtAnyMomentTest, FailureLeavesAWholeStep) {
  const std::vector<State> expected = Expected(GetParam().options);
  bool failed_in_time = true;
  for (int at = 0; failed_in_time; ++at) {
    SCOPED_TRACE(at);
    EngineByteHarness node(GetParam().options);
    StepTraining training(&node, node.Open("job", std::chrono::hours(1)));
    training.Step(1);
    training.FillGradient(2);
    training.Displace();
    const CallId step = training.StartStep(std::chrono::seconds(5));
    int finished = 0;
    failed_in_time = false;
    while (!node.Answered(step)) {
      if (node.in_flight() > 0 && finished++ == at) {
        failed_in_time = true;
        node.FinishOne(absl::DataLossError("the disk lies"));
      } else {
        node.Advance();
      }
    }
    ASSERT_EQ(training.Read(), expected[1]);
    for (uint64_t next = 2; next <= kSteps; ++next) training.Step(next);
    ASSERT_EQ(training.Read(), expected[kSteps]);
  }
}

// So does one that fails for good: the step is undone with a clear error, and training can go on.
TEST_P(StepsAtAnyMomentTest, ADiskThatFailsForAWhileUndoesTheStep) {
  const std::vector<State> expected = Expected(GetParam().options);
  EngineByteHarness node(GetParam().options);
  StepTraining training(&node, node.Open("job", std::chrono::hours(1)));
  training.Step(1);
  training.FillGradient(2);
  training.Displace();
  const CallId step = training.StartStep(std::chrono::seconds(1));
  for (int i = 0; i < 1000 && !node.Answered(step); ++i) {
    if (node.in_flight() > 0) node.FinishOne(absl::DataLossError("the disk is broken"));
    node.Advance();
  }
  ASSERT_TRUE(node.Answered(step));
  ASSERT_EQ(training.Read(), expected[1]);
  for (uint64_t next = 2; next <= kSteps; ++next) training.Step(next);
  ASSERT_EQ(training.Read(), expected[kSteps]);
  EXPECT_EQ(node.emptied() > 0, !GetParam().options.host_reserve.IsZero());
}

INSTANTIATE_TEST_SUITE_P(Nodes, StepsAtAnyMomentTest,
                         testing::Values(StepCase{"HostAndSsd", SmallHost()},
                                         StepCase{"DeviceHostAndSsd", WithDevice()},
                                         StepCase{"ShortOfMemory", Squeezed()}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace memtide
