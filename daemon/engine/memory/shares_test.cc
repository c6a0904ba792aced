// Elastic shares: several jobs, none of which asked for a size.
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;

constexpr uint32_t kHostSlots = 48, kSsdSlots = 1024;

// A node without a device: 48 host slots, and SSD for 8 segments of 128 slots.
class SharesHarness : public EngineHarness {
 public:
  explicit SharesHarness(uint64_t ssd_slots = kSsdSlots, uint64_t host_slots = kHostSlots)
      : EngineHarness({{}, kChunk * host_slots, kChunk * ssd_slots, Limits()}) {}

  CallId BeginOpen(Bytes host_share = Bytes(0), std::string name = "") {
    OpenCall open = ElasticOpen(std::move(name));
    open.host_share = host_share;
    return BeginOpenAs(std::move(open));
  }
  SessionId OpenElastic(std::string name = "") {
    const CallId call = BeginOpen(Bytes(0), std::move(name));
    FinishTransfers();
    EXPECT_EQ(CodeOf(call), StatusCode::kOk) << ReplyTo(call).status;
    return last_opened();
  }
  // Chunks that were written in host memory, none leased.
  std::vector<ChunkId> Fill(SessionId session, uint32_t count) {
    const std::vector<ChunkId> chunks = Allocate(session, count);
    for (const ChunkId chunk : chunks) Use(session, chunk);
    return chunks;
  }
  void Use(SessionId session, ChunkId chunk) {
    const CallId fetch = Fetch(session, {chunk}, Access::kWrite, Tier::kHost);
    FinishTransfers();
    EXPECT_EQ(CodeOf(fetch), StatusCode::kOk) << ReplyTo(fetch).status;
    Release(session, {chunk});
  }
  uint64_t ShareOf(SessionId session) {
    InspectCall inspect;
    inspect.call = Call();
    inspect.sessions = true;
    Post(inspect);
    for (const SessionInfo& info : std::get<InspectReply>(ReplyTo(inspect.call).value).sessions) {
      if (info.session == session) return info.host_share / kChunk;
    }
    ADD_FAILURE() << "no session " << session;
    return 0;
  }
  uint64_t FreeAt(size_t pool) { return Inspect().pools[pool].free / kChunk; }
};

TEST(SharesTest, OneJobAloneHasEverything) {
  SharesHarness node;
  const SessionId session = node.OpenElastic();
  EXPECT_EQ(node.ShareOf(session), kHostSlots);
  node.Fill(session, 200);
  EXPECT_EQ(node.Inspect().pools[0].used, kChunk * kHostSlots);
}

TEST(SharesTest, WhatIsNotUsedIsCededAtOnce) {
  SharesHarness node;
  const SessionId first = node.OpenElastic();
  node.Fill(first, 8);
  const CallId open = node.BeginOpen();
  EXPECT_EQ(node.CodeOf(open), StatusCode::kOk) << "nobody had to leave";
  EXPECT_GE(node.ShareOf(node.last_opened()), 12u);
  node.Fill(node.last_opened(), 40);
  EXPECT_GE(node.ShareOf(node.last_opened()), kHostSlots / 2);
  EXPECT_EQ(node.transfers_.size(), 0u);
  EXPECT_EQ(node.Inspect().counters.host_reclaimed, kChunk * (kHostSlots - node.ShareOf(first)));
}

TEST(SharesTest, AFullPoolIsSharedByHalves) {
  SharesHarness node;
  const SessionId first = node.OpenElastic();
  const std::vector<ChunkId> chunks = node.Fill(first, 100);
  EXPECT_EQ(node.ShareOf(first), kHostSlots);
  const CallId open = node.BeginOpen();
  EXPECT_FALSE(node.Answered(open)) << "victims leave first";
  node.FinishTransfers();
  ASSERT_EQ(node.CodeOf(open), StatusCode::kOk);
  const SessionId second = node.last_opened();
  EXPECT_GE(node.ShareOf(first), 2 * kHostSlots / 3) << "no more than it needs so far";
  node.Fill(second, 100);
  EXPECT_EQ(node.ShareOf(second), kHostSlots / 2);
  EXPECT_EQ(node.ShareOf(first), kHostSlots / 2);
  // Neither job reclaims more from the other.
  for (const ChunkId chunk : chunks) node.Use(first, chunk);
  EXPECT_EQ(node.ShareOf(second), kHostSlots / 2);
}

TEST(SharesTest, WhoStaysHasAllOfItAgain) {
  SharesHarness node;
  const SessionId first = node.OpenElastic();
  const std::vector<ChunkId> chunks = node.Fill(first, 100);
  const SessionId second = node.OpenElastic();
  node.Fill(second, 100);
  node.Post(ClientGone{second});
  for (const ChunkId chunk : chunks) node.Use(first, chunk);
  EXPECT_EQ(node.ShareOf(first), kHostSlots);
  EXPECT_EQ(node.Inspect().pools[0].used, kChunk * kHostSlots);
}

TEST(SharesTest, AJobWithoutSessionsCedesAllButItsClaim) {
  SharesHarness node;
  const SessionId first = node.OpenElastic("kept");
  const std::vector<ChunkId> chunks = node.Fill(first, 100);
  node.Post(ClientGone{first});
  EXPECT_EQ(node.FreeAt(0), 0u) << "nobody wants it";
  const SessionId second = node.OpenElastic();
  node.Fill(second, 100);
  EXPECT_EQ(node.ShareOf(second), kHostSlots - 12);
  const SessionId again = node.OpenElastic("kept");
  for (const ChunkId chunk : chunks) node.Use(again, chunk);
  EXPECT_EQ(node.ShareOf(again), kHostSlots / 2);
  EXPECT_EQ(node.ShareOf(second), kHostSlots / 2);
}

TEST(SharesTest, LeasedChunksStay) {
  SharesHarness node;
  const SessionId first = node.OpenElastic();
  const std::vector<ChunkId> chunks = node.Allocate(first, 48);
  const std::vector<ChunkId> leased(chunks.begin(), chunks.begin() + 40);
  const CallId fetch = node.Fetch(first, leased, Access::kWrite, Tier::kHost);
  node.FinishTransfers();
  ASSERT_EQ(node.CodeOf(fetch), StatusCode::kOk);
  const CallId open = node.BeginOpen();
  node.FinishTransfers();
  EXPECT_FALSE(node.Answered(open)) << "40 are leased, and 4 more may be touched";
  node.Release(first, leased);
  node.FinishTransfers();
  node.Wait(std::chrono::milliseconds(100));
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(open), StatusCode::kOk);
}

TEST(SharesTest, AnOpenThatGetsNothingIsRefusedInTime) {
  SharesHarness node;
  const SessionId first = node.OpenElastic();
  const std::vector<ChunkId> chunks = node.Allocate(first, 44);
  node.Fetch(first, chunks, Access::kWrite, Tier::kHost);
  node.FinishTransfers();
  const CallId open = node.BeginOpen();
  for (int i = 0; i < 11; ++i) node.Wait(std::chrono::seconds(1));
  EXPECT_EQ(node.CodeOf(open), StatusCode::kResourceExhausted);
  const std::string message(node.ReplyTo(open).status.message());
  EXPECT_NE(message.find("other jobs did not give enough back in 10 s"), message.npos) << message;
}

TEST(SharesTest, ASizeThatIsAskedForIsCededToo) {
  SharesHarness node;
  const SessionId first = node.OpenElastic();
  node.Fill(first, 100);
  const CallId open = node.BeginOpen(kChunk * 20);
  node.FinishTransfers();
  ASSERT_EQ(node.CodeOf(open), StatusCode::kOk);
  EXPECT_EQ(node.ShareOf(node.last_opened()), 20u);
  EXPECT_EQ(node.ShareOf(first), 28u);
  // No slot is reclaimed from a fixed share or a guaranteed share.
  const CallId more = node.BeginOpen(kChunk * 20);
  EXPECT_EQ(node.CodeOf(more), StatusCode::kResourceExhausted);
}

TEST(SharesTest, ClaimsAreAllThatCanBeHad) {
  SharesHarness node;
  for (int i = 0; i < 4; ++i) node.Fill(node.OpenElastic(), 100);
  const CallId fifth = node.BeginOpen();
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fifth), StatusCode::kResourceExhausted);
}

// A second job begins with less than its guaranteed share, while the first one, larger, gives back
// the rest.
TEST(SharesTest, AClaimMayBeMoreThanThereIsSoFar) {
  SharesHarness node(/*ssd_slots=*/4096, /*host_slots=*/512);
  const SessionId first = node.OpenElastic();
  node.Fill(first, 600);
  const SessionId second = node.OpenElastic();
  EXPECT_LE(node.ShareOf(second), 64u);
  node.hold_memory_ = true;
  node.Post(ClientGone{first});
  EXPECT_LT(node.FreeAt(0), 64u) << "it is being given back";
  const CallId third = node.BeginOpen();
  EXPECT_FALSE(node.Answered(third));
  while (!node.Answered(third)) node.FinishMemory();
  EXPECT_EQ(node.CodeOf(third), StatusCode::kOk);
  node.hold_memory_ = false;
  node.FinishMemory();
  node.Fill(second, 600);
  EXPECT_GE(node.ShareOf(second), 192u);
}

TEST(SharesTest, SsdIsLentAsItIsNeeded) {
  SharesHarness node;
  const SessionId first = node.OpenElastic();
  EXPECT_EQ(node.Allocate(first, 400).size(), 400u);  // 4 segments of 128.
  const SessionId second = node.OpenElastic();
  EXPECT_EQ(node.Allocate(second, 500).size(), 500u);  // The other 4.
  EXPECT_EQ(node.Allocate(first, 112).size(), 112u);
  AllocateCall more{node.Call(), first, 77, 1};
  node.Post(more);
  EXPECT_EQ(node.CodeOf(more.call), StatusCode::kResourceExhausted);
  node.Post(ClientGone{second});
  EXPECT_EQ(node.Allocate(first, 200).size(), 200u);
}

TEST(SharesTest, ASmallSsdIsOnePart) {
  SharesHarness node(/*ssd_slots=*/100);
  const SessionId first = node.OpenElastic();
  EXPECT_EQ(node.Allocate(first, 100).size(), 100u);
  const CallId open = node.BeginOpen();
  EXPECT_EQ(node.CodeOf(open), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace memtide
