#include <gtest/gtest.h>

#include "daemon/service/convert.h"
#include "proto/protocol.h"

namespace memtide {
namespace {

TEST(ConvertResponseTest, ReturnsLeasesInTheirOrder) {
  FetchReply reply;
  reply.leases.push_back(
      {ChunkId(4), Tier::kDevice, {RegionId(2), MiB(64)}, Version(3), Access::kWrite});
  reply.leases.push_back({ChunkId(1), Tier::kHost, {RegionId(1), MiB(0)}, Version(9)});
  v1::FetchResponse response;
  ToResponse(reply, &response);
  ASSERT_EQ(response.leases_size(), 2);
  EXPECT_EQ(response.leases(0).chunk_id(), 4u);
  EXPECT_EQ(response.leases(0).tier(), v1::TIER_DEVICE);
  EXPECT_EQ(response.leases(0).region_id(), 2u);
  EXPECT_EQ(response.leases(0).offset_bytes(), MiB(64).count());
  EXPECT_EQ(response.leases(0).version(), 3u);
  EXPECT_EQ(response.leases(1).chunk_id(), 1u);
}

TEST(ConvertResponseTest, TheLargestRepliesStayBelowTheMessageCap) {
  InspectReply reply;
  ChunkInfo chunk;
  chunk.chunk = ChunkId(UINT64_MAX);
  chunk.job = JobId(UINT64_MAX);
  chunk.version = Version(UINT64_MAX);
  chunk.kind = ChunkKind::kActivation;
  chunk.on_device = chunk.on_host = chunk.on_ssd = chunk.moving = chunk.torn = true;
  chunk.leases = UINT32_MAX;
  reply.chunks.assign(Limits().chunks_per_call, chunk);
  SessionInfo session;
  session.job_name = std::string(kMaxJobNameBytes, 'j');
  session.open = true;
  session.session = SessionId(UINT64_MAX);
  session.device_share = session.host_share = session.chunk_size = Bytes(UINT64_MAX);
  session.kinds.assign(kChunkKinds, {ChunkKind::kActivation, Bytes(UINT64_MAX), Bytes(UINT64_MAX),
                                     Bytes(UINT64_MAX), Bytes(UINT64_MAX)});
  session.rank_use = RankUse{Bytes(UINT64_MAX), Bytes(UINT64_MAX)};
  reply.sessions.assign(Limits{}.sessions, session);
  reply.others = {UINT32_MAX, UINT32_MAX, UINT32_MAX, Bytes(UINT64_MAX), Bytes(UINT64_MAX)};
  reply.next_chunk = UINT32_MAX;
  v1::InspectNodeResponse response;
  ToResponse(reply, &response);
  EXPECT_LT(response.ByteSizeLong(), size_t{1} << 20);
}

TEST(ConvertResponseTest, ATraceSaysWhenItsFirstMomentWasByTheWallClock) {
  TraceReply reply;
  v1::Trace response;
  ToResponse(reply, &response);
  EXPECT_EQ(response.first_moment_unix_ns(), 0);
  reply.moments.emplace_back();
  reply.start = Now() - std::chrono::hours(1);
  const auto an_hour_ago = [] {
    const Duration wall = std::chrono::system_clock::now().time_since_epoch();
    return (wall - std::chrono::hours(1)).count();
  };
  const int64_t earliest = an_hour_ago();
  ToResponse(reply, &response);
  // Two clocks are read one after the other: a second is more than any scheduler takes there.
  EXPECT_GT(response.first_moment_unix_ns(), earliest - 1'000'000'000);
  EXPECT_LT(response.first_moment_unix_ns(), an_hour_ago() + 1'000'000'000);
}

TEST(ConvertResponseTest, TellsOfOthersInSums) {
  InspectReply reply;
  reply.others = {1, 2, 3, MiB(4), MiB(5)};
  reply.next_chunk = 6;
  v1::InspectNodeResponse response;
  ToResponse(reply, &response);
  EXPECT_EQ(response.others().session_count(), 1u);
  EXPECT_EQ(response.others().job_count(), 2u);
  EXPECT_EQ(response.others().chunk_count(), 3u);
  EXPECT_EQ(response.others().device_share_bytes(), MiB(4).count());
  EXPECT_EQ(response.others().host_share_bytes(), MiB(5).count());
  EXPECT_EQ(response.next_chunk(), 6u);
}

}  // namespace
}  // namespace memtide
