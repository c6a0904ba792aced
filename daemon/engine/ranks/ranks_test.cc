// Ranks of one training: a part is made once, a content is kept once, and a step is committed for
// all of them or for none.
#include <memory>
#include <string>
#include <vector>

#include "daemon/engine/testing/step_training.h"

namespace memtide {
namespace {

constexpr uint32_t kRanks = 3;

// One rank's parameter and its states: gradient, parameter, momentum, variance, and the shadow
// chunks of the last three.
class Rank {
 public:
  Rank(EngineByteHarness* node, uint32_t rank) : node_(node), rank_(rank) {
    session_ = node->OpenRank("training", Duration(0), rank, kRanks);
    chunks_ = node->Allocate(session_, 7);
    for (int i = 1; i < 4; ++i) node->Fill(session_, chunks_[i], Values(kElements, 0));
  }

  SessionId session() const { return session_; }
  ChunkId chunk(size_t i) const { return chunks_[i]; }

  void FillGradient(uint64_t step) {
    gradient_ = step;
    node_->Fill(session_, chunks_[0], GradientOf(step));
  }
  // Digests of what the part reads: of the gradient, and with `all` also of the parameter and its
  // states, which all ranks have filled alike.
  CallId Start(uint64_t step, bool all, uint64_t part = 1) {
    StepCall call;
    call.call = node_->Call();
    call.session = session_;
    call.chunks = chunks_;
    call.reads = 4;
    call.part = part;
    call.contents = PartContents{{7, step}, {{1, gradient_}}};
    for (uint64_t i = 1; all && i < 4; ++i) call.contents->reads.push_back({2, i});
    node_->Post(call);
    return call.call;
  }
  PartReply Began(CallId call) {
    node_->FinishUntilAnswered(call);
    const Reply& reply = node_->ReplyTo(call);
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    const auto* part = std::get_if<PartReply>(&reply.value);
    return part == nullptr ? PartReply() : *part;
  }
  // Computes the part where its chunks are, and ends it.
  void Make(const PartReply& part, uint64_t step, uint64_t number = 1) {
    ASSERT_EQ(part.places.size(), 7u);
    std::vector<char*> places;
    for (const MemoryPlace& place : part.places) places.push_back(node_->At(place));
    optimizer::Run(AdamWork(step), places);
    End(true, number);
  }
  void End(bool computed, uint64_t number = 1) {
    node_->Post(EndPartCall{node_->Call(), session_, number, computed, 0});
  }
  CallId Commit(uint64_t step) {
    CommitCall call;
    call.call = node_->Call();
    call.session = session_;
    call.step = step;
    call.chunks = {chunks_[1], chunks_[2], chunks_[3]};
    call.shadows = {chunks_[4], chunks_[5], chunks_[6]};
    node_->Post(call);
    return call.call;
  }
  State Read() {
    State state;
    for (size_t i = 1; i < 4; ++i) {
      state.push_back(node_->Read(session_, chunks_[i], kElements));
    }
    return state;
  }
  void Dies() { node_->Post(ClientGone{session_}); }

 private:
  EngineByteHarness* const node_;
  const uint32_t rank_;
  SessionId session_;
  std::vector<ChunkId> chunks_;
  uint64_t gradient_ = 0;
};

class RanksTest : public testing::Test {
 protected:
  RanksTest() {
    for (uint32_t i = 0; i < kRanks; ++i) ranks_.emplace_back(&node_, i);
  }
  // One whole step, in which all ranks have the same gradient.
  void Step(uint64_t step) {
    for (Rank& rank : ranks_) {
      rank.FillGradient(step);
      const PartReply part = rank.Began(rank.Start(step, step == 1));
      if (!part.made) rank.Make(part, step);
    }
    Commit(step);
  }
  void Commit(uint64_t step) {
    std::vector<CallId> commits;
    for (Rank& rank : ranks_) commits.push_back(rank.Commit(step));
    for (const CallId commit : commits) {
      ASSERT_TRUE(node_.ReplyTo(commit).status.ok()) << node_.ReplyTo(commit).status;
    }
  }
  InspectReply Inspect() {
    const InspectCall call{node_.Call()};
    node_.Post(call);
    return std::get<InspectReply>(node_.ReplyTo(call.call).value);
  }

  const EngineOptions options_{Bytes(0), EngineByteHarness::kChunk * 16,
                               EngineByteHarness::kChunk * 64, Limits()};
  EngineByteHarness node_{options_};
  std::vector<Rank> ranks_;
};

TEST_F(RanksTest, APartIsMadeOnceForAll) {
  const std::vector<State> expected = Expected(SmallHost());
  for (uint64_t step = 1; step <= kSteps; ++step) {
    Step(step);
    for (Rank& rank : ranks_) EXPECT_EQ(rank.Read(), expected[step]) << step;
    EXPECT_EQ(Inspect().counters.step_parts, step);
    EXPECT_EQ(Inspect().counters.parts_shared, (kRanks - 1) * step);
  }
}

TEST_F(RanksTest, WhatIsEqualIsKeptOnce) {
  EXPECT_EQ(Inspect().chunk_count, 7 * kRanks);
  Step(1);
  Step(2);
  // A gradient each, and one parameter, its two states and their shadow chunks.
  EXPECT_EQ(Inspect().chunk_count, kRanks + 6);
}

TEST_F(RanksTest, ARankWaitsForThePartThatAnotherOneMakes) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  const PartReply first = ranks_[0].Began(ranks_[0].Start(1, true));
  const CallId second = ranks_[1].Start(1, true);
  EXPECT_FALSE(node_.Answered(second));
  ranks_[0].Make(first, 1);
  EXPECT_TRUE(ranks_[1].Began(second).made);
}

TEST_F(RanksTest, TheNextRankMakesAPartThatWasNotComputed) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Began(ranks_[0].Start(1, true));
  const CallId second = ranks_[1].Start(1, true), third = ranks_[2].Start(1, true);
  ranks_[0].End(/*computed=*/false);
  ranks_[1].Make(ranks_[1].Began(second), 1);
  EXPECT_TRUE(ranks_[2].Began(third).made);
}

TEST_F(RanksTest, TheNextRankMakesAPartWhoseMakerDies) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Began(ranks_[0].Start(1, true));
  const CallId second = ranks_[1].Start(1, true);
  ranks_[0].Dies();
  const PartReply part = ranks_[1].Began(second);
  EXPECT_FALSE(part.made);
  EXPECT_EQ(part.places.size(), 7u);
}

TEST_F(RanksTest, DigestsAreAskedForWhereContentsAreNotShared) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  EXPECT_EQ(ranks_[0].Began(ranks_[0].Start(1, false)).unknown_reads,
            std::vector<uint32_t>({1, 2, 3}));
  Step(1);
  ranks_[0].FillGradient(2);
  EXPECT_TRUE(ranks_[0].Began(ranks_[0].Start(2, false)).unknown_reads.empty());
}

TEST_F(RanksTest, ARankWhoseGradientDiffersHasAStateOfItsOwn) {
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
    if (!part.made) ranks_[i].Make(part, 2);
  }
  const PartReply other = ranks_[2].Began(ranks_[2].Start(2, false));
  ASSERT_TRUE(other.difference.has_value());
  EXPECT_EQ(other.difference->rank, 0u);
  EXPECT_FALSE(other.difference->work);
  EXPECT_EQ(other.difference->reads, std::vector<uint32_t>({0}));
  ranks_[2].Make(other, 2);
  Commit(2);
  alone.FillGradient(9);
  const CallId made = alone.StartStep(2);
  alone_node.FinishUntilAnswered(made);
  alone.Commit(2);
  EXPECT_EQ(ranks_[2].Read(), alone.Read());
  for (const uint32_t i : {0, 1}) EXPECT_EQ(ranks_[i].Read(), expected[2]);
}

TEST_F(RanksTest, RanksThatDifferGoOnEachWithItsOwn) {
  Step(1);
  for (Rank& rank : ranks_) rank.FillGradient(2);
  ranks_[0].FillGradient(9);  // The first one to ask is the one that differs.
  for (Rank& rank : ranks_) {
    const PartReply part = rank.Began(rank.Start(2, false));
    if (!part.made) rank.Make(part, 2);
  }
  Commit(2);
  for (uint64_t step = 3; step <= 4; ++step) {
    for (Rank& rank : ranks_) {
      rank.FillGradient(step);
      PartReply part = rank.Began(rank.Start(step, false));
      if (!part.unknown_reads.empty()) part = rank.Began(rank.Start(step, true));
      if (!part.made) rank.Make(part, step);
    }
    Commit(step);
  }
  EXPECT_EQ(ranks_[1].Read(), ranks_[2].Read());
  EXPECT_NE(ranks_[0].Read(), ranks_[1].Read());
}

TEST_F(RanksTest, AStepIsCommittedWhenTheLastRankCommitsIt) {
  Step(1);
  const State before = ranks_[0].Read();
  for (Rank& rank : ranks_) {
    rank.FillGradient(2);
    const PartReply part = rank.Began(rank.Start(2, false));
    if (!part.made) rank.Make(part, 2);
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

TEST_F(RanksTest, ARankThatIsLateTakesWhatIsCommittedAlready) {
  const std::vector<State> expected = Expected(SmallHost());
  Rank& first = ranks_[0];
  first.FillGradient(1);
  first.Make(first.Began(first.Start(1, true)), 1);
  EXPECT_TRUE(node_.ReplyTo(first.Commit(1)).status.ok()) << "it shares nothing yet";
  first.FillGradient(2);
  first.Make(first.Began(first.Start(2, false)), 2);
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

TEST_F(RanksTest, ALateRankCommitsWhileOthersReadWhatItTakes) {
  Rank& first = ranks_[0];
  first.FillGradient(1);
  first.Make(first.Began(first.Start(1, true)), 1);
  ASSERT_TRUE(node_.ReplyTo(first.Commit(1)).status.ok());
  node_.Fetch(first.session(), first.chunk(1), Tier::kHost, Access::kRead);
  ranks_[1].FillGradient(1);
  EXPECT_TRUE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
  const CallId commit = ranks_[1].Commit(1);
  EXPECT_TRUE(node_.ReplyTo(commit).status.ok()) << node_.ReplyTo(commit).status;
  EXPECT_EQ(ranks_[1].Read(), Expected(SmallHost())[1]);
}

TEST_F(RanksTest, ACommitWaitsForNoRankThatDies) {
  Step(1);
  for (Rank& rank : ranks_) {
    rank.FillGradient(2);
    const PartReply part = rank.Began(rank.Start(2, false));
    if (!part.made) rank.Make(part, 2);
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

TEST_F(RanksTest, ARankThatWritesGetsACopyFirst) {
  Step(1);
  const State before = ranks_[0].Read();
  node_.Fill(ranks_[1].session(), ranks_[1].chunk(1), {42});
  EXPECT_EQ(node_.Read(ranks_[1].session(), ranks_[1].chunk(1), kElements)[0], 42);
  EXPECT_EQ(node_.Read(ranks_[1].session(), ranks_[1].chunk(1), kElements)[1], before[0][1]);
  EXPECT_EQ(ranks_[0].Read(), before);
  EXPECT_EQ(ranks_[2].Read(), before);
}

TEST_F(RanksTest, ACopyLeavesTheLeaseForReadingWhereItIsUntilTheIdIsReleased) {
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

TEST_F(RanksTest, ALeaseThatWasLeftBehindIsRevokedByTheIdThatItsClientKnows) {
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

TEST_F(RanksTest, AFreedChunkLeavesWhatOthersShare) {
  Step(1);
  const State before = ranks_[0].Read();
  for (size_t i = 0; i < 7; ++i) node_.Free(ranks_[0].session(), ranks_[0].chunk(i));
  EXPECT_EQ(ranks_[1].Read(), before);
  const Reply reply =
      node_.Fetch(ranks_[0].session(), ranks_[0].chunk(1), Tier::kHost, Access::kRead);
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kNotFound);
}

TEST_F(RanksTest, AChunkThatOneRankDoesNotStepKeepsItsContentThere) {
  Step(1);
  const State before = ranks_[0].Read();
  for (const uint32_t i : {0, 1}) {
    ranks_[i].FillGradient(2);
    const PartReply part = ranks_[i].Began(ranks_[i].Start(2, false));
    if (!part.made) ranks_[i].Make(part, 2);
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

TEST_F(RanksTest, AResultThatItsMakerHasOverwrittenIsMadeAnew) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)), 1);
  node_.Fill(ranks_[0].session(), ranks_[0].chunk(4), {42});
  EXPECT_FALSE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
}

TEST_F(RanksTest, AResultThatItsMakerHasFreedIsMadeAnew) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)), 1);
  node_.Free(ranks_[0].session(), ranks_[0].chunk(4));
  const PartReply part = ranks_[1].Began(ranks_[1].Start(1, true));
  EXPECT_FALSE(part.made);
  EXPECT_EQ(part.places.size(), 7u);
}

TEST_F(RanksTest, ADiscardedChunkLeavesWhatOthersShare) {
  Step(1);
  const State before = ranks_[0].Read();
  const DiscardCall discard{node_.Call(), ranks_[1].session(), 1000, {ranks_[1].chunk(1)}};
  node_.Post(discard);
  ASSERT_TRUE(node_.ReplyTo(discard.call).status.ok()) << node_.ReplyTo(discard.call).status;
  EXPECT_EQ(ranks_[0].Read(), before);
}

TEST_F(RanksTest, ACommitWaitsForNoRankThatSharesNoMore) {
  for (const uint32_t i : {0, 1}) ranks_[i].FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)), 1);
  EXPECT_TRUE(ranks_[1].Began(ranks_[1].Start(1, true)).made);
  const CallId commit = ranks_[0].Commit(1);
  EXPECT_FALSE(node_.Answered(commit));
  for (size_t i = 4; i < 7; ++i) node_.Free(ranks_[1].session(), ranks_[1].chunk(i));
  ASSERT_TRUE(node_.Answered(commit));
  EXPECT_TRUE(node_.ReplyTo(commit).status.ok()) << node_.ReplyTo(commit).status;
}

TEST_F(RanksTest, TwoRanksCommitNoChunkOfOneOfThem) {
  Step(1);
  const State before = ranks_[0].Read();
  std::vector<CallId> commits;
  for (Rank& rank : ranks_) {
    CommitCall call;
    call.call = node_.Call();
    call.session = rank.session();
    call.step = 2;
    call.chunks = {ranks_[0].chunk(1)};
    call.shadows = {ranks_[0].chunk(4)};
    node_.Post(call);
    commits.push_back(call.call);
  }
  for (const CallId call : commits) {
    EXPECT_EQ(node_.ReplyTo(call).status.code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(ranks_[0].Read(), before);
}

TEST_F(RanksTest, AResultIsNotTakenIntoAChunkOfItsMaker) {
  for (Rank& rank : ranks_) rank.FillGradient(1);
  ranks_[0].Make(ranks_[0].Began(ranks_[0].Start(1, true)), 1);
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
  EXPECT_EQ(node_.ReplyTo(call.call).status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RanksTest, AnEvictionEndsALeaseThatWasLeftBehind) {
  Step(1);
  const SessionId session = ranks_[1].session();
  node_.Fetch(session, ranks_[1].chunk(1), Tier::kHost, Access::kRead);
  node_.Fetch(session, ranks_[1].chunk(1), Tier::kHost, Access::kWrite);
  node_.Post(EvictCall{node_.Call(), session, Tier::kSsd, {ranks_[1].chunk(1)}});
  EXPECT_EQ(node_.Describe(ranks_[0].session(), ranks_[0].chunk(1)).leases, 0u);
}

TEST_F(RanksTest, AnotherUsersRankSharesNothing) {
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
