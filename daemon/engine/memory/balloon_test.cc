// The part of the host pool that the machine's programs leave.
#include <memory>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;

constexpr Bytes kReserve = MiB(16), kPlenty = MiB(128);  // 8 chunks, and 64.

EngineOptions Reserving(uint64_t host_slots = 16, uint64_t ssd_slots = 64) {
  EngineOptions options{{}, kChunk * host_slots, kChunk * ssd_slots, Limits()};
  options.host_reserve = kReserve;
  return options;
}

// A node whose host pool has 16 slots; the machine keeps memory for 8 more.
class BalloonHarness : public EngineHarness {
 public:
  explicit BalloonHarness(const EngineOptions& options = Reserving()) : EngineHarness(options) {}

  // Memory that programs leave, without that of the pools.
  void Leave(Bytes available) { Post(HostMemory{available}); }
  // A job with `host_slots`, and half of an SSD that two jobs share.
  SessionId OpenWith(uint64_t host_slots, uint32_t uid) {
    OpenCall open;
    open.host_share = kChunk * host_slots;
    open.ssd_share = kChunk * 64;
    return OpenAs(open, uid);
  }
  // Chunks in host memory, none leased.
  std::vector<ChunkId> Fill(SessionId session, uint32_t count = 16) {
    const std::vector<ChunkId> chunks = Allocate(session, count);
    for (const ChunkId chunk : chunks) {
      const CallId fetch = Fetch(session, {chunk}, Access::kWrite, Tier::kHost);
      FinishTransfers();
      EXPECT_EQ(CodeOf(fetch), StatusCode::kOk);
      Release(session, {chunk});
    }
    return chunks;
  }
  CallId Lease(SessionId session, std::vector<ChunkId> chunks) {
    return Fetch(session, std::move(chunks), Access::kWrite, Tier::kHost);
  }
  // A step part that copies 4 KiB from the first chunk to the last one.
  CallId Step(SessionId session, std::vector<ChunkId> chunks) {
    StepCall step;
    step.call = Call();
    step.session = session;
    step.reads = static_cast<uint32_t>(chunks.size()) - 1;
    step.work = std::make_shared<const CopyWork>(CopyWork{{{{0, 0}, {step.reads, 0}, 4096}}});
    step.chunks = std::move(chunks);
    Post(step);
    return step.call;
  }
  void FinishStep() {
    ASSERT_FALSE(steps_.empty());
    const StepId step = steps_.front().step;
    steps_.erase(steps_.begin());
    Post(StepDone{step, absl::OkStatus()});
  }
  PoolUsage Host() { return Inspect().pools[0]; }
  void Report(SessionId session, Bytes own_host, bool ends_iteration, ChunkId use) {
    MomentReport moment;
    moment.own_host = own_host;
    moment.uses = {{use, Access::kRead}};
    moment.ends_iteration = ends_iteration;
    Post(ReportCall{Call(), session, {moment}});
  }
};

TEST(BalloonTest, NothingIsWithheldWhileTheMachineHasItsReserve) {
  BalloonHarness node;
  node.Fill(node.Open());
  node.Leave(kReserve);
  EXPECT_TRUE(node.transfers_.empty());
  EXPECT_TRUE(node.emptied_.empty());
  EXPECT_TRUE(node.shortages_.empty());
}

TEST(BalloonTest, WhatTheMachineLacksLeavesAndItsMemoryGoes) {
  BalloonHarness node;
  const SessionId session = node.Open();
  node.Fill(session);
  node.Leave(kReserve - kChunk * 3);
  EXPECT_EQ(node.transfers_.size(), 3u) << "dirty ones are written first";
  EXPECT_TRUE(node.emptied_.empty());
  node.FinishTransfers();
  EXPECT_EQ(node.emptied_.size(), 3u);
  EXPECT_EQ(node.Host().balloon, kChunk * 3);
  EXPECT_EQ(node.Host().used, kChunk * 13);
  ASSERT_EQ(node.budgets_.size(), 1u);
  EXPECT_EQ(node.budgets_[0].session, session);
  EXPECT_EQ(node.budgets_[0].slots, 13u);
  EXPECT_EQ(node.budgets_[0].lease_budget, 10u) << "a quarter of the slots is for moving ahead";
  ASSERT_EQ(node.shortages_.size(), 1u);
  EXPECT_TRUE(node.shortages_[0].begins);
  EXPECT_EQ(node.Inspect().counters.balloon, kChunk * 3);
}

TEST(BalloonTest, WhatIsOnItsWayOutIsNotAskedForTwice) {
  BalloonHarness node;
  node.Fill(node.Open());
  node.hold_memory_ = true;
  node.Leave(kReserve - kChunk * 3);
  node.Leave(kReserve - kChunk * 3);
  node.FinishTransfers();
  node.Leave(kReserve - kChunk * 3);
  EXPECT_EQ(node.emptied_.size(), 3u);
  node.FinishMemory();
  node.Leave(kReserve);
  EXPECT_EQ(node.emptied_.size(), 3u);
}

TEST(BalloonTest, MemoryComesBackWhenItIsNeededAfterTheMachineHasEnough) {
  BalloonHarness node;
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Fill(session);
  node.Leave(kReserve - kChunk * 4);
  node.FinishTransfers();
  ASSERT_EQ(node.emptied_.size(), 4u);
  node.Leave(kReserve + kChunk * 4);  // Enough, but not enough to deflate.
  EXPECT_EQ(node.budgets_.size(), 1u);
  node.Leave(kReserve + kChunk * 4 + kChunk * 3);
  ASSERT_EQ(node.budgets_.size(), 2u);
  EXPECT_EQ(node.budgets_[1].slots, 15u);
  EXPECT_EQ(node.budgets_[1].lease_budget, 12u);
  node.Leave(kReserve + kChunk * 4 + kChunk * 3);  // The same three, unused so far.
  EXPECT_EQ(node.budgets_.size(), 2u);
  EXPECT_TRUE(node.filled_.empty());
  const CallId fetch = node.Lease(session, {chunks.begin(), chunks.begin() + 15});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
  EXPECT_EQ(node.filled_.size(), 3u);
  EXPECT_EQ(node.shortages_.size(), 1u);
  node.Leave(kPlenty);
  ASSERT_EQ(node.shortages_.size(), 2u);
  EXPECT_FALSE(node.shortages_[1].begins);
}

TEST(BalloonTest, AJobKeepsAQuarterOfItsSlots) {
  BalloonHarness node;
  node.Fill(node.Open());
  node.Leave(Bytes(0));
  node.Leave(Bytes(0));
  node.FinishTransfers();
  EXPECT_EQ(node.emptied_.size(), 8u) << "the reserve";
  node.Leave(Bytes(0));
  node.FinishTransfers();
  EXPECT_EQ(node.Host().used, kChunk * 4);
  node.Leave(Bytes(0));
  node.FinishTransfers();
  EXPECT_EQ(node.Host().used, kChunk * 4);
}

TEST(BalloonTest, NothingThatIsLeasedLeavesAndWhatIsNeededComesBackAtOnce) {
  BalloonHarness node;
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Fill(session);
  node.Lease(session, {chunks.begin(), chunks.begin() + 10});
  node.Leave(Bytes(0));
  node.Leave(Bytes(0));
  node.FinishTransfers();
  EXPECT_EQ(node.emptied_.size(), 6u);
  const CallId fetch = node.Lease(session, {chunks.begin() + 10, chunks.begin() + 14});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
  EXPECT_EQ(node.filled_.size(), 4u);
  EXPECT_EQ(node.Host().used, kChunk * 14);
  node.Leave(Bytes(0));  // Two slots are released as soon as the leases end.
  node.Release(session, {chunks[0], chunks[1]});
  node.FinishTransfers();
  EXPECT_EQ(node.emptied_.size(), 8u);
}

TEST(BalloonTest, MemoryThatIsNeededWhileItGoesComesBack) {
  BalloonHarness node;
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Fill(session);
  node.hold_memory_ = true;
  node.Leave(kReserve - kChunk * 6);
  node.FinishTransfers();
  ASSERT_EQ(node.emptied_.size(), 6u);
  const CallId fetch = node.Lease(session, chunks);
  node.FinishTransfers();
  EXPECT_FALSE(node.Answered(fetch));
  for (int i = 0; i < 7; ++i) {
    node.FinishMemory();
    node.FinishTransfers();
  }
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
  EXPECT_EQ(node.filled_.size(), 6u);
}

TEST(BalloonTest, WhereMemoryCannotComeBackOthersLeave) {
  BalloonHarness node;
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Fill(session);
  node.Leave(kReserve - kChunk * 6);
  node.FinishTransfers();
  node.Leave(kPlenty);
  node.fail_memory_ = true;
  const CallId fetch = node.Lease(session, {chunks.begin(), chunks.begin() + 10});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
  EXPECT_EQ(node.Host().used, kChunk * 10);
  // All slots are leased: the fetch waits for a slot of the balloon.
  const CallId more = node.Lease(session, {chunks[10]});
  node.FinishTransfers();
  EXPECT_FALSE(node.Answered(more));
  node.fail_memory_ = false;
  node.Wait(std::chrono::milliseconds(50));
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(more), StatusCode::kOk);
}

TEST(BalloonTest, PartsOfStepsGoOneByOneWhileTheyNeedWhatIsWithheld) {
  BalloonHarness node;
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Fill(session);
  for (int i = 0; i < 2; ++i) {
    node.Leave(Bytes(0));
    node.FinishTransfers();
  }
  ASSERT_EQ(node.Host().used, kChunk * 4);
  const CallId first = node.Step(session, {chunks.begin(), chunks.begin() + 6});
  const CallId second = node.Step(session, {chunks.begin() + 6, chunks.begin() + 12});
  node.FinishTransfers();
  EXPECT_EQ(node.steps_.size(), 1u);
  EXPECT_EQ(node.Host().used, kChunk * 6) << "what one of them needs, and no more";
  node.FinishStep();
  EXPECT_EQ(node.CodeOf(first), StatusCode::kOk);
  node.FinishTransfers();
  node.FinishStep();
  EXPECT_EQ(node.CodeOf(second), StatusCode::kOk);
  EXPECT_EQ(node.Host().used, kChunk * 6);
  // With all of its memory, the parts run together.
  node.Leave(kPlenty);
  node.Step(session, {chunks.begin(), chunks.begin() + 6});
  node.Step(session, {chunks.begin() + 6, chunks.begin() + 12});
  node.FinishTransfers();
  EXPECT_EQ(node.steps_.size(), 2u);
}

TEST(BalloonTest, JobsSpareInProportionToWhatTheyCan) {
  BalloonHarness node(Reserving(48, 128));
  node.Fill(node.OpenWith(32, 1000), 32);
  node.Fill(node.OpenWith(16, 1001), 16);
  node.Leave(kReserve - kChunk * 6);
  ASSERT_EQ(node.budgets_.size(), 2u);
  EXPECT_EQ(node.budgets_[0].lease_budget, 21u) << "of 28 slots";
  EXPECT_EQ(node.budgets_[1].lease_budget, 11u) << "of 14";
}

TEST(BalloonTest, AJobSparesForTheRiseThatItsOwnMemoryWillHave) {
  BalloonHarness node;
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Fill(session);
  const auto iterate = [&] {
    node.Report(session, kChunk, false, chunks[0]);
    node.Report(session, kChunk * 6, false, chunks[1]);
    node.Report(session, kChunk, true, chunks[2]);
  };
  iterate();
  node.Leave(kReserve + kChunk * 2);
  node.FinishTransfers();
  EXPECT_EQ(node.emptied_.size(), 3u) << "five more will be needed, and two are there";
  node.Report(session, kChunk * 6, false, chunks[0]);  // As predicted.
  node.Leave(kReserve);
  node.FinishTransfers();
  EXPECT_EQ(node.emptied_.size(), 3u);
}

TEST(BalloonTest, TheFirstIterationMayNeedAllOfALimit) {
  BalloonHarness node;
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Fill(session);
  const Bytes available = kReserve + kChunk * 4;
  node.Leave(available);
  node.FinishTransfers();
  EXPECT_TRUE(node.emptied_.empty()) << "without a limit";
  node.Post(HostMemory{available, kChunk * 6});
  node.FinishTransfers();
  EXPECT_EQ(node.emptied_.size(), 2u);
  node.Report(session, kChunk, true, chunks[0]);
  node.Post(HostMemory{available, kChunk * 6});
  node.FinishTransfers();
  EXPECT_EQ(node.emptied_.size(), 2u) << "nothing rises in an iteration like the first";
}

TEST(BalloonTest, ARiseThatIsOnlyToldTakesNothingOfOthers) {
  BalloonHarness node(Reserving(32, 128));
  const SessionId liar = node.OpenWith(16, 1000), other = node.OpenWith(16, 1001);
  const std::vector<ChunkId> chunks = node.Fill(liar);
  node.Fill(other);
  node.Report(liar, Bytes(~uint64_t{0}), true, chunks[0]);
  node.Report(liar, Bytes(0), false, chunks[0]);
  node.Leave(kReserve + kChunk * 30);
  node.FinishTransfers();
  ASSERT_EQ(node.budgets_.size(), 1u);
  EXPECT_EQ(node.budgets_[0].session, liar);
  EXPECT_EQ(node.emptied_.size(), 2u) << "it counts as its share at most";
}

TEST(BalloonTest, MemoryThatWasNeverMadeIsNotMadeWhileTheMachineIsShort) {
  BalloonHarness node(Reserving(256, 1024));  // Two segments of 256 MiB.
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Fill(session, 128);
  ASSERT_EQ(node.made_.size(), 1u);
  node.Leave(kReserve - kChunk);
  node.FinishTransfers();
  EXPECT_EQ(node.emptied_.size(), 1u);
  node.Fill(session, 32);
  EXPECT_EQ(node.made_.size(), 1u);
  EXPECT_EQ(node.Host().used, kChunk * 127);
  node.Leave(kPlenty * 8);
  node.Fill(session, 64);
  EXPECT_EQ(node.filled_.size(), 1u);
  ASSERT_EQ(node.made_.size(), 2u);
  EXPECT_EQ(node.made_[1].size, kChunk * 128);
}

TEST(BalloonTest, APartThatIsMadeMeanwhileIsGivenUpSlotBySlot) {
  BalloonHarness node(Reserving(200, 1024));  // A segment of 128 slots, and one of 72.
  const SessionId session = node.Open();
  node.Fill(session, 128);
  const std::vector<ChunkId> more = node.Allocate(session, 1);
  node.hold_memory_ = true;
  const CallId fetch = node.Lease(session, more);
  ASSERT_EQ(node.made_.size(), 2u);
  node.Leave(kReserve - kChunk);
  node.FinishMemory();
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
  EXPECT_GT(node.emptied_.size(), 70u);
  node.FinishMemory();
  node.hold_memory_ = false;
  node.Leave(kPlenty * 8);
  node.Fill(session, 80);
  EXPECT_EQ(node.Host().used, kChunk * 200);
}

TEST(BalloonTest, APartThatCannotBeMadeLeavesWhatWasWithheldToComeBack) {
  BalloonHarness node(Reserving(200, 1024));
  const SessionId session = node.Open();
  node.Fill(session, 128);
  const std::vector<ChunkId> more = node.Allocate(session, 1);
  node.hold_memory_ = node.fail_memory_ = true;
  node.Lease(session, more);
  ASSERT_EQ(node.made_.size(), 2u);
  node.Leave(kReserve - kChunk * 2);
  node.FinishMemory();
  node.FinishTransfers();
  node.fail_memory_ = false;
  node.FinishMemory();
  node.hold_memory_ = false;
  node.Leave(kPlenty);
  node.Fill(session, 16);
  EXPECT_EQ(node.Host().used, kChunk * 128);
}

TEST(BalloonTest, AJobThatEndsGivesAllBackWhateverIsUnderWay) {
  BalloonHarness node;
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Fill(session);
  node.hold_memory_ = true;
  node.Leave(kReserve - kChunk * 6);
  node.FinishTransfers();
  node.Post(ClientGone{session});
  EXPECT_TRUE(node.dropped_.empty());
  node.FinishMemory();
  EXPECT_EQ(node.dropped_.size(), 1u);
  node.FinishMemory();
  for (const PoolUsage& pool : node.Inspect().pools) EXPECT_EQ(pool.free, pool.capacity);
}

TEST(BalloonTest, WhereChunksHaveNowhereToGoNothingIsWithheld) {
  BalloonHarness node(Reserving(16, 0));
  node.Fill(node.Open());
  node.Leave(Bytes(0));
  EXPECT_TRUE(node.emptied_.empty());
  EXPECT_TRUE(node.shortages_.empty());
}

TEST(BalloonTest, WithoutAReserveNothingIsWithheld) {
  EngineOptions options = Reserving();
  options.host_reserve = Bytes(0);
  BalloonHarness node(options);
  node.Fill(node.Open());
  node.Leave(Bytes(0));
  EXPECT_TRUE(node.emptied_.empty());
}

}  // namespace
}  // namespace memtide
