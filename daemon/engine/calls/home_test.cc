// Chunks with a home in host memory above SSD, and chunks that end with the last session.
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;

// Thirteen of the host slots are never claimed.
constexpr uint32_t kClaims = 3;
EngineOptions Node() { return {{kChunk * 4}, kChunk * (13 + kClaims), kChunk * 64, Limits()}; }

TEST(HomeTest, InHostMemoryKeepsAChunkFromSsd) {
  EngineHarness node(Node());
  const SessionId session = node.Open();
  const std::vector<ChunkId> high =
      node.ChunksOf(node.AllocateTransient(session, kClaims, Tier::kHost));
  ASSERT_EQ(high.size(), kClaims);
  for (const ChunkId chunk : high) node.Touch(session, chunk, Access::kWrite);
  // More than device and host can hold.
  for (const ChunkId chunk : node.Allocate(session, 24)) {
    node.Touch(session, chunk, Access::kWrite);
  }
  for (const ChunkInfo& chunk : node.Describe(session, high)) {
    EXPECT_TRUE(chunk.on_host && !chunk.on_ssd);
  }
  const EvictCall evict{node.Call(), session, Tier::kSsd, high};
  node.Post(evict);
  EXPECT_EQ(node.CodeOf(evict.call), StatusCode::kOk) << "they are at their home";
  EXPECT_GT(node.Inspect().counters.ssd_written, Bytes(0));
  EXPECT_EQ(node.Inspect().pools[2].used, kChunk * 24);
}

TEST(HomeTest, InHostMemoryIsRefusedWhereOtherChunksNeedTheSlots) {
  EngineHarness node(Node());
  const SessionId session = node.Open();
  EXPECT_EQ(node.CodeOf(node.AllocateTransient(session, kClaims + 1, Tier::kHost)),
            StatusCode::kResourceExhausted);
  const CallId first = node.AllocateTransient(session, kClaims, Tier::kHost);
  EXPECT_EQ(node.CodeOf(first), StatusCode::kOk);
  const CallId refused = node.AllocateTransient(session, 1, Tier::kHost);
  EXPECT_EQ(node.CodeOf(refused), StatusCode::kResourceExhausted);
  EXPECT_NE(node.ReplyTo(refused).status.message().find("3 of the 16 slots"), std::string::npos)
      << node.ReplyTo(refused).status;
  // A step part may need twelve chunks.
  EXPECT_EQ(
      node.CodeOf(node.Fetch(session, node.Allocate(session, 13), Access::kRead, Tier::kHost)),
      StatusCode::kResourceExhausted);
  const CallId fetch = node.Fetch(session, node.Allocate(session, 12), Access::kRead, Tier::kHost);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
  node.Post(FreeCall{node.Call(), session, 900, node.ChunksOf(first)});
  EXPECT_EQ(node.CodeOf(node.AllocateTransient(session, 1, Tier::kHost)), StatusCode::kOk);
}

TEST(HomeTest, InHostMemoryNeedsNoRoomOnSsd) {
  EngineHarness node(Node());
  const SessionId session = node.Open();
  ASSERT_EQ(node.Allocate(session, 64).size(), 64u) << "all that SSD holds";
  EXPECT_EQ(node.CodeOf(node.AllocateTransient(session, 1, Tier::kHost)), StatusCode::kOk);
}

TEST(HomeTest, InHostMemoryIsOnlyForTransientChunksOfAJobWithADevice) {
  EngineHarness node(Node());
  const SessionId session = node.Open();
  AllocateCall allocate{node.Call(), session, 900, 1};
  allocate.home = Tier::kHost;
  node.Post(allocate);
  EXPECT_EQ(node.CodeOf(allocate.call), StatusCode::kInvalidArgument);
  EXPECT_EQ(node.CodeOf(node.AllocateTransient(session, 1, Tier::kDevice)),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(node.CodeOf(node.AllocateTransient(session, 1, Tier::kSsd)), StatusCode::kOk);
  EngineHarness host({{}, kChunk * 32, kChunk * 64, Limits()});
  EXPECT_EQ(host.CodeOf(host.AllocateTransient(host.Open(), 1, Tier::kHost)),
            StatusCode::kInvalidArgument);
  EngineHarness two({{kChunk * 4}, kChunk * 8, Bytes(0), Limits()});
  EXPECT_EQ(two.CodeOf(two.AllocateTransient(two.Open(), 1, Tier::kHost)), StatusCode::kOk)
      << "the lowest tier";
}

TEST(HomeTest, ADiscardLendsTheHostSlotToOthers) {
  EngineHarness node(Node());
  const SessionId session = node.Open();
  const std::vector<ChunkId> high =
      node.ChunksOf(node.AllocateTransient(session, kClaims, Tier::kHost));
  for (const ChunkId chunk : high) node.Touch(session, chunk, Access::kWrite);
  const EvictCall evict{node.Call(), session, Tier::kHost, high};
  node.Post(evict);
  node.FinishTransfers();
  EXPECT_EQ(node.Inspect().pools[1].used, kChunk * kClaims);
  EXPECT_EQ(node.CodeOf(node.Discard(session, high)), StatusCode::kOk);
  EXPECT_EQ(node.Inspect().pools[1].used, Bytes(0));
  // Others fill all of host memory, and yet the chunks find their slots again.
  for (const ChunkId chunk : node.Allocate(session, 24)) {
    node.Touch(session, chunk, Access::kWrite);
  }
  for (const ChunkId chunk : high) node.Touch(session, chunk, Access::kWrite);
  const EvictCall again{node.Call(), session, Tier::kHost, high};
  node.Post(again);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(again.call), StatusCode::kOk);
  for (const ChunkInfo& chunk : node.Describe(session, high)) EXPECT_TRUE(chunk.on_host);
}

TEST(HomeTest, ClaimsAreSafeFromBalloonAndReclaim) {
  EngineOptions options = Node();
  options.host_capacity = kChunk * 64;
  options.host_reserve = MiB(64);
  EngineHarness node(options);
  OpenCall open;
  open.elastic = true;
  const SessionId session = node.OpenAs(open);
  constexpr uint32_t kMany = 40;
  const std::vector<ChunkId> high =
      node.ChunksOf(node.AllocateTransient(session, kMany, Tier::kHost));
  ASSERT_EQ(high.size(), kMany);
  for (const ChunkId chunk : high) node.Touch(session, chunk, Access::kWrite);
  node.Post(HostMemory{Bytes(0)});  // CheckInvariants() compares the slots with the claims.
  node.FinishTransfers();
  // Another job gets no share for which claims would have to go.
  OpenCall other;
  other.elastic = true;
  other.call = node.Call();
  other.session = SessionId(77);
  other.chunk_size = kChunk;
  node.Post(ClientConnected{other.session, 1001, 1});
  node.Post(other);
  for (const ChunkId chunk : high) node.Touch(session, chunk, Access::kRead);
  for (const ChunkInfo& chunk : node.Describe(session, high)) EXPECT_FALSE(chunk.on_ssd);
}

TEST(HomeTest, TransientChunksEndWithTheLastSession) {
  EngineHarness node(Node());
  OpenCall open;
  open.job_name = "job";
  open.time_to_live = std::chrono::hours(1);
  const SessionId session = node.OpenAs(open);
  const std::vector<ChunkId> stays = node.Allocate(session, 1);
  const std::vector<ChunkId> ends = node.ChunksOf(node.AllocateTransient(session, 1, {}));
  node.Post(ClientGone{session});
  EXPECT_EQ(node.Inspect().chunk_count, 1u);
  const SessionId resumed = node.OpenAs(open);
  EXPECT_FALSE(node.Describe(resumed, stays).empty());
  const DescribeCall describe{node.Call(), resumed, ends};
  node.Post(describe);
  EXPECT_EQ(node.CodeOf(describe.call), StatusCode::kNotFound);
}

}  // namespace
}  // namespace memtide
