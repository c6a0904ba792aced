// Resizes that end otherwise than their caller hoped: late, failed, or without it.
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/resize_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;

TEST(ResizeEndingTest, ADeadlineEndsTheWaitAndNotTheShrinking) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  node.Fill(session);
  const CallId resize = node.Resize(session, 4, std::chrono::seconds(2));
  node.FinishTransfers();
  node.Wait(std::chrono::seconds(1));
  EXPECT_FALSE(node.Answered(resize));
  node.Wait(std::chrono::seconds(1));
  EXPECT_EQ(node.CodeOf(resize), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(node.Inspect().counters.deadlines_exceeded, 1u);
  const CallId again = node.Resize(session, 4);
  EXPECT_FALSE(node.Answered(again)) << "what was asked for has not been reached";
  node.ReturnAll(session);
  EXPECT_EQ(node.CodeOf(again), StatusCode::kOk);
  EXPECT_EQ(node.Device().free, kChunk * 8);
  EXPECT_EQ(node.CodeOf(node.Resize(session, 4)), StatusCode::kOk) << "idempotent";
}

TEST(ResizeEndingTest, ARegionIsDroppedWhenEverySessionHasReturnedItOrEnded) {
  ResizeHarness node;
  const SessionId first = node.OpenEight("shared");
  const SessionId second = node.OpenEight("shared"), third = node.OpenEight("shared");
  node.Fill(first);
  const CallId resize = node.Resize(second, 7);
  node.FinishTransfers();
  ASSERT_EQ(node.gone_.size(), 3u);
  const RegionId region = node.gone_[0].region;
  // A session that joins meanwhile gets the other seven regions, and those of the host.
  const size_t sent = node.sent_.size();
  const SessionId joiner = node.OpenEight("shared");
  for (size_t i = sent; i < node.sent_.size(); ++i) EXPECT_NE(node.sent_[i].region, region);
  EXPECT_EQ(node.CodeOf(node.Return(joiner, {region})), StatusCode::kOk);
  node.ReturnAll(first);
  node.ReturnAll(first);
  EXPECT_TRUE(node.dropped_.empty());
  node.Post(ClientGone{third});
  EXPECT_TRUE(node.dropped_.empty());
  node.ReturnAll(second);
  EXPECT_EQ(node.dropped_, std::vector<RegionId>{region});
  EXPECT_EQ(node.CodeOf(resize), StatusCode::kOk);
}

TEST(ResizeEndingTest, WhoeverAskedMayDieAndTheShareStillShrinks) {
  ResizeHarness node;
  const SessionId first = node.OpenEight("shared"), second = node.OpenEight("shared");
  node.Fill(first);
  const CallId resize = node.Resize(first, 4);
  node.Post(ClientGone{first});
  EXPECT_EQ(node.CodeOf(resize), StatusCode::kUnavailable);
  node.FinishTransfers();
  node.ReturnAll(second);
  EXPECT_EQ(node.dropped_.size(), 4u);
  EXPECT_EQ(node.Device().free, kChunk * 8);
}

TEST(ResizeEndingTest, AJobThatLingersShrinksWithoutAskingAnybody) {
  ResizeHarness node;
  const SessionId session = node.OpenEight("kept", std::chrono::hours(1));
  const std::vector<ChunkId> chunks = node.Allocate(session, 8);
  node.Fetch(session, chunks, Access::kWrite);
  node.FinishTransfers();
  node.Resize(session, 4);
  node.Post(ClientGone{session});
  node.FinishTransfers();
  EXPECT_TRUE(node.gone_.empty());
  EXPECT_EQ(node.dropped_.size(), 4u);
  EXPECT_EQ(node.Device().free, kChunk * 8);
}

TEST(ResizeEndingTest, AJobThatEndsInTheMiddleLeavesNothing) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  node.Fill(session);
  node.Resize(session, 4);
  node.FinishTransfers();
  node.Return(session, {node.gone_[0].region});
  node.hold_memory_ = true;
  node.Return(session, {node.gone_[1].region});
  node.Post(ClientGone{session});
  EXPECT_EQ(node.dropped_.size(), 4u) << "those that left; the rest waits for them";
  node.FinishMemory();
  EXPECT_EQ(node.dropped_.size(), 9u) << "eight of the device and one of the host";
  node.FinishMemory();
  node.ExpectEmpty();
}

TEST(ResizeEndingTest, MemoryInTheMakingThatIsNoLongerWantedIsDroppedUnseen) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  const std::vector<ChunkId> chunks = node.Fill(session, 4);
  node.hold_memory_ = true;
  const CallId fetch = node.Fetch(session, node.Allocate(session, 1));
  const RegionId making = node.made_.back().region;
  const CallId resize = node.Resize(session, 4);
  EXPECT_FALSE(node.Answered(resize));
  EXPECT_EQ(node.Device().reserved + node.Device().used, kChunk * 5);
  node.FinishMemory();
  EXPECT_EQ(node.dropped_, std::vector<RegionId>{making});
  EXPECT_NE(node.sent_.back().region, making);
  EXPECT_EQ(node.Device().scrubbing, kChunk);
  EXPECT_FALSE(node.Answered(resize));
  node.FinishMemory();
  EXPECT_EQ(node.CodeOf(resize), StatusCode::kOk);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
}

TEST(ResizeEndingTest, AShareThatMemoryCouldNotBeMadeForMayBeAskedForAgain) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  const std::vector<ChunkId> chunks = node.Fill(session, 4);
  const std::vector<ChunkId> more = node.Allocate(session, 4);
  std::vector<ChunkId> all = chunks;
  all.insert(all.end(), more.begin(), more.end());
  node.fail_memory_ = true;
  EXPECT_EQ(node.CodeOf(node.Fetch(session, all)), StatusCode::kResourceExhausted);
  node.fail_memory_ = false;
  EXPECT_EQ(node.CodeOf(node.Fetch(session, all)), StatusCode::kResourceExhausted) << "capped";
  EXPECT_EQ(node.Resized(node.Resize(session, 8)).device_slots, 8u);
  const CallId fetch = node.Fetch(session, all);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
}

TEST(ResizeEndingTest, MemoryThatFailsToBeMadeAfterAResizeEndsItsWait) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  node.Fill(session, 4);
  node.hold_memory_ = node.fail_memory_ = true;
  node.Fetch(session, node.Allocate(session, 1));
  const CallId resize = node.Resize(session, 4);
  EXPECT_FALSE(node.Answered(resize));
  node.FinishMemory();
  EXPECT_EQ(node.Resized(resize).device_slots, 4u);
  EXPECT_EQ(node.Device().free, kChunk * 8);
  node.FinishTransfers();
}

TEST(ResizeEndingTest, ADrainEndsTheWaitAndRefusesMore) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  node.Fill(session);
  const CallId resize = node.Resize(session, 4);
  const DrainCall drain{node.Call()};
  node.Post(drain);
  EXPECT_EQ(node.CodeOf(resize), StatusCode::kUnavailable);
  EXPECT_EQ(node.CodeOf(node.Resize(session, 8)), StatusCode::kUnavailable);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(drain.call), StatusCode::kOk);
  node.ReturnAll(session);
  EXPECT_EQ(node.Device().free, kChunk * 8);
}

TEST(ResizeEndingTest, AWriteBackThatFailsIsTriedAgain) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  node.Fill(session);
  const CallId resize = node.Resize(session, 7);
  node.FinishOne(absl::InternalError("a lost bus"));
  node.FinishTransfers();
  node.ReturnAll(session);
  EXPECT_EQ(node.CodeOf(resize), StatusCode::kOk) << "another chunk left";
}

}  // namespace
}  // namespace memtide
