// Contents of ranks: what is equal is kept once, and a rank that writes gets a copy.
#include <string>
#include <vector>

#include "daemon/engine/testing/ranks_harness.h"

namespace memtide {
namespace {

using RanksContentsTest = RanksTest;

TEST_F(RanksContentsTest, WhatIsEqualIsKeptOnce) {
  EXPECT_EQ(Inspect().chunk_count, 7 * kRanks);
  Step(1);
  Step(2);
  // A gradient each, and one parameter, its two states and their shadow chunks.
  EXPECT_EQ(Inspect().chunk_count, kRanks + 6);
}

TEST_F(RanksContentsTest, ItIsSeenWhatEachRankUsesAndShares) {
  // The first step makes what the shadow chunks have alike from then on, and the second one the
  // rest.
  for (const uint64_t step : {0, 1, 2}) {
    if (step > 0) Step(step);
    const InspectReply seen = Inspect();
    ASSERT_EQ(seen.sessions.size(), kRanks);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const absl::optional<RankUse>& use = seen.sessions[rank].rank_use;
      ASSERT_TRUE(use.has_value());
      EXPECT_EQ(seen.sessions[rank].rank, rank);
      EXPECT_EQ(seen.sessions[rank].ranks, kRanks);
      EXPECT_EQ(use->named, EngineByteHarness::kChunk * 7);
      EXPECT_EQ(use->shared, EngineByteHarness::kChunk * (3 * step));
    }
  }
  node_.Fill(ranks_[1].session(), ranks_[1].chunk(1), {42});
  const InspectReply seen = Inspect();
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(seen.sessions[rank].rank_use->named, EngineByteHarness::kChunk * 7);
    EXPECT_EQ(seen.sessions[rank].rank_use->shared,
              EngineByteHarness::kChunk * (rank == 1 ? 5 : 6));
  }
}

TEST_F(RanksContentsTest, ARankThatWritesGetsACopyFirst) {
  Step(1);
  const State before = ranks_[0].Read();
  node_.Fill(ranks_[1].session(), ranks_[1].chunk(1), {42});
  EXPECT_EQ(node_.Read(ranks_[1].session(), ranks_[1].chunk(1), kTrainedElements)[0], 42);
  EXPECT_EQ(node_.Read(ranks_[1].session(), ranks_[1].chunk(1), kTrainedElements)[1], before[0][1]);
  EXPECT_EQ(ranks_[0].Read(), before);
  EXPECT_EQ(ranks_[2].Read(), before);
}

// A commit compares versions of ids, whichever entry has their content.
TEST_F(RanksContentsTest, TheVersionOfAnIdDoesNotGoBackWithACopy) {
  for (uint64_t step = 1; step <= 4; ++step) Step(step);
  const SessionId session = ranks_[1].session();
  for (size_t i = 1; i < 4; ++i) {
    const ChunkId chunk = ranks_[1].chunk(i);
    const uint64_t before = node_.Describe(session, chunk).version.value();
    node_.Fill(session, chunk, {42});
    EXPECT_GT(node_.Describe(session, chunk).version.value(), before) << i;
  }
}

TEST_F(RanksContentsTest, ACopyLeavesTheLeaseForReadingWhereItIsUntilTheIdIsReleased) {
  Step(1);
  const SessionId session = ranks_[1].session();
  const Reply read = node_.Fetch(session, ranks_[1].chunk(1), Tier::kHost, Access::kRead);
  const Reply write = node_.Fetch(session, ranks_[1].chunk(1), Tier::kHost, Access::kWrite);
  ASSERT_TRUE(write.status.ok()) << write.status;
  const Lease& lease = std::get<FetchReply>(write.value).leases[0];
  EXPECT_EQ(lease.chunk, ranks_[1].chunk(1));
  EXPECT_NE(node_.At(lease.place), node_.At(std::get<FetchReply>(read.value).leases[0].place));
  EXPECT_EQ(node_.Describe(ranks_[0].session(), ranks_[0].chunk(1)).leases, 1u);
  node_.Release(session, ranks_[1].chunk(1));
  EXPECT_EQ(node_.Describe(ranks_[0].session(), ranks_[0].chunk(1)).leases, 0u);
}

TEST_F(RanksContentsTest, ALeaseThatWasLeftBehindIsRevokedByTheIdThatItsClientKnows) {
  Step(1);
  for (const uint32_t i : {0, 1}) {
    const SessionId session = ranks_[i].session();
    node_.Fetch(session, ranks_[i].chunk(1), Tier::kHost, Access::kRead);
    node_.Fetch(session, ranks_[i].chunk(1), Tier::kHost, Access::kWrite);
  }
  FetchCall fetch;
  fetch.call = node_.Call();
  fetch.session = ranks_[2].session();
  fetch.tier = Tier::kHost;
  fetch.access = Access::kWrite;
  fetch.chunks = {ranks_[2].chunk(1)};
  node_.Post(fetch);
  EXPECT_FALSE(node_.Answered(fetch.call));
  ASSERT_EQ(node_.revokes_.size(), 2u);
  for (const Revoke& revoke : node_.revokes_) {
    for (const ChunkId id : revoke.chunks) node_.Release(revoke.session, id);
  }
  node_.FinishUntilAnswered(fetch.call);
  EXPECT_TRUE(node_.ReplyTo(fetch.call).status.ok());
}

TEST_F(RanksContentsTest, AFreedChunkLeavesWhatOthersShare) {
  Step(1);
  const State before = ranks_[0].Read();
  for (size_t i = 0; i < 7; ++i) node_.Free(ranks_[0].session(), ranks_[0].chunk(i));
  EXPECT_EQ(ranks_[1].Read(), before);
  const Reply reply =
      node_.Fetch(ranks_[0].session(), ranks_[0].chunk(1), Tier::kHost, Access::kRead);
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kNotFound);
}

TEST_F(RanksContentsTest, AChunkThatOneRankDoesNotStepKeepsItsContentThere) {
  Step(1);
  const State before = ranks_[0].Read();
  for (const uint32_t i : {0, 1}) {
    ranks_[i].FillGradient(2);
    const PartReply part = ranks_[i].Began(ranks_[i].Start(2, false));
    if (!part.made) ranks_[i].Make(part);
  }
  std::vector<CallId> commits = {ranks_[0].Commit(2), ranks_[1].Commit(2)};
  CommitCall none;
  none.call = node_.Call();
  none.session = ranks_[2].session();
  none.step = 2;
  node_.Post(none);
  commits.push_back(none.call);
  for (const CallId call : commits) {
    ASSERT_TRUE(node_.ReplyTo(call).status.ok()) << node_.ReplyTo(call).status;
  }
  EXPECT_EQ(ranks_[2].Read(), before);
  EXPECT_EQ(ranks_[0].Read(), ranks_[1].Read());
  EXPECT_NE(ranks_[0].Read(), before);
}

TEST_F(RanksContentsTest, ADiscardedChunkLeavesWhatOthersShare) {
  Step(1);
  const State before = ranks_[0].Read();
  const DiscardCall discard{node_.Call(), ranks_[1].session(), 1000, {ranks_[1].chunk(1)}};
  node_.Post(discard);
  ASSERT_TRUE(node_.ReplyTo(discard.call).status.ok()) << node_.ReplyTo(discard.call).status;
  EXPECT_EQ(ranks_[0].Read(), before);
}

TEST_F(RanksContentsTest, AnEvictionEndsALeaseThatWasLeftBehind) {
  Step(1);
  const SessionId session = ranks_[1].session();
  node_.Fetch(session, ranks_[1].chunk(1), Tier::kHost, Access::kRead);
  node_.Fetch(session, ranks_[1].chunk(1), Tier::kHost, Access::kWrite);
  node_.Post(EvictCall{node_.Call(), session, Tier::kSsd, {ranks_[1].chunk(1)}});
  EXPECT_EQ(node_.Describe(ranks_[0].session(), ranks_[0].chunk(1)).leases, 0u);
}

TEST_F(RanksContentsTest, ARankThatEndsLeavesOnlyWhatOthersShare) {
  Step(1);
  Step(2);
  ranks_[1].Dies();
  EXPECT_EQ(Inspect().chunk_count, kRanks - 1 + 6);
  const State before = ranks_[0].Read();
  ranks_[2].Dies();
  EXPECT_EQ(Inspect().chunk_count, 7);
  EXPECT_EQ(ranks_[0].Read(), before);
}

TEST_F(RanksContentsTest, ALeaseThatWasLeftBehindKeepsWhatNoOtherRankNames) {
  Step(1);
  const SessionId session = ranks_[0].session();
  const Reply read = node_.Fetch(session, ranks_[0].chunk(1), Tier::kHost, Access::kRead);
  node_.Fetch(session, ranks_[0].chunk(1), Tier::kHost, Access::kWrite);
  ranks_[1].Dies();
  ranks_[2].Dies();
  EXPECT_EQ(Inspect().chunk_count, 8);
  node_.Release(session, ranks_[0].chunk(1));
  node_.Post(Tick{});
  EXPECT_EQ(Inspect().chunk_count, 7);
}

TEST_F(RanksContentsTest, ARankDoesNotKnowTheChunksOfAnother) {
  const Reply reply =
      node_.Fetch(ranks_[0].session(), ranks_[1].chunk(0), Tier::kHost, Access::kRead);
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kNotFound);
  Step(1);
  const Reply shared =
      node_.Fetch(ranks_[0].session(), ranks_[1].chunk(1), Tier::kHost, Access::kRead);
  EXPECT_EQ(shared.status.code(), absl::StatusCode::kNotFound);
}

TEST_F(RanksContentsTest, ARankThatIsThereOrOfAnotherTrainingDoesNotJoin) {
  ranks_[2].Dies();
  const auto joins = [this](uint32_t session, uint32_t rank, uint32_t ranks) {
    OpenCall open;
    open.call = node_.Call();
    open.session = SessionId(session);
    open.chunk_size = EngineByteHarness::kChunk;
    open.job_name = "training";
    open.rank = rank;
    open.ranks = ranks;
    node_.Post(ClientConnected{open.session, 1000, 1});
    node_.Post(open);
    return node_.ReplyTo(open.call).status.code();
  };
  EXPECT_EQ(joins(100, 1, kRanks), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(joins(101, 2, kRanks + 1), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(joins(102, 2, kRanks), absl::StatusCode::kOk);
  EXPECT_EQ(joins(103, 2, kRanks), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RanksContentsTest, AnotherUsersRankSharesNothing) {
  OpenCall open;
  open.call = node_.Call();
  open.session = SessionId(100);
  open.chunk_size = EngineByteHarness::kChunk;
  open.job_name = "training";
  open.rank = 0;
  open.ranks = kRanks;
  open.host_share = EngineByteHarness::kChunk * 4;
  node_.Post(ClientConnected{open.session, 1001, 1});
  node_.Post(open);
  const Reply& reply = node_.ReplyTo(open.call);
  if (const auto* opened = std::get_if<OpenReply>(&reply.value)) {
    EXPECT_NE(opened->job, Inspect().chunks.empty() ? JobId(1) : Inspect().chunks[0].job);
  }
}

}  // namespace
}  // namespace memtide
