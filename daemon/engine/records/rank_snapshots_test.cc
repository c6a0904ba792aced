// Durable jobs of ranks: after the machine has lost its power, all ranks are at one step, whole.
#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/engine/testing/ranks_harness.h"

namespace memtide {
namespace {

// More than a commit of all ranks, and its snapshot, have I/O.
constexpr uint32_t kMoments = 40;

class DurableRanksTest : public RanksTest {
 protected:
  explicit DurableRanksTest(uint32_t every = 1) : RanksTest(std::chrono::hours(1), every) {}

  // New sessions of all ranks. Returns the step that all of them go on from.
  uint64_t AllOpen() {
    std::set<uint64_t> steps;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const OpenReply opened = ranks_[i].Open();
      steps.insert(opened.committed_step);
      EXPECT_EQ(opened.manifest,
                "rank " + std::to_string(i) + " step " + std::to_string(opened.committed_step));
    }
    EXPECT_EQ(steps.size(), 1u);
    return *steps.begin();
  }
  void ExpectAll(const State& state) {
    for (Rank& rank : ranks_) EXPECT_EQ(rank.Read(), state);
  }
  // As MakeParts(), but each rank computes its part, because their digests differ.
  void MakeUnlikeParts(uint64_t step) {
    for (uint64_t i = 0; i < kRanks; ++i) {
      ranks_[i].FillGradient(step);
      const PartReply part = ranks_[i].Began(ranks_[i].Start(step + 10 * i, true));
      ASSERT_FALSE(part.made);
      ranks_[i].Make(part);
    }
  }

  const std::vector<State> expected_ = Expected(SmallHost());
};

// When the power is cut, what is there of writes then (EngineByteHarness::PowerCut), and whether
// ranks share what they have.
class DurableRanksMomentTest
    : public DurableRanksTest,
      public testing::WithParamInterface<std::tuple<uint32_t, uint32_t, bool>> {};

TEST_F(DurableRanksTest, WhatShadowChunksKeepIsInTheSnapshot) {
  Step(1);
  MakeParts(2, false);
  CallId last;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    std::vector<ChunkId> chunks;
    for (size_t i = 0; i < 7; ++i) chunks.push_back(ranks_[rank].chunk(i));
    last = node_.Call();
    CommitCall call = CommitOf(last, ranks_[rank].session(), chunks, 2);
    call.with_all_ranks = call.keep_old_content = true;
    call.manifest = "rank " + std::to_string(rank) + " step 2";
    node_.Post(call);
  }
  node_.FinishUntilAnswered(last);
  ASSERT_TRUE(node_.ReplyTo(last).status.ok()) << node_.ReplyTo(last).status;
  EXPECT_TRUE(node_.PowerCut(0).empty());
  EXPECT_EQ(AllOpen(), 2u);
  ExpectAll(expected_[2]);
  for (const Rank& rank : ranks_) {
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(node_.Read(rank.session(), rank.chunk(4 + i), kTrainedElements), expected_[1][i]);
    }
  }
}

TEST_P(DurableRanksMomentTest, APowerCutLeavesAllRanksAtOneWholeStep) {
  const auto [moment, torn, alike] = GetParam();
  for (const uint64_t step : {1, 2}) {
    if (alike) {
      MakeParts(step, step == 1);
    } else {
      MakeUnlikeParts(step);
    }
    if (step == 1) Commit(1);
  }
  std::vector<CallId> commits;
  for (Rank& rank : ranks_) commits.push_back(rank.Commit(2));
  const auto answered = [&] {
    return std::any_of(commits.begin(), commits.end(),
                       [this](CallId commit) { return node_.Answered(commit); });
  };
  for (uint32_t i = 0; i < moment && !answered(); ++i) node_.Advance();
  const bool was_answered = answered();
  EXPECT_TRUE(was_answered || moment < kMoments) << "there are more moments";
  EXPECT_TRUE(!was_answered || moment > 0) << "nothing is written";
  EXPECT_TRUE(node_.PowerCut(torn).empty());
  const uint64_t step = AllOpen();
  EXPECT_TRUE(step == 2 || (step == 1 && !was_answered)) << step;
  ExpectAll(expected_[step]);
  Step(step + 1, true);
  ExpectAll(expected_[step + 1]);
}

INSTANTIATE_TEST_SUITE_P(AllMoments, DurableRanksMomentTest,
                         testing::Combine(testing::Range(0u, kMoments + 1),
                                          testing::Values(0u, 1u, 2u, 1000003u), testing::Bool()));

TEST_F(DurableRanksTest, AStepThatARankHasNotCommittedIsNotThere) {
  Step(1);
  MakeParts(2, false);
  ranks_[0].Commit(2);
  ranks_[1].Commit(2);
  for (uint32_t i = 0; i < kMoments; ++i) node_.Advance();
  EXPECT_TRUE(node_.PowerCut(1).empty());
  EXPECT_EQ(AllOpen(), 1u);
  ExpectAll(expected_[1]);
}

TEST_F(DurableRanksTest, ARankThatEndsWhileItsStepIsSavedDoesNotHoldUpTheOthers) {
  Step(1);
  MakeParts(2, false);
  std::vector<CallId> commits;
  for (Rank& rank : ranks_) commits.push_back(rank.Commit(2));
  ranks_[1].Dies();
  EXPECT_EQ(node_.ReplyTo(commits[1]).status.code(), absl::StatusCode::kUnavailable);
  for (const int other : {0, 2}) {
    node_.FinishUntilAnswered(commits[other]);
    EXPECT_TRUE(node_.ReplyTo(commits[other]).status.ok());
  }
  EXPECT_TRUE(node_.PowerCut(0).empty());
  EXPECT_EQ(AllOpen(), 2u);
}

// Its ranks have no such names: the job is not restored, and its files stay.
TEST_F(DurableRanksTest, ASnapshotWithNamesThatNoRankCanHaveStays) {
  Step(1);
  Restore restore;
  restore.snapshots = {node_.saved().begin()->second};
  restore.snapshots[0].chunks.at(0).names = {{restore.snapshots[0].chunks[0].chunk, kRanks}};
  Engine engine(options_);
  std::vector<Effect> effects;
  engine.Handle(Instant(std::chrono::seconds(1)), restore, &effects);
  engine.CheckInvariants();
  size_t lost = 0;
  for (const Effect& effect : effects) {
    EXPECT_FALSE(std::holds_alternative<DropSnapshot>(effect));
    const auto* const one = std::get_if<JobLost>(&effect);
    if (one == nullptr) continue;
    EXPECT_TRUE(one->is_saved);
    EXPECT_EQ(one->why.code(), absl::StatusCode::kDataLoss);
    ++lost;
  }
  EXPECT_EQ(lost, 1u);
}

class EachSecondStepTest : public DurableRanksTest {
 protected:
  EachSecondStepTest() : DurableRanksTest(2) {}
};

TEST_F(EachSecondStepTest, TheLastDurableStepIsThatOfAllRanks) {
  for (const uint64_t step : {1, 2, 3}) Step(step, step == 1);
  ASSERT_EQ(node_.saved().size(), 1u);
  EXPECT_TRUE(node_.PowerCut(1).empty());
  EXPECT_EQ(AllOpen(), 2u);
  ExpectAll(expected_[2]);
}

}  // namespace
}  // namespace memtide
