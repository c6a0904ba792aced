// Shares of the device that change while their job runs.
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/resize_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;

TEST(ResizeTest, AShareThatShrinksGivesItsMemoryBack) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  const std::vector<ChunkId> chunks = node.Fill(session);
  const CallId resize = node.Resize(session, 5);
  node.FinishTransfers();
  EXPECT_FALSE(node.Answered(resize));
  ASSERT_EQ(node.gone_.size(), 3u);
  EXPECT_EQ(node.gone_[0].device_slots, 5u);
  EXPECT_EQ(node.gone_[0].lease_budget, 4u);
  EXPECT_TRUE(node.dropped_.empty()) << "the session has them still";
  PoolUsage device = node.Device();
  EXPECT_EQ(device.scrubbing, kChunk * 3);
  EXPECT_EQ(device.free, kChunk * 4);
  node.ReturnAll(session);
  EXPECT_EQ(node.Resized(resize).device_slots, 5u);
  EXPECT_EQ(node.Resized(resize).lease_budget, 4u);
  EXPECT_EQ(node.dropped_.size(), 3u);
  EXPECT_EQ(node.Device().free, kChunk * 7);
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kRead);
  node.Post(ClientGone{session});
  node.ExpectEmpty();
}

TEST(ResizeTest, SlotsThatNobodyUsesGoFirstAndMemoryThatWasNeverMadeAtOnce) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  node.Fill(session, 2);  // Four slots exist since the job was opened.
  const CallId unmade = node.Resize(session, 4);
  EXPECT_EQ(node.Resized(unmade).device_slots, 4u);
  EXPECT_TRUE(node.gone_.empty());
  EXPECT_EQ(node.Device().free, kChunk * 8);
  EXPECT_EQ(node.CodeOf(node.Resize(session, 8)), StatusCode::kOk);
  const std::vector<ChunkId> chunks = node.Fill(session, 6);
  node.Post(EvictCall{node.Call(), session, Tier::kHost, {chunks[0], chunks[1]}});
  node.FinishTransfers();
  node.Resize(session, 6);
  EXPECT_TRUE(node.transfers_.empty());
  EXPECT_EQ(node.gone_.size(), 2u);
}

TEST(ResizeTest, MemoryThatGrowsComesAsItIsNeededAlsoForSlotsThatWereGivenBack) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  const std::vector<ChunkId> chunks = node.Fill(session);
  node.Resize(session, 4);
  node.FinishTransfers();
  node.ReturnAll(session);
  const size_t made = node.made_.size();
  const CallId grow = node.Resize(session, 12);
  EXPECT_EQ(node.Resized(grow).device_slots, 12u);
  EXPECT_EQ(node.made_.size(), made);
  EXPECT_EQ(node.Device().free, Bytes(0));
  const CallId fetch = node.Fetch(session, chunks, Access::kWrite);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
  EXPECT_EQ(node.made_.size(), made + 4);
  node.Post(ClientGone{session});
  node.ExpectEmpty();
}

TEST(ResizeTest, LeasesAboveTheNewShareAreAskedBackUntilTheyCome) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  const std::vector<ChunkId> chunks = node.Allocate(session, 8);
  node.Fetch(session, chunks, Access::kWrite);
  node.FinishTransfers();
  const CallId resize = node.Resize(session, 5);
  ASSERT_EQ(node.revokes_.size(), 1u);
  EXPECT_EQ(node.revokes_[0].count, 3u);
  node.Wait(std::chrono::milliseconds(50));
  EXPECT_EQ(node.revokes_.size(), 1u);
  node.Wait(std::chrono::milliseconds(60));
  EXPECT_EQ(node.revokes_.size(), 2u);
  // Leases stay, and the same chunks may be fetched again.
  EXPECT_EQ(node.CodeOf(node.Fetch(session, {chunks[0]}, Access::kWrite)), StatusCode::kOk);
  node.Release(session, {chunks[0], chunks[1], chunks[2]});
  node.FinishTransfers();
  EXPECT_EQ(node.gone_.size(), 3u);
  node.ReturnAll(session);
  EXPECT_EQ(node.CodeOf(resize), StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(node.Fetch(session, {chunks[4]})), StatusCode::kOk);
}

TEST(ResizeTest, FetchesThatNoLongerFitAreRefusedAndNewOnesJudgedByTheNewShare) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  const std::vector<ChunkId> chunks = node.Allocate(session, 12);
  const CallId admitted = node.Fetch(session, {chunks.begin(), chunks.begin() + 6});
  const CallId queued = node.Fetch(session, {chunks.begin() + 6, chunks.end()});
  const CallId resize = node.Resize(session, 5);
  EXPECT_EQ(node.CodeOf(admitted), StatusCode::kResourceExhausted);
  EXPECT_EQ(node.CodeOf(queued), StatusCode::kResourceExhausted);
  EXPECT_EQ(node.CodeOf(node.Fetch(session, {chunks.begin(), chunks.begin() + 6})),
            StatusCode::kResourceExhausted);
  const CallId fits = node.Fetch(session, {chunks.begin(), chunks.begin() + 5});
  node.FinishTransfers();
  node.ReturnAll(session);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(resize), StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(fits), StatusCode::kOk);
}

TEST(ResizeTest, ASecondResizeTakesThePlaceOfTheFirst) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  const std::vector<ChunkId> chunks = node.Allocate(session, 8);
  node.Fetch(session, chunks, Access::kWrite);
  node.FinishTransfers();
  const CallId first = node.Resize(session, 4);
  node.Release(session, {chunks[0]});
  node.FinishTransfers();
  EXPECT_EQ(node.gone_.size(), 1u);
  // The share grows again while seven slots exist: they stay, and the region that was given up
  // leaves.
  const CallId second = node.Resize(session, 8);
  EXPECT_EQ(node.CodeOf(first), StatusCode::kAborted);
  EXPECT_EQ(node.CodeOf(second), StatusCode::kOk);
  EXPECT_EQ(node.Device().scrubbing, kChunk);
  EXPECT_EQ(node.Device().free, kChunk * 3);
  const CallId fetch = node.Fetch(session, {chunks[0]});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
  EXPECT_EQ(node.gone_.size(), 1u);
  node.ReturnAll(session);
  EXPECT_EQ(node.Device().free, kChunk * 4);
}

TEST(ResizeTest, AShrunkShareThatGrowsHalfwayWaitsForTheRest) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  node.Fetch(session, node.Allocate(session, 8), Access::kWrite);
  node.FinishTransfers();
  node.Resize(session, 4);
  const CallId second = node.Resize(session, 6);
  EXPECT_FALSE(node.Answered(second));
  EXPECT_EQ(node.revokes_.size(), 1u);
}

TEST(ResizeTest, RegionsThatWereNotAskedBackAreIgnoredAndListsBounded) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  node.Fill(session);
  std::vector<RegionId> regions;
  for (const MakeRegion& made : node.made_) regions.push_back(made.region);
  regions.push_back(RegionId(0));
  regions.push_back(RegionId(UINT32_MAX));
  EXPECT_EQ(node.CodeOf(node.Return(session, regions)), StatusCode::kOk);
  EXPECT_TRUE(node.dropped_.empty());
  regions.assign(Limits().device_regions + 1, RegionId(1));
  EXPECT_EQ(node.CodeOf(node.Return(session, regions)), StatusCode::kInvalidArgument);
  EXPECT_EQ(node.CodeOf(node.Return(SessionId(99), {})), StatusCode::kUnauthenticated);
}

TEST(ResizeTest, RefusesWhatCannotBeMeant) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  EXPECT_EQ(node.CodeOf(node.Resize(session, 3)), StatusCode::kInvalidArgument);
  EXPECT_EQ(node.CodeOf(node.Resize(session, 8, Duration(-1))), StatusCode::kInvalidArgument);
  EXPECT_EQ(node.CodeOf(node.Resize(session, 8, std::chrono::hours(1))),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(node.CodeOf(node.Resize(session, 13)), StatusCode::kResourceExhausted);
  const ResizeCall all{node.Call(), session, Bytes(UINT64_MAX), Duration(0)};
  node.Post(all);
  EXPECT_EQ(node.CodeOf(all.call), StatusCode::kResourceExhausted);
  EXPECT_EQ(node.CodeOf(node.Resize(SessionId(77), 8)), StatusCode::kUnauthenticated);
  EXPECT_EQ(node.Inspect().counters.calls_refused, 5u);
  const ResizeCall uneven{node.Call(), session, kChunk * 6 + KiB(4), Duration(0)};
  node.Post(uneven);
  EXPECT_EQ(node.Resized(uneven.call).device_slots, 6u);
}

TEST(ResizeTest, OnlyJobsWithSlotRegionsAndAHomeBelowAreResized) {
  EngineOptions options = SlotRegions();
  options.host_capacity = options.ssd_capacity = Bytes();
  ResizeHarness home(options);
  EXPECT_EQ(home.CodeOf(home.Resize(home.OpenEight(), 5)), StatusCode::kFailedPrecondition);
  options = SlotRegions();
  options.device_kinds = {MemoryKind::kSharedMemory};
  ResizeHarness emulated(options);
  EXPECT_EQ(emulated.CodeOf(emulated.Resize(emulated.OpenEight(), 5)),
            StatusCode::kFailedPrecondition);
  options.device_capacities.clear();
  ResizeHarness none(options);
  EXPECT_EQ(none.CodeOf(none.Resize(none.Open(), 5)), StatusCode::kFailedPrecondition);
}

TEST(ResizeTest, RegionsOnTheirWayOutCountTowardsTheLimit) {
  EngineOptions options = SlotRegions();
  options.limits.device_regions = 8;
  ResizeHarness node(options);
  const SessionId session = node.OpenEight();
  node.Fill(session);
  node.Resize(session, 4);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(node.Resize(session, 8)), StatusCode::kResourceExhausted);
  node.ReturnAll(session);
  EXPECT_EQ(node.CodeOf(node.Resize(session, 8)), StatusCode::kOk);
}

}  // namespace
}  // namespace memtide
