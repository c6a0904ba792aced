// Commits of ranks: a step is committed for all that are behind it.
#include <string>
#include <vector>

#include "daemon/engine/testing/ranks_harness.h"

namespace memtide {
namespace {

using RanksCommitsTest = RanksTest;

TEST_F(RanksCommitsTest, AStepIsCommittedWhenTheLastRankCommitsIt) {
  Step(1);
  const State before = ranks_[0].Read();
  for (Rank& rank : ranks_) {
    rank.FillGradient(2);
    const PartReply part = rank.Began(rank.Start(2, false));
    if (!part.made) rank.Make(part);
  }
  const CallId first = ranks_[0].Commit(2), second = ranks_[1].Commit(2);
  EXPECT_FALSE(node_.Answered(first) || node_.Answered(second));
  EXPECT_EQ(ranks_[2].Read(), before);
  const CallId third = ranks_[2].Commit(2);
  for (const CallId call : {first, second, third}) {
    EXPECT_TRUE(node_.ReplyTo(call).status.ok()) << node_.ReplyTo(call).status;
  }
  EXPECT_TRUE(node_.ReplyTo(ranks_[1].Commit(2)).status.ok()) << "a lost reply";
}

TEST_F(RanksCommitsTest, ARankThatIsLateTakesWhatIsCommittedAlready) {
  const std::vector<State> expected = Expected(SmallHost());
  Rank& first = ranks_[0];
  first.FillGradient(1);
  first.Make(first.Began(first.Start(1, true)));
  EXPECT_TRUE(node_.ReplyTo(first.Commit(1)).status.ok()) << "it shares nothing yet";
  first.FillGradient(2);
  first.Make(first.Began(first.Start(2, false)));
  for (const uint32_t i : {1, 2}) {
    ranks_[i].FillGradient(1);
    EXPECT_TRUE(ranks_[i].Began(ranks_[i].Start(1, true)).made);
    const CallId commit = ranks_[i].Commit(1);
    EXPECT_TRUE(node_.ReplyTo(commit).status.ok()) << node_.ReplyTo(commit).status;
    EXPECT_EQ(first.Read(), expected[1]);
  }
  for (const uint32_t i : {1, 2}) EXPECT_EQ(ranks_[i].Read(), expected[1]);
  for (const uint32_t i : {1, 2}) {
    ranks_[i].FillGradient(2);
    EXPECT_TRUE(ranks_[i].Began(ranks_[i].Start(2, false)).made);
  }
  Commit(2);
  for (Rank& rank : ranks_) EXPECT_EQ(rank.Read(), expected[2]);
  Step(3);
  for (Rank& rank : ranks_) EXPECT_EQ(rank.Read(), expected[3]);
}

TEST_F(RanksCommitsTest, WhatItsMakerHasChangedSinceIsNoResultAfterItsCommit) {
  Rank& first = ranks_[0];
  first.FillGradient(1);
  first.Make(first.Began(first.Start(1, true)));
  node_.Fill(first.session(), first.chunk(4), {42});
  ASSERT_TRUE(node_.ReplyTo(first.Commit(1)).status.ok());
  ranks_[1].FillGradient(1);
  EXPECT_FALSE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
}

TEST_F(RanksCommitsTest, ALateRankCommitsWhileOthersReadWhatItTakes) {
  Rank& first = ranks_[0];
  first.FillGradient(1);
  first.Make(first.Began(first.Start(1, true)));
  ASSERT_TRUE(node_.ReplyTo(first.Commit(1)).status.ok());
  node_.Fetch(first.session(), first.chunk(1), Tier::kHost, Access::kRead);
  ranks_[1].FillGradient(1);
  EXPECT_TRUE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
  const CallId commit = ranks_[1].Commit(1);
  EXPECT_TRUE(node_.ReplyTo(commit).status.ok()) << node_.ReplyTo(commit).status;
  EXPECT_EQ(ranks_[1].Read(), Expected(SmallHost())[1]);
}

// The writer's lease for reading stays on what is the late rank's alone by then.
TEST_F(RanksCommitsTest, ALateRankCommitsAfterAnotherHasReadAndWrittenWhatItTakes) {
  Rank& first = ranks_[0];
  first.FillGradient(1);
  first.Make(first.Began(first.Start(1, true)));
  ASSERT_TRUE(node_.ReplyTo(first.Commit(1)).status.ok());
  ranks_[1].FillGradient(1);
  EXPECT_TRUE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
  node_.Fetch(first.session(), first.chunk(1), Tier::kHost, Access::kRead);
  node_.Fetch(first.session(), first.chunk(1), Tier::kHost, Access::kWrite);
  const CallId commit = ranks_[1].Commit(1);
  EXPECT_TRUE(node_.ReplyTo(commit).status.ok()) << node_.ReplyTo(commit).status;
  EXPECT_EQ(ranks_[1].Read(), Expected(SmallHost())[1]);
}

TEST_F(RanksCommitsTest, ACommitThatWaitsEndsWithTheNextOneOfItsSession) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)));
  EXPECT_TRUE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
  const CallId waits = ranks_[0].Commit(1);
  // Its shadow chunks get contents of their own, so that it shares nothing any more.
  for (size_t i = 4; i < 7; ++i) node_.Fill(ranks_[0].session(), ranks_[0].chunk(i), {42});
  const CallId alone = ranks_[0].Commit(1);
  EXPECT_TRUE(node_.ReplyTo(alone).status.ok()) << node_.ReplyTo(alone).status;
  EXPECT_FALSE(node_.ReplyTo(waits).status.ok());
  EXPECT_EQ(ranks_[0].Read()[0][0], 42);
}

TEST_F(RanksCommitsTest, ACommitWaitsForNoRankThatDies) {
  Step(1);
  for (Rank& rank : ranks_) {
    rank.FillGradient(2);
    const PartReply part = rank.Began(rank.Start(2, false));
    if (!part.made) rank.Make(part);
  }
  const CallId first = ranks_[0].Commit(2), second = ranks_[1].Commit(2);
  EXPECT_FALSE(node_.Answered(first));
  ranks_[2].Dies();
  for (const CallId call : {first, second}) {
    EXPECT_TRUE(node_.ReplyTo(call).status.ok()) << node_.ReplyTo(call).status;
  }
  EXPECT_EQ(ranks_[0].Read(), ranks_[1].Read());
  EXPECT_EQ(ranks_[0].Read(), Expected(SmallHost())[2]);
}

TEST_F(RanksCommitsTest, ACommitWaitsForNoRankThatSharesNoMore) {
  for (const uint32_t i : {0, 1}) ranks_[i].FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)));
  EXPECT_TRUE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
  const CallId commit = ranks_[0].Commit(1);
  EXPECT_FALSE(node_.Answered(commit));
  for (size_t i = 4; i < 7; ++i) node_.Free(ranks_[1].session(), ranks_[1].chunk(i));
  ASSERT_TRUE(node_.Answered(commit));
  EXPECT_TRUE(node_.ReplyTo(commit).status.ok()) << node_.ReplyTo(commit).status;
}

TEST_F(RanksCommitsTest, ACommitGoesOnWithoutARankThatDoesNotCome) {
  const std::vector<State> expected = Expected(SmallHost());
  const auto make = [this](uint64_t step) {
    for (Rank& rank : ranks_) {
      rank.FillGradient(step);
      const PartReply part = rank.Began(rank.Start(step, false));
      if (!part.made) rank.Make(part);
    }
  };
  Step(1);
  make(2);
  const CallId first = ranks_[0].Commit(2), second = ranks_[1].Commit(2);
  EXPECT_FALSE(node_.Answered(first) || node_.Answered(second));
  node_.FinishUntilAnswered(second);
  for (const CallId call : {first, second}) EXPECT_TRUE(node_.ReplyTo(call).status.ok());
  EXPECT_EQ(ranks_[0].Read(), expected[2]);
  EXPECT_EQ(ranks_[1].Read(), expected[2]);
  EXPECT_EQ(ranks_[2].Read(), expected[1]);
  const CallId third = ranks_[2].Commit(2);
  EXPECT_TRUE(node_.ReplyTo(third).status.ok()) << node_.ReplyTo(third).status;
  EXPECT_EQ(ranks_[2].Read(), expected[2]);
  // The ranks do not wait for it a second time.
  make(3);
  for (const uint32_t i : {0, 1}) ranks_[i].Commit(3);
  for (const uint32_t i : {0, 1}) EXPECT_EQ(ranks_[i].Read(), expected[3]);
  EXPECT_EQ(ranks_[2].Read(), expected[2]);
  const CallId late = ranks_[2].Commit(3);
  EXPECT_TRUE(node_.ReplyTo(late).status.ok());
  EXPECT_EQ(ranks_[2].Read(), expected[3]);
}

TEST_F(RanksCommitsTest, ARankCommitsWhatItHasAloneAtOnce) {
  Step(1);
  const SessionId session = ranks_[0].session();
  const std::vector<ChunkId> own = node_.Allocate(session, 2);
  node_.Fill(session, own[1], {42});
  const CommitCall call{node_.Call(), session, 2, {own[0]}, {own[1]}};
  node_.Post(call);
  ASSERT_TRUE(node_.Answered(call.call)) << "no other rank has it";
  EXPECT_EQ(node_.Read(session, own[0], kTrainedElements)[0], 42);
}

TEST_F(RanksCommitsTest, ARankCommitsNoChunkOfAnother) {
  Step(1);
  const State before = ranks_[0].Read();
  for (const uint32_t i : {1, 2}) {
    CommitCall call;
    call.call = node_.Call();
    call.session = ranks_[i].session();
    call.step = 2;
    call.chunks = {ranks_[0].chunk(1)};
    call.shadows = {ranks_[0].chunk(4)};
    node_.Post(call);
    EXPECT_EQ(node_.ReplyTo(call.call).status.code(), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(ranks_[0].Read(), before);
}

}  // namespace
}  // namespace memtide
