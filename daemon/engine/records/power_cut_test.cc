// A durable job whose machine loses its power at any moment, or whose drive refuses writes: it is
// at the last step whose commit was answered, or, if one was not answered yet, at that one.
#include <string>
#include <vector>

#include "daemon/engine/testing/durable_node.h"
#include "daemon/engine/testing/step_training.h"

namespace memtide {
namespace {

struct Case {
  const char* name;
  EngineOptions options;
};

class PowerCutTest : public testing::TestWithParam<Case> {};

// The power is cut at every I/O of a step and of its commit, and each write that was not flushed is
// there, or rubbish, or not. The job goes on from a whole step to the same end.
TEST_P(PowerCutTest, APowerCutLeavesAWholeStep) {
  const std::vector<State> expected = Expected(GetParam().options);
  bool cut_in_time = true;
  for (uint32_t at = 0; cut_in_time; ++at) {
    for (const uint32_t torn : {0u, 1u, 2u, 1000003u * (at + 1)}) {
      SCOPED_TRACE(testing::Message() << at << " of " << torn);
      DurableNode node(GetParam().options);
      StepTraining training(&node, node.OpenDurable("job", 1));
      training.Step(1);
      training.FillGradient(2);
      training.Displace();
      uint32_t left = at;
      const CallId step = training.StartStep();
      for (; left > 0 && !node.Answered(step); --left) node.Advance();
      const bool stepped = node.Answered(step);
      bool committed = false;
      if (stepped) {
        const CallId commit = training.Commit(2);
        for (; left > 0 && !node.Answered(commit); --left) node.Advance();
        committed = node.Answered(commit);
      }
      cut_in_time = !committed;
      ASSERT_TRUE(node.PowerCut(torn).empty());
      OpenReply opened;
      training.GoOnIn(node.OpenDurable("job", 1, &opened));
      // A commit that was not answered may be on stable storage.
      ASSERT_GE(opened.committed_step, committed ? 2u : 1u);
      ASSERT_LE(opened.committed_step, stepped ? 2u : 1u);
      ASSERT_EQ(opened.manifest, "step " + std::to_string(opened.committed_step));
      ASSERT_EQ(training.Read(), expected[opened.committed_step]);
      for (uint64_t next = opened.committed_step + 1; next <= kSteps; ++next) training.Step(next);
      ASSERT_EQ(training.Read(), expected[kSteps]);
    }
  }
}

// Copies on SSD that a snapshot names stay where they are while later steps, which are not durable,
// and writes of the script go on.
TEST_P(PowerCutTest, WhatWasSavedStaysUntilTheNextSnapshot) {
  const std::vector<State> expected = Expected(GetParam().options);
  for (int at = 0; at < 60; at += 3) {
    SCOPED_TRACE(at);
    DurableNode node(GetParam().options);
    const SessionId session = node.OpenDurable("job", 2);
    StepTraining training(&node, session);
    training.Step(1);
    ASSERT_TRUE(node.saved().empty());
    training.Step(2);
    ASSERT_EQ(node.saved().size(), 1u);
    training.Step(3);
    for (size_t i = 1; i < 4; ++i) node.Fill(session, training.chunks()[i], {99, 98, 97});
    training.Displace();
    for (int i = 0; i < at; ++i) node.Advance();
    ASSERT_TRUE(node.PowerCut(1).empty());
    OpenReply opened;
    training.GoOnIn(node.OpenDurable("job", 2, &opened));
    ASSERT_EQ(opened.committed_step, 2u);
    ASSERT_EQ(training.Read(), expected[2]);
    training.Step(3);
    ASSERT_EQ(training.Read(), expected[3]);
  }
}

// The daemon ends, and the next one goes on from its records; then the power is cut.
TEST_P(PowerCutTest, TheNextDaemonKeepsWhatTheLastOneSaved) {
  EngineOptions options = GetParam().options;
  options.persistent_jobs = true;
  const std::vector<State> expected = Expected(options);
  DurableNode node(options);
  StepTraining training(&node, node.OpenDurable("job", 2));
  training.Step(1);
  training.Step(2);
  ASSERT_TRUE(node.DaemonDies(0).empty());
  OpenReply opened;
  const SessionId session = node.Open("job", std::chrono::hours(1), &opened);
  training.GoOnIn(session);
  ASSERT_EQ(opened.committed_step, 2u);
  training.Step(3);
  for (size_t i = 1; i < 4; ++i) node.Fill(session, training.chunks()[i], {99, 98, 97});
  training.Displace();
  ASSERT_TRUE(node.PowerCut(1).empty());
  training.GoOnIn(node.Open("job", std::chrono::hours(1), &opened));
  ASSERT_EQ(opened.committed_step, 2u);
  ASSERT_EQ(training.Read(), expected[2]);
  // Its records are new, and say what it has.
  training.Step(3);
  ASSERT_TRUE(node.DaemonDies(0).empty());
  training.GoOnIn(node.Open("job", std::chrono::hours(1), &opened));
  ASSERT_EQ(opened.committed_step, 3u);
  ASSERT_EQ(training.Read(), expected[3]);
}

// A step that is not durable moves the job to other slots before the daemon ends. By the records,
// those of the snapshot are free then, and once the next daemon lent and overwrote them.
TEST_P(PowerCutTest, TheNextDaemonLendsNoSlotThatTheLastOneSaved) {
  EngineOptions options = GetParam().options;
  options.persistent_jobs = true;
  const std::vector<State> expected = Expected(options);
  DurableNode node(options);
  StepTraining training(&node, node.OpenDurable("job", 2));
  for (uint64_t step = 1; step <= 3; ++step) training.Step(step);
  training.Displace();
  ASSERT_TRUE(node.DaemonDies(0).empty());
  OpenReply opened;
  const SessionId session = node.Open("job", std::chrono::hours(1), &opened);
  training.GoOnIn(session);
  ASSERT_EQ(opened.committed_step, 3u);
  for (const ChunkId chunk : node.Allocate(session, 2)) node.Fill(session, chunk, {99, 98, 97});
  training.Displace();
  ASSERT_TRUE(node.PowerCut(1).empty());
  training.GoOnIn(node.Open("job", std::chrono::hours(1), &opened));
  ASSERT_EQ(opened.committed_step, 2u);
  ASSERT_EQ(training.Read(), expected[2]);
  for (size_t i = 7; i < 13; ++i) {
    EXPECT_EQ(node.Read(training.session(), training.chunks()[i], 1), Values{1}) << i;
  }
}

// From any I/O of a commit on, a drive refuses all writes for some minutes. Once, each failure was
// tried again at once, for as long as the job was there, and the commit had no answer.
TEST_P(PowerCutTest, ADriveThatRefusesAllWritesIsTriedOnceASecondAtMostAndTheCommitSaysWhy) {
  const std::vector<State> expected = Expected(GetParam().options);
  for (uint32_t at = 0;; ++at) {
    SCOPED_TRACE(at);
    DurableNode node(GetParam().options);
    const SessionId session = node.OpenDurable("job", 1);
    StepTraining training(&node, session);
    training.Step(1);
    training.FillGradient(2);
    node.FinishUntilAnswered(training.StartStep());
    const CallId commit = training.Commit(2);
    for (uint32_t left = at; left > 0 && !node.Answered(commit); --left) node.Advance();
    if (node.Answered(commit) || node.SavesNow()) break;
    const Instant began = node.now();
    const auto refuse = [&](Duration time) {
      for (const Instant end = node.now() + time; node.now() < end && node.refused_.size() < 500;) {
        node.AdvanceRefused();
        if (node.in_flight() == 0) node.Post(RenewCall{node.Call(), session});
      }
    };
    refuse(std::chrono::seconds(3));
    ASSERT_TRUE(node.Answered(commit));
    if (node.ReplyTo(commit).status.ok()) {
      EXPECT_TRUE(node.refused_.empty()) << "the last write had ended";
      break;
    }
    const std::string message(node.ReplyTo(commit).status.message());
    EXPECT_EQ(message.rfind("step 2 is committed, but not on stable storage: chunk ", 0), 0u);
    EXPECT_EQ(message.substr(message.size() - 5), ": EIO");
    // The script calls again, and ends.
    const CallId again = training.Commit(2);
    refuse(std::chrono::seconds(3));
    EXPECT_EQ(node.ReplyTo(again).status.code(), absl::StatusCode::kInternal);
    node.Post(ClientGone{session});
    const size_t before = node.refused_.size();
    refuse(std::chrono::minutes(10));
    EXPECT_LE(node.refused_.size() - before, 20u);
    EXPECT_LE(node.MostInASecond(began + std::chrono::seconds(1)), 1u);
    // The drive works again.
    for (const Instant end = node.now() + std::chrono::minutes(2); node.now() < end;) {
      node.Advance();
    }
    ASSERT_EQ(node.saved().begin()->second.job.committed_step, 2u);
    node.PowerCut(0);
    training.GoOnIn(node.OpenDurable("job", 1));
    ASSERT_EQ(training.Read(), expected[2]);
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, PowerCutTest,
                         testing::Values(Case{"HostAndSsd", SmallHost()},
                                         Case{"DeviceHostAndSsd", WithDevice()},
                                         Case{"ShortOfMemory", Squeezed()}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace memtide
