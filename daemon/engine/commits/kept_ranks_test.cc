// Ranks of a job with a time to live: what each leaves is its next session's, and they commit
// together.
#include <algorithm>
#include <string>
#include <vector>

#include "daemon/engine/testing/ranks_harness.h"

namespace memtide {
namespace {

constexpr Duration kKeptFor = std::chrono::hours(1);

class KeptRanksTest : public RanksTest {
 protected:
  KeptRanksTest() : RanksTest(kKeptFor) {}

  void AllDie() {
    for (Rank& rank : ranks_) rank.Dies();
  }
  // New sessions of all ranks, which all go on from this step.
  void AllOpen(uint64_t step) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const OpenReply opened = ranks_[i].Open();
      EXPECT_EQ(opened.committed_step, step);
      const std::string of_step = " step " + std::to_string(step);
      EXPECT_EQ(opened.manifest, step == 0 ? "" : "rank " + std::to_string(i) + of_step);
    }
  }
  void ExpectAll(const State& state) {
    for (Rank& rank : ranks_) EXPECT_EQ(rank.Read(), state);
  }
  // Chunks of the job, each counted once however many ranks share it.
  uint32_t Chunks() { return Inspect().chunk_count; }

  const std::vector<State> expected_ = Expected(SmallHost());
};

TEST_F(KeptRanksTest, RanksThatShareNothingCommitAllOrNone) {
  for (Rank& rank : ranks_) {
    rank.FillGradient(1);
    // Each has other digests.
    const PartReply part = rank.Began(rank.Start(1 + 10 * (&rank - &ranks_[0]), true));
    ASSERT_FALSE(part.made);
    rank.Make(part);
  }
  const CallId first = ranks_[0].Commit(1), second = ranks_[1].Commit(1);
  EXPECT_FALSE(node_.Answered(first) || node_.Answered(second));
  EXPECT_EQ(ranks_[0].Read(), expected_[0]);
  const CallId third = ranks_[2].Commit(1);
  for (const CallId call : {first, second, third}) EXPECT_TRUE(node_.ReplyTo(call).status.ok());
  ExpectAll(expected_[1]);
}

TEST_F(KeptRanksTest, TheNextSessionOfARankGoesOnWithWhatItLeft) {
  Step(1);
  AllDie();
  AllOpen(1);
  ExpectAll(expected_[1]);
  Step(2);
  ExpectAll(expected_[2]);
  AllDie();
  AllOpen(2);
  ExpectAll(expected_[2]);
}

TEST_F(KeptRanksTest, ARankThatDiesBeforeACommitLeavesAllAtTheStepBefore) {
  Step(1);
  MakeParts(2, false);
  const CallId first = ranks_[0].Commit(2), second = ranks_[1].Commit(2);
  ranks_[2].Dies();
  for (const CallId call : {first, second}) {
    ASSERT_TRUE(node_.Answered(call));
    EXPECT_EQ(node_.ReplyTo(call).status.code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(node_.ReplyTo(ranks_[0].Commit(2)).status.code(), absl::StatusCode::kFailedPrecondition)
      << "its next try does not wait either";
  ranks_[0].Dies();
  ranks_[1].Dies();
  AllOpen(1);
  ExpectAll(expected_[1]);
  Step(2);
  ExpectAll(expected_[2]);
}

TEST_F(KeptRanksTest, ARankThatOpensBeforeAnEarlierOneHasEndedCommitsWithTheNextOne) {
  Step(1);
  ranks_[0].Dies();
  ranks_[1].Dies();
  ranks_[0].Open();
  ranks_[2].Dies();  // Its end is noticed late.
  ranks_[1].Open();
  ranks_[2].Open();
  Step(2);
  ExpectAll(expected_[2]);
}

TEST_F(KeptRanksTest, ARankDoesNotCommitWithTheNextSessionOfOneThatHasDied) {
  Step(1);
  ranks_[2].Dies();
  ranks_[2].Open();
  MakeParts(2, false);
  ranks_[2].Commit(2);
  EXPECT_EQ(node_.ReplyTo(ranks_[0].Commit(2)).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(KeptRanksTest, ARankThatDiesAfterACommitLeavesAllAtThatStep) {
  Step(1);
  MakeParts(2, false);
  Commit(2);
  AllDie();
  AllOpen(2);
  ExpectAll(expected_[2]);
  Step(3);
  ExpectAll(expected_[3]);
}

TEST_F(KeptRanksTest, WhatRanksShareIsKeptOnceAlsoAfterTheirDeathAndTheDaemons) {
  Step(1);
  const uint32_t chunks = Chunks();
  EXPECT_LT(chunks, kRanks * 7);
  AllDie();
  EXPECT_EQ(Chunks(), chunks);
  EXPECT_TRUE(node_.DaemonDies(0).empty());
  EXPECT_EQ(Chunks(), chunks);
  AllOpen(1);
  EXPECT_EQ(Chunks(), chunks);
  ExpectAll(expected_[1]);
  // No record says that a step has made them all, so that digests are needed again.
  Step(2, true);
  ExpectAll(expected_[2]);
  EXPECT_LE(Chunks(), chunks);
  Step(3);
  ExpectAll(expected_[3]);
}

TEST_F(KeptRanksTest, ARankThatWritesWhatIsSharedSpoilsNoOther) {
  Step(1);
  AllDie();
  EXPECT_TRUE(node_.DaemonDies(0).empty());
  ranks_[1].Open();
  node_.Fill(ranks_[1].session(), ranks_[1].chunk(1), {42});
  ranks_[1].Dies();
  EXPECT_TRUE(node_.DaemonDies(0).empty());
  AllOpen(1);
  EXPECT_EQ(ranks_[0].Read(), expected_[1]);
  EXPECT_EQ(ranks_[1].Read()[0][0], 42);
  EXPECT_EQ(ranks_[2].Read(), expected_[1]);
}

// The moments 0 to 2 are before the parts of a rank are made, and 3 to 6 before its commit.
class KeptRanksMomentTest : public KeptRanksTest, public testing::WithParamInterface<uint32_t> {};

TEST_P(KeptRanksMomentTest, TheDaemonsDeathLeavesAllRanksAtOneStep) {
  const uint32_t moment = GetParam();
  Step(1);
  for (uint32_t i = 0; i < std::min(moment, kRanks); ++i) {
    ranks_[i].FillGradient(2);
    const PartReply part = ranks_[i].Began(ranks_[i].Start(2, false));
    if (!part.made) ranks_[i].Make(part);
  }
  for (uint32_t i = 0; i + kRanks < moment; ++i) ranks_[i].Commit(2);
  EXPECT_TRUE(node_.DaemonDies(1).empty());
  const uint64_t step = moment == 2 * kRanks ? 2 : 1;
  AllOpen(step);
  ExpectAll(expected_[step]);
  Step(step + 1, true);
  ExpectAll(expected_[step + 1]);
}

INSTANTIATE_TEST_SUITE_P(AllMoments, KeptRanksMomentTest, testing::Range(0u, 2 * kRanks + 1));

TEST_F(KeptRanksTest, NoRankUsesTheChunksOfAnother) {
  Step(1);
  AllDie();
  AllOpen(1);
  EXPECT_EQ(node_.Fetch(ranks_[0].session(), ranks_[1].chunk(1), Tier::kHost, Access::kRead)
                .status.code(),
            absl::StatusCode::kNotFound);
  node_.Free(ranks_[0].session(), ranks_[1].chunk(1));
  EXPECT_EQ(ranks_[1].Read(), expected_[1]);
}

TEST_F(KeptRanksTest, WhatARankFreesStaysWithTheOthers) {
  Step(1);
  AllDie();
  EXPECT_TRUE(node_.DaemonDies(0).empty());
  AllOpen(1);
  for (size_t i = 0; i < 7; ++i) node_.Free(ranks_[0].session(), ranks_[0].chunk(i));
  EXPECT_TRUE(node_.DaemonDies(0).empty());
  AllOpen(1);
  EXPECT_EQ(ranks_[1].Read(), expected_[1]);
  EXPECT_EQ(ranks_[2].Read(), expected_[1]);
  EXPECT_EQ(node_.Fetch(ranks_[0].session(), ranks_[0].chunk(1), Tier::kHost, Access::kRead)
                .status.code(),
            absl::StatusCode::kNotFound);
}

TEST_F(KeptRanksTest, RanksWaitNoLongerThanAnyCallForOneThatDoesNotCommit) {
  Step(1);
  MakeParts(2, false);
  const CallId first = ranks_[0].Commit(2), second = ranks_[1].Commit(2);
  const auto wait = [this](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      for (int tenth = 0; tenth < 10; ++tenth) node_.Advance();
      for (Rank& rank : ranks_) node_.Post(RenewCall{node_.Call(), rank.session()});
    }
  };
  wait(595);
  EXPECT_FALSE(node_.Answered(first));
  wait(10);
  EXPECT_EQ(node_.ReplyTo(first).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(node_.ReplyTo(second).status.code(), absl::StatusCode::kDeadlineExceeded);
  ExpectAll(expected_[1]);
}

TEST_F(KeptRanksTest, ACommitOfOneRankAloneWaitsForNone) {
  Step(1);
  CommitCall alone{node_.Call(), ranks_[0].session(), 2};
  alone.manifest = "alone";
  node_.Post(alone);
  EXPECT_TRUE(node_.ReplyTo(alone.call).status.ok());
  MakeParts(2, false);
  const CallId first = ranks_[0].Commit(3), second = ranks_[1].Commit(2),
               third = ranks_[2].Commit(2);
  for (const CallId call : {first, second, third}) {
    EXPECT_TRUE(node_.ReplyTo(call).status.ok()) << node_.ReplyTo(call).status;
  }
  ExpectAll(expected_[2]);
}

TEST_F(KeptRanksTest, TransientChunksEndWithTheSessionOfTheirRank) {
  AllocateCall allocate{node_.Call(), ranks_[0].session(), 900, 2, ChunkKind::kActivation};
  allocate.undefined = allocate.transient = true;
  node_.Post(allocate);
  const uint32_t chunks = Chunks();
  ranks_[1].Dies();
  EXPECT_EQ(Chunks(), chunks);
  ranks_[0].Dies();
  EXPECT_EQ(Chunks(), chunks - 2);
}

TEST_F(KeptRanksTest, ARankHasOneSessionAtATime) {
  OpenCall open{node_.Call(), SessionId(900)};
  open.job_name = "training";
  open.chunk_size = EngineByteHarness::kChunk;
  open.rank = 1;
  open.ranks = kRanks;
  node_.Post(ClientConnected{open.session, 1000, 1});
  node_.Post(open);
  EXPECT_EQ(node_.ReplyTo(open.call).status.code(), absl::StatusCode::kFailedPrecondition);
  ranks_[1].Dies();
  open.call = node_.Call();
  open.ranks = kRanks + 1;
  node_.Post(open);
  EXPECT_EQ(node_.ReplyTo(open.call).status.code(), absl::StatusCode::kFailedPrecondition);
  open.call = node_.Call();
  open.ranks = kRanks;
  node_.Post(open);
  EXPECT_TRUE(node_.ReplyTo(open.call).status.ok());
}

}  // namespace
}  // namespace memtide
