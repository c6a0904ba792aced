#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/resize_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using Kind = StartTransfer::Kind;

// A job on a GPU of 8 slots, one of whose clean drops in two is checked, or in as many as said.
class CleanCheckTest : public testing::Test {
 protected:
  static EngineOptions Options(uint32_t drops_per_check) {
    EngineOptions options = SlotRegions();
    options.clean_drops_per_check = drops_per_check;
    return options;
  }

  explicit CleanCheckTest(uint32_t drops_per_check = 2)
      : node_(Options(drops_per_check)), session_(node_.OpenEight("job", std::chrono::hours(1))) {
    chunks_ = node_.Fill(session_);
    // Written back, so that they are clean when they are read again.
    EvictAll();
    node_.FinishTransfers();
  }
  void ReadAgain() {
    for (const ChunkId chunk : chunks_) node_.Touch(session_, chunk, Access::kRead);
  }
  void EvictAll() { node_.Post(EvictCall{node_.Call(), session_, Tier::kHost, chunks_}); }
  bool OnDevice(ChunkId chunk) { return OnDevice(chunk, session_); }
  bool OnDevice(ChunkId chunk, SessionId session) {
    const DescribeCall describe{node_.Call(), session, {chunk}};
    node_.Post(describe);
    return std::get<DescribeReply>(node_.ReplyTo(describe.call).value).chunks[0].on_device;
  }

  ResizeHarness node_;
  const SessionId session_;
  std::vector<ChunkId> chunks_;
};

TEST_F(CleanCheckTest, OneCleanDropInSoManyIsComparedFirst) {
  ReadAgain();
  EvictAll();
  ASSERT_EQ(node_.transfers_.size(), 4u) << "of 8 drops";
  for (const StartTransfer& transfer : node_.transfers_) {
    EXPECT_EQ(transfer.kind, Kind::kCompareDeviceWithHost);
  }
  EXPECT_TRUE(OnDevice(chunks_[0]));
  node_.FinishTransfers();
  EXPECT_FALSE(OnDevice(chunks_[0]));
  EXPECT_EQ(node_.Inspect().counters.dropped_clean, 8u);
  EXPECT_EQ(node_.Inspect().session_count, 1u);
}

class EachDropIsCheckedTest : public CleanCheckTest {
 protected:
  EachDropIsCheckedTest() : CleanCheckTest(1) {}
};

TEST_F(EachDropIsCheckedTest, ADropIsComparedOnce) {
  ReadAgain();
  EvictAll();
  ASSERT_EQ(node_.transfers_.size(), 8u);
  for (int i = 0; i < 8; ++i) node_.FinishOne();
  EXPECT_TRUE(node_.transfers_.empty());
  EXPECT_EQ(node_.Inspect().counters.dropped_clean, 8u);
}

TEST_F(CleanCheckTest, WhatWasWrittenIsNotCompared) {
  for (const ChunkId chunk : chunks_) node_.Touch(session_, chunk, Access::kWrite);
  EvictAll();
  for (const StartTransfer& transfer : node_.transfers_) {
    EXPECT_EQ(transfer.kind, Kind::kDeviceToHost);
  }
  node_.FinishTransfers();
}

TEST_F(CleanCheckTest, CopiesThatDifferEndTheSessionsOfTheJobWithTheMomentsThatUsedTheChunk) {
  const SessionId other = node_.Open(1000, "job");
  ReportCall report{node_.Call(), session_, {}};
  for (const char* name : {"embed", "attention"}) {
    MomentReport moment;
    moment.name = name;
    moment.uses = {{chunks_[0], Access::kRead}};
    report.moments.push_back(moment);
  }
  node_.Post(report);
  ReadAgain();
  EvictAll();
  node_.FinishOne(absl::DataLossError("they differ at byte 7"));
  ASSERT_EQ(node_.closed_.size(), 2u);
  EXPECT_EQ(node_.closed_[0].session, session_);
  EXPECT_EQ(node_.closed_[1].session, other);
  const std::string why(node_.closed_[0].reason.message());
  for (const char* part : {"at byte 7", "\"attention\", \"embed\"", "MEMTIDE_PROTECT=1"}) {
    EXPECT_NE(why.find(part), std::string::npos) << why;
  }
  node_.FinishTransfers();
  EXPECT_EQ(node_.Inspect().session_count, 0u);
  // The job lingers, and the chunk has the content of the last announced write.
  const SessionId next = node_.Open(1000, "job");
  const CallId fetch = node_.Fetch(next, {chunks_[0]});
  ASSERT_EQ(node_.transfers_.size(), 1u);
  EXPECT_EQ(node_.transfers_[0].kind, Kind::kHostToDevice);
  node_.FinishTransfers();
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk);
}

// Other copies that the program may have written unseen are dropped with the chunk that differs.
TEST_F(CleanCheckTest, ADifferenceDropsAllCopiesThatAreNotTheOnlyOnes) {
  node_.Touch(session_, chunks_[2], Access::kWrite);
  node_.Touch(session_, chunks_[1], Access::kRead);
  node_.Touch(session_, chunks_[0], Access::kRead);
  node_.Post(EvictCall{node_.Call(), session_, Tier::kHost, {chunks_[0]}});
  ASSERT_EQ(node_.transfers_.size(), 1u);
  node_.FinishOne(absl::DataLossError("they differ"));
  const SessionId next = node_.Open(1000, "job");
  EXPECT_FALSE(OnDevice(chunks_[0], next));
  EXPECT_FALSE(OnDevice(chunks_[1], next));
  EXPECT_TRUE(OnDevice(chunks_[2], next)) << "its write was announced";
}

TEST_F(EachDropIsCheckedTest, ADifferenceLeavesWhatIsBeingCompared) {
  ReadAgain();
  EvictAll();
  node_.FinishOne(absl::DataLossError("they differ"));
  for (const PoolUsage& usage : node_.Inspect().pools) {
    if (usage.pool.tier != Tier::kDevice) continue;
    EXPECT_EQ(usage.used, kChunk * 7) << "another chunk would get one of their slots meanwhile";
  }
  node_.FinishTransfers();
}

TEST_F(CleanCheckTest, AChunkThatIsLeasedForWritingMeanwhileMayDiffer) {
  ReadAgain();
  EvictAll();
  const CallId fetch = node_.Fetch(session_, {chunks_[0]}, Access::kWrite);
  node_.FinishOne(absl::DataLossError("they differ"));
  EXPECT_TRUE(node_.closed_.empty());
  node_.FinishTransfers();
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST_F(EachDropIsCheckedTest, AFreedChunkThatDiffersIsFoundAsWell) {
  ReadAgain();
  EvictAll();
  node_.Post(FreeCall{node_.Call(), session_, 1000, chunks_});
  node_.FinishOne(absl::DataLossError("they differ"));
  ASSERT_EQ(node_.closed_.size(), 1u);
  EXPECT_EQ(node_.Inspect().counters.transfers_failed, 0u);
  node_.FinishTransfers();
}

TEST_F(CleanCheckTest, ACheckThatFailsHoldsNothingUp) {
  ReadAgain();
  EvictAll();
  node_.FinishTransfers(absl::InternalError("the copy failed"));
  EXPECT_TRUE(node_.closed_.empty());
  EXPECT_FALSE(OnDevice(chunks_[0]));
}

}  // namespace
}  // namespace memtide
