// InspectCall and TraceCall: what they tell of whose jobs.
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;

class InspectTest : public testing::Test {
 protected:
  // A job of four chunks at the device, four in host memory and `ssd_chunks`.
  SessionId OpenSmall(uint32_t uid, uint64_t ssd_chunks = 32) {
    OpenCall open;
    open.device_share = open.host_share = kChunk * 4;
    open.ssd_share = kChunk * ssd_chunks;
    return node_.OpenAs(open, uid);
  }
  InspectReply Inspect(absl::optional<uint32_t> viewer, uint32_t first_chunk = 0,
                       uint32_t max_chunks = 100) {
    InspectCall call;
    call.call = node_.Call();
    call.viewer = viewer;
    call.sessions = true;
    call.first_chunk = first_chunk;
    call.max_chunks = max_chunks;
    node_.Post(call);
    return std::get<InspectReply>(node_.ReplyTo(call.call).value);
  }
  StatusCode CodeOfTrace(absl::optional<uint32_t> viewer, JobId job) {
    TraceCall call;
    call.call = node_.Call();
    call.viewer = viewer;
    call.job = job;
    node_.Post(call);
    return node_.CodeOf(call.call);
  }
  static std::vector<ChunkId> Ids(const InspectReply& reply) {
    std::vector<ChunkId> ids;
    for (const ChunkInfo& chunk : reply.chunks) ids.push_back(chunk.chunk);
    return ids;
  }

  EngineHarness node_{EngineOptions{{kChunk * 16}, kChunk * 16, kChunk * 32768, Limits()}};
};

TEST_F(InspectTest, AUserSeesItsOwnJobsWholeAndSumsOfOthers) {
  const SessionId own = OpenSmall(1000);
  const std::vector<ChunkId> chunks = node_.Allocate(own, 3);
  for (const uint32_t uid : {1001u, 1002u}) node_.Allocate(OpenSmall(uid), 5);
  node_.Post(ClientConnected{SessionId(99), 1001, 1});  // It has no job.
  const InspectReply seen = Inspect(1000);
  ASSERT_EQ(seen.sessions.size(), 1u);
  EXPECT_EQ(seen.sessions[0].session, own);
  EXPECT_EQ(seen.sessions[0].kinds[static_cast<int>(ChunkKind::kOther)].allocated, kChunk * 3);
  EXPECT_EQ(Ids(seen), chunks);
  EXPECT_EQ(seen.others.sessions, 3u);
  EXPECT_EQ(seen.others.jobs, 2u);
  EXPECT_EQ(seen.others.chunks, 10u);
  EXPECT_EQ(seen.others.device_share, kChunk * 8);
  EXPECT_EQ(seen.others.host_share, kChunk * 8);
  EXPECT_EQ(seen.session_count, 4u);
  EXPECT_EQ(seen.chunk_count, 13u);
  EXPECT_EQ(seen.kinds[static_cast<int>(ChunkKind::kOther)].allocated, kChunk * 13);

  const InspectReply all = Inspect(absl::nullopt);
  EXPECT_EQ(all.sessions.size(), 4u);
  EXPECT_EQ(all.chunks.size(), 13u);
  EXPECT_EQ(all.others.sessions + all.others.jobs + all.others.chunks, 0u);
  EXPECT_TRUE(all.others.host_share.IsZero());
}

TEST_F(InspectTest, PagesLeaveOutTheChunksOfOthers) {
  const SessionId own = OpenSmall(1000), other = OpenSmall(1001);
  std::vector<ChunkId> chunks = node_.Allocate(own, 2);
  node_.Allocate(other, 6);
  for (const ChunkId chunk : node_.Allocate(own, 2)) chunks.push_back(chunk);
  std::vector<ChunkId> listed;
  uint32_t pages = 0, next = 0;
  do {
    const InspectReply page = Inspect(1000, next, /*max_chunks=*/3);
    for (const ChunkId chunk : Ids(page)) listed.push_back(chunk);
    EXPECT_TRUE(page.next_chunk == 0 || page.next_chunk > next);
    next = page.next_chunk;
    ++pages;
  } while (next != 0 && pages < 10);
  EXPECT_EQ(listed, chunks);
  EXPECT_EQ(pages, 2u);
  EXPECT_TRUE(Inspect(1000, UINT32_MAX).chunks.empty());
}

TEST_F(InspectTest, ATraceOfAnotherUsersJobDoesNotExist) {
  OpenSmall(1000);
  OpenSmall(1001);
  const JobId own = Inspect(1000).sessions.at(0).job, other = Inspect(1001).sessions.at(0).job;
  EXPECT_EQ(CodeOfTrace(1000, own), StatusCode::kOk);
  EXPECT_EQ(CodeOfTrace(1000, other), StatusCode::kNotFound);
  EXPECT_EQ(CodeOfTrace(absl::nullopt, other), StatusCode::kOk);
  EXPECT_EQ(CodeOfTrace(1000, JobId()), StatusCode::kOk) << "the only one of this user";
  EXPECT_EQ(CodeOfTrace(absl::nullopt, JobId()), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOfTrace(1002, JobId()), StatusCode::kNotFound);
}

TEST_F(InspectTest, ManyChunksAreSummedTenTimesASecondAtMost) {
  const auto allocated = [this] {
    return Inspect(absl::nullopt, 0, 0).kinds[static_cast<int>(ChunkKind::kOther)].allocated;
  };
  const SessionId session = OpenSmall(1000, 30000);
  node_.Allocate(session, 7);
  EXPECT_EQ(allocated(), kChunk * 7);
  node_.Allocate(session, 1);
  EXPECT_EQ(allocated(), kChunk * 8) << "of few chunks, the sums are those of the moment";
  for (int i = 0; i < 5; ++i) node_.Allocate(session, 4096);
  const Bytes sum = kChunk * (8 + 5 * 4096);
  node_.Wait(std::chrono::milliseconds(100));
  EXPECT_EQ(allocated(), sum);
  node_.Allocate(session, 10);
  node_.Wait(std::chrono::milliseconds(99));
  EXPECT_EQ(allocated(), sum);
  EXPECT_EQ(Inspect(absl::nullopt).chunk_count, 8u + 5 * 4096 + 10);
  node_.Wait(std::chrono::milliseconds(1));
  EXPECT_EQ(allocated(), sum + kChunk * 10);
}

}  // namespace
}  // namespace memtide
