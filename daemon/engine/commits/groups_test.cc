// Ranks with a job each, which commit together.
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "daemon/engine/testing/engine_byte_harness.h"
#include "gmock/gmock.h"

namespace memtide {
namespace {

using testing::HasSubstr;

constexpr Duration kAnHour = std::chrono::hours(1);
constexpr size_t kGroupElements = 1000;
constexpr uint32_t kGroupRanks = 2;

EngineOptions Options() {
  EngineOptions options{
      {}, EngineByteHarness::kChunk * 96, EngineByteHarness::kChunk * 64, Limits()};
  options.persistent_jobs = true;
  return options;
}

std::vector<float> GroupValues(float first) {
  std::vector<float> values(kGroupElements);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// Each rank has a chunk and its shadow chunk.
class GroupsTest : public testing::Test {
 protected:
  GroupsTest() {
    for (uint32_t rank = 0; rank < kGroupRanks; ++rank) {
      ranks_.push_back({});
      Open(rank);
      ranks_[rank].chunks = node_.Allocate(ranks_[rank].session, 2);
      node_.Fill(ranks_[rank].session, ranks_[rank].chunks[0], GroupValues(Of(rank, 0)));
    }
  }
  static float Of(uint32_t rank, uint64_t step) {
    return 100.0f * static_cast<float>(rank) + static_cast<float>(step);
  }
  // The step at which the rank's new session begins.
  uint64_t Open(uint32_t rank) {
    node_.elastic_ = true;
    node_.group_ = "training";
    node_.group_rank_ = rank;
    node_.group_ranks_ = kGroupRanks;
    OpenReply opened;
    ranks_[rank].session = node_.Open("training/" + std::to_string(rank), kAnHour, &opened);
    return opened.committed_step;
  }
  void Dies(uint32_t rank) { node_.Post(ClientGone{ranks_[rank].session}); }
  void Compute(uint32_t rank, uint64_t step) {
    node_.Fill(ranks_[rank].session, ranks_[rank].chunks[1], GroupValues(Of(rank, step)));
  }
  CallId Commit(uint32_t rank, uint64_t step) {
    CommitCall commit;
    commit.call = node_.Call();
    commit.session = ranks_[rank].session;
    commit.step = step;
    commit.chunks = {ranks_[rank].chunks[0]};
    commit.shadows = {ranks_[rank].chunks[1]};
    commit.with_all_ranks = true;
    node_.Post(commit);
    return commit.call;
  }
  void Step(uint64_t step) {
    for (uint32_t rank = 0; rank < kGroupRanks; ++rank) Compute(rank, step);
    const CallId first = Commit(0, step), second = Commit(1, step);
    EXPECT_TRUE(node_.ReplyTo(first).status.ok()) << node_.ReplyTo(first).status;
    EXPECT_TRUE(node_.ReplyTo(second).status.ok()) << node_.ReplyTo(second).status;
  }
  void ExpectAll(uint64_t step) {
    for (uint32_t rank = 0; rank < kGroupRanks; ++rank) {
      EXPECT_EQ(node_.Read(ranks_[rank].session, ranks_[rank].chunks[0], kGroupElements),
                GroupValues(Of(rank, step)));
    }
  }
  // The refusal of an Open of another process.
  absl::Status Refusal(OpenCall open) {
    open.call = node_.Call();
    open.session = SessionId(1000 + open.call.value());
    open.chunk_size = EngineByteHarness::kChunk;
    open.elastic = true;
    node_.Post(ClientConnected{open.session, 1000, 1});
    node_.Post(open);
    return node_.ReplyTo(open.call).status;
  }
  static OpenCall Third() {
    OpenCall open;
    open.job_name = "training/2";
    open.time_to_live = kAnHour;
    open.group = "training";
    open.group_rank = 1;
    open.group_ranks = kGroupRanks;
    return open;
  }

  struct Rank {
    SessionId session;
    std::vector<ChunkId> chunks;
  };
  EngineByteHarness node_{Options()};
  std::vector<Rank> ranks_;
};

TEST_F(GroupsTest, ACommitWaitsForAllRanks) {
  Compute(0, 1);
  Compute(1, 1);
  const CallId first = Commit(0, 1);
  EXPECT_FALSE(node_.Answered(first));
  ExpectAll(0);
  const CallId second = Commit(1, 1);
  EXPECT_TRUE(node_.ReplyTo(first).status.ok()) << node_.ReplyTo(first).status;
  EXPECT_TRUE(node_.ReplyTo(second).status.ok()) << node_.ReplyTo(second).status;
  ExpectAll(1);
  Step(2);
  ExpectAll(2);
}

TEST_F(GroupsTest, ACommitWaitsForARankThatHasNotComeYet) {
  Step(1);
  Dies(0);
  Dies(1);
  EXPECT_EQ(Open(0), 1u);
  Compute(0, 2);
  const CallId first = Commit(0, 2);
  EXPECT_FALSE(node_.Answered(first));
  EXPECT_EQ(Open(1), 1u);
  Compute(1, 2);
  const CallId second = Commit(1, 2);
  EXPECT_TRUE(node_.ReplyTo(first).status.ok()) << node_.ReplyTo(first).status;
  EXPECT_TRUE(node_.ReplyTo(second).status.ok()) << node_.ReplyTo(second).status;
  ExpectAll(2);
}

TEST_F(GroupsTest, WithoutOneOfThemNoRankCommitsUntilAllHaveNewSessions) {
  Step(1);
  Compute(0, 2);
  const CallId waiting = Commit(0, 2);
  Dies(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(node_.ReplyTo(waiting).status));
  EXPECT_EQ(Open(1), 1u);
  const CallId late = Commit(0, 2);
  EXPECT_THAT(std::string(node_.ReplyTo(late).status.message()),
              HasSubstr("rank 1 of job \"training\" has ended"));
  Dies(0);
  EXPECT_EQ(Open(0), 1u);
  ExpectAll(1);
  Step(2);
  ExpectAll(2);
}

TEST_F(GroupsTest, ADaemonThatDiesLeavesAllAtOneStep) {
  Step(1);
  Compute(0, 2);
  Compute(1, 2);
  Commit(0, 2);
  node_.DaemonDies(0);
  for (uint32_t rank = 0; rank < kGroupRanks; ++rank) EXPECT_EQ(Open(rank), 1u);
  ExpectAll(1);
  Step(2);
  node_.DaemonDies(0);
  for (uint32_t rank = 0; rank < kGroupRanks; ++rank) EXPECT_EQ(Open(rank), 2u);
  ExpectAll(2);
}

TEST_F(GroupsTest, WhereOneHasALeaseNoneCommits) {
  Compute(0, 1);
  Compute(1, 1);
  const CallId first = Commit(0, 1);
  node_.Fetch(ranks_[0].session, ranks_[0].chunks[0], Tier::kHost, Access::kRead);
  const CallId second = Commit(1, 1);
  EXPECT_TRUE(absl::IsAborted(node_.ReplyTo(first).status));
  EXPECT_TRUE(absl::IsAborted(node_.ReplyTo(second).status));
  node_.Release(ranks_[0].session, ranks_[0].chunks[0]);
  ExpectAll(0);
  Step(1);
}

TEST_F(GroupsTest, WhoDoesNotComeInTimeIsNamed) {
  Compute(0, 1);
  const CallId first = Commit(0, 1);
  for (int i = 0; i < 80 && !node_.Answered(first); ++i) {
    for (const Rank& rank : ranks_) node_.Post(RenewCall{node_.Call(), rank.session});
    node_.Wait(std::chrono::seconds(10));
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(node_.ReplyTo(first).status));
  EXPECT_THAT(std::string(node_.ReplyTo(first).status.message()),
              HasSubstr("of job \"training\", ranks 1 did not commit"));
}

// Once, the second of two commits of the same chunks exchanged their contents back.
TEST_F(GroupsTest, TwoRanksOfOneJobCommitNothing) {
  Dies(1);
  node_.group_rank_ = 1;
  ranks_[1] = {node_.Open("training/0", kAnHour), ranks_[0].chunks};
  Compute(0, 1);
  for (const CallId commit : {Commit(0, 1), Commit(1, 1)}) {
    EXPECT_THAT(std::string(node_.ReplyTo(commit).status.message()),
                HasSubstr("two ranks of group \"training\" have job \"training/0\" open"));
  }
  EXPECT_EQ(node_.Read(ranks_[0].session, ranks_[0].chunks[0], kGroupElements),
            GroupValues(Of(0, 0)));
}

TEST_F(GroupsTest, WhatCannotBeARankIsRefused) {
  EXPECT_THAT(std::string(Refusal(Third()).message()), HasSubstr("is there already"));
  OpenCall open = Third();
  open.group_ranks = 3;
  EXPECT_THAT(std::string(Refusal(open).message()), HasSubstr("has 2 ranks, not 3"));
  open.group_rank = 3;
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(open)));
  open = Third();
  open.job_name.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(open)));
  open = Third();
  open.time_to_live = Duration(0);
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(open)));
  open = Third();
  open.durable_every = 1;
  EXPECT_FALSE(Refusal(open).ok());
  open = Third();
  open.group = "another";
  EXPECT_TRUE(Refusal(open).ok()) << "it is a group of its own";
}

}  // namespace
}  // namespace memtide
