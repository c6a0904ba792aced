// Parts of ranks: each is made once for all that want the same.
#include <string>
#include <vector>

#include "daemon/engine/testing/ranks_harness.h"

namespace memtide {
namespace {

using RanksPartsTest = RanksTest;

TEST_F(RanksPartsTest, APartIsMadeOnceForAll) {
  const std::vector<State> expected = Expected(SmallHost());
  for (uint64_t step = 1; step <= kSteps; ++step) {
    Step(step);
    for (Rank& rank : ranks_) EXPECT_EQ(rank.Read(), expected[step]) << step;
    EXPECT_EQ(Inspect().counters.step_parts, step);
    EXPECT_EQ(Inspect().counters.parts_shared, (kRanks - 1) * step);
  }
}

TEST_F(RanksPartsTest, ARankWaitsForThePartThatAnotherOneMakes) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  const PartReply first = ranks_[0].Began(ranks_[0].Start(1, true));
  const CallId second = ranks_[1].Start(1, true);
  EXPECT_FALSE(node_.Answered(second));
  ranks_[0].Make(first);
  EXPECT_TRUE(ranks_[1].Began(second).made);
}

// Once each was kept for as long as the job lived.
TEST_F(RanksPartsTest, APartWithoutResultsIsRefused) {
  StepCall call;
  call.call = node_.Call();
  call.session = ranks_[0].session();
  call.chunks = node_.Allocate(call.session, 2);
  call.reads = 2;
  call.part = 9;
  call.contents = PartContents{{7, 1}, {{1, 1}, {1, 2}}};
  node_.Post(call);
  EXPECT_EQ(node_.ReplyTo(call.call).status.code(), absl::StatusCode::kInvalidArgument);
}

// It would end with the session of one rank, while another one's fetch may wait for it.
TEST_F(RanksPartsTest, NoRankSharesATransientChunk) {
  AllocateCall allocate;
  allocate.call = node_.Call();
  allocate.session = ranks_[0].session();
  allocate.request_id = 1000;
  allocate.kind = ChunkKind::kActivation;
  allocate.count = 1;
  allocate.transient = true;
  node_.Post(allocate);
  node_.FinishUntilAnswered(allocate.call);
  StepCall call;
  call.call = node_.Call();
  call.session = ranks_[0].session();
  call.chunks = std::get<AllocateReply>(node_.ReplyTo(allocate.call).value).chunks;
  call.part = 9;
  call.contents = PartContents{{7, 1}, {}};
  node_.Post(call);
  const absl::Status status = node_.ReplyTo(call.call).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("is transient"));
}

TEST_F(RanksPartsTest, TheNextRankMakesAPartThatWasNotComputed) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Began(ranks_[0].Start(1, true));
  const CallId second = ranks_[1].Start(1, true), third = ranks_[2].Start(1, true);
  ranks_[0].End(/*computed=*/false);
  ranks_[1].Make(ranks_[1].Began(second));
  EXPECT_TRUE(ranks_[2].Began(third).made);
}

TEST_F(RanksPartsTest, TheNextRankMakesAPartWhoseMakerDies) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Began(ranks_[0].Start(1, true));
  const CallId second = ranks_[1].Start(1, true);
  ranks_[0].Dies();
  const PartReply part = ranks_[1].Began(second);
  EXPECT_FALSE(part.made);
  EXPECT_EQ(part.places.size(), 7u);
}

TEST_F(RanksPartsTest, DigestsAreAskedForWhereContentsAreNotShared) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  EXPECT_EQ(ranks_[0].Began(ranks_[0].Start(1, false)).unknown_reads,
            std::vector<uint32_t>({1, 2, 3}));
  Step(1);
  ranks_[0].FillGradient(2);
  EXPECT_TRUE(ranks_[0].Began(ranks_[0].Start(2, false)).unknown_reads.empty());
}

TEST_F(RanksPartsTest, ARankWhoseGradientDiffersHasAStateOfItsOwn) {
  EngineByteHarness alone_node(SmallHost());
  StepTraining alone(&alone_node, alone_node.Open("alone", Duration(0)));
  const std::vector<State> expected = Expected(SmallHost());
  alone.Step(1);
  Step(1);
  for (Rank& rank : ranks_) rank.FillGradient(2);
  ranks_[2].FillGradient(9);
  for (const uint32_t i : {0, 1}) {
    const PartReply part = ranks_[i].Began(ranks_[i].Start(2, false));
    EXPECT_EQ(part.made, i == 1);
    if (!part.made) ranks_[i].Make(part);
  }
  const PartReply other = ranks_[2].Began(ranks_[2].Start(2, false));
  ASSERT_TRUE(other.difference.has_value());
  EXPECT_EQ(other.difference->rank, 0u);
  EXPECT_FALSE(other.difference->work);
  EXPECT_EQ(other.difference->reads, std::vector<uint32_t>({0}));
  ranks_[2].Make(other);
  Commit(2);
  alone.FillGradient(9);
  const CallId made = alone.StartStep();
  alone_node.FinishUntilAnswered(made);
  alone.Commit(2);
  EXPECT_EQ(ranks_[2].Read(), alone.Read());
  for (const uint32_t i : {0, 1}) EXPECT_EQ(ranks_[i].Read(), expected[2]);
}

TEST_F(RanksPartsTest, ARankThatComputesSomethingElseIsToldSo) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)));
  const PartReply other = ranks_[1].Began(ranks_[1].Start(/*step=*/5, true));
  ASSERT_TRUE(other.difference.has_value());
  EXPECT_TRUE(other.difference->work);
  EXPECT_TRUE(other.difference->reads.empty());
}

TEST_F(RanksPartsTest, RanksThatDifferGoOnEachWithItsOwn) {
  Step(1);
  for (Rank& rank : ranks_) rank.FillGradient(2);
  ranks_[0].FillGradient(9);  // The first one to ask is the one that differs.
  for (Rank& rank : ranks_) {
    const PartReply part = rank.Began(rank.Start(2, false));
    if (!part.made) rank.Make(part);
  }
  Commit(2);
  for (uint64_t step = 3; step <= 4; ++step) {
    for (Rank& rank : ranks_) {
      rank.FillGradient(step);
      PartReply part = rank.Began(rank.Start(step, false));
      if (!part.unknown_reads.empty()) part = rank.Began(rank.Start(step, true));
      if (!part.made) rank.Make(part);
    }
    Commit(step);
  }
  EXPECT_EQ(ranks_[1].Read(), ranks_[2].Read());
  EXPECT_NE(ranks_[0].Read(), ranks_[1].Read());
}

TEST_F(RanksPartsTest, AResultThatItsMakerHasOverwrittenIsMadeAnew) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)));
  node_.Fill(ranks_[0].session(), ranks_[0].chunk(4), {42});
  EXPECT_FALSE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
}

TEST_F(RanksPartsTest, AResultThatItsMakerHasFreedIsMadeAnew) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)));
  node_.Free(ranks_[0].session(), ranks_[0].chunk(4));
  const PartReply part = ranks_[1].Began(ranks_[1].Start(1, true));
  EXPECT_FALSE(part.made);
  EXPECT_EQ(part.places.size(), 7u);
}

TEST_F(RanksPartsTest, AResultIsNotTakenIntoAChunkOfAnotherRank) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)));
  StepCall call;
  call.call = node_.Call();
  call.session = ranks_[1].session();
  for (size_t i = 0; i < 4; ++i) call.chunks.push_back(ranks_[1].chunk(i));
  // The shadow chunks are those of the maker, in another order.
  for (const size_t i : {5, 6, 4}) call.chunks.push_back(ranks_[0].chunk(i));
  call.reads = 4;
  call.part = 1;
  call.contents = PartContents{{7, 1}, {{1, 1}, {2, 1}, {2, 2}, {2, 3}}};
  node_.Post(call);
  EXPECT_EQ(node_.ReplyTo(call.call).status.code(), absl::StatusCode::kNotFound);
  // Nor into two chunks of which one holds the other one's result.
  ASSERT_TRUE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
  call.call = node_.Call();
  for (const size_t i : {0, 1, 2}) call.chunks[4 + i] = ranks_[1].chunk(4 + (i + 1) % 3);
  node_.Post(call);
  EXPECT_EQ(node_.ReplyTo(call.call).status.code(), absl::StatusCode::kFailedPrecondition);
}

// The two leases were one, and ended with the first release.
TEST_F(RanksPartsTest, AResultOfWhichTheSessionHasALeaseLeftIsNotTakenByAnotherOfItsChunks) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)));
  ASSERT_TRUE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
  const SessionId session = ranks_[1].session();
  const ChunkId shadow = ranks_[1].chunk(4);
  ASSERT_TRUE(node_.Fetch(session, shadow, Tier::kHost, Access::kRead).status.ok());
  ASSERT_TRUE(node_.Fetch(session, shadow, Tier::kHost, Access::kWrite).status.ok());
  StepCall call;
  call.call = node_.Call();
  call.session = session;
  for (size_t i = 0; i < 7; ++i) call.chunks.push_back(ranks_[1].chunk(i));
  call.chunks[4] = node_.Allocate(session, 1)[0];
  call.reads = 4;
  call.part = 2;
  call.contents = PartContents{{7, 1}, {{1, 1}, {2, 1}, {2, 2}, {2, 3}}};
  node_.Post(call);
  EXPECT_EQ(node_.ReplyTo(call.call).status.code(), absl::StatusCode::kAborted);
  node_.Release(session, shadow);
  call.call = node_.Call();
  node_.Post(call);
  EXPECT_TRUE(node_.Finish<PartReply>(call.call).made);
}

}  // namespace
}  // namespace memtide
