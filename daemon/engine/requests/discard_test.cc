// Discard: what ends with the content of a chunk, what stays, and who may not do it.
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;

bool IsEmpty(const ChunkInfo& chunk) { return !chunk.on_device && !chunk.on_host && !chunk.on_ssd; }

TEST(DiscardTest, FreesMemorySlotsWithoutAWriteBack) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> dead = node.Allocate(session, 4), next = node.Allocate(session, 4);
  for (const ChunkId chunk : dead) node.Touch(session, chunk, Access::kWrite);
  ASSERT_EQ(node.CodeOf(node.Discard(session, dead)), StatusCode::kOk);
  EXPECT_TRUE(node.transfers_.empty());
  for (const ChunkInfo& chunk : node.Describe(session, dead)) EXPECT_TRUE(IsEmpty(chunk));
  // The device has four slots.
  const CallId fetch = node.Fetch(session, next, Access::kWrite);
  for (const StartTransfer& transfer : node.transfers_) {
    EXPECT_EQ(transfer.kind, StartTransfer::Kind::kZero);
  }
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
}

TEST(DiscardTest, TheNextWriteNeedsNoTransfer) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 1);
  node.Touch(session, chunks[0], Access::kWrite);
  node.Discard(session, chunks);
  const CallId fetch = node.Fetch(session, chunks, Access::kWrite);
  EXPECT_TRUE(node.transfers_.empty());
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
}

TEST(DiscardTest, ATransferInFlightDoesNotBringTheContentBack) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 1);
  node.Touch(session, chunks[0], Access::kWrite);
  const EvictCall evict{node.Call(), session, Tier::kHost, chunks};
  node.Post(evict);
  ASSERT_EQ(node.transfers_.size(), 1u);
  EXPECT_EQ(node.CodeOf(node.Discard(session, chunks)), StatusCode::kOk);
  node.FinishTransfers();
  EXPECT_TRUE(IsEmpty(node.Describe(session, chunks)[0]));
  EXPECT_EQ(node.CodeOf(evict.call), StatusCode::kOk) << "it has left the device";
  const InspectReply inspect = node.Inspect();
  EXPECT_EQ(inspect.pools[0].used, Bytes(0));
  EXPECT_EQ(inspect.pools[1].used, Bytes(0));
}

TEST(DiscardTest, EndsLeasesOfItsSessionAndIsRefusedForThoseOfOthers) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open(1000, "job"), other = node.Open(1000, "job");
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  const CallId fetch = node.Fetch(session, chunks, Access::kWrite);
  node.FinishTransfers();
  ASSERT_EQ(node.CodeOf(fetch), StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(node.Discard(other, chunks)), StatusCode::kFailedPrecondition);
  EXPECT_EQ(node.Describe(session, chunks)[0].leases, 1u);
  EXPECT_EQ(node.CodeOf(node.Discard(session, chunks)), StatusCode::kOk);
  EXPECT_EQ(node.Describe(session, chunks)[0].leases, 0u);
  EXPECT_EQ(node.CodeOf(node.Release(session, chunks)), StatusCode::kFailedPrecondition);
}

TEST(DiscardTest, IsRefusedWhereAFetchWaits) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 1);
  const CallId fetch = node.Fetch(session, chunks, Access::kWrite);
  EXPECT_EQ(node.CodeOf(node.Discard(session, chunks)), StatusCode::kFailedPrecondition);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
}

TEST(DiscardTest, HappensOnceForARequest) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 1);
  node.Touch(session, chunks[0], Access::kWrite);
  DiscardCall discard{node.Call(), session, 900, chunks};
  node.Post(discard);
  node.Touch(session, chunks[0], Access::kWrite);
  discard.call = node.Call();
  node.Post(discard);
  EXPECT_EQ(node.CodeOf(discard.call), StatusCode::kOk);
  EXPECT_TRUE(node.Describe(session, chunks)[0].on_device) << "it was written since";
}

// Uses chunks in order, forwards and backwards, as an iteration does with what forward saves.
class IterationsHarness : public EngineHarness {
 public:
  IterationsHarness() : EngineHarness(ThreeTiers()) {}
  void Use(SessionId session, ChunkId chunk, Access access) {
    FetchCall fetch;
    fetch.call = Call();
    fetch.session = session;
    fetch.access = access;
    fetch.chunks = {chunk};
    fetch.moments.emplace_back();
    fetch.moments.back().uses = {{chunk, access}};
    Post(fetch);
    waited_ += !Answered(fetch.call);
    FinishTransfers();
    EXPECT_EQ(CodeOf(fetch.call), StatusCode::kOk);
    Release(session, {chunk});
    FinishTransfers();
  }
  // The number of fetches that waited.
  int Iterate(SessionId session, const std::vector<ChunkId>& chunks) {
    waited_ = 0;
    for (const ChunkId chunk : chunks) Use(session, chunk, Access::kWrite);
    for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
      Use(session, *chunk, Access::kRead);
    }
    EXPECT_EQ(CodeOf(Discard(session, chunks)), StatusCode::kOk);
    MomentReport end;
    end.ends_iteration = true;
    Post(ReportCall{Call(), session, {end}});
    return waited_;
  }

 private:
  int waited_ = 0;
};

TEST(DiscardTest, TheNextIterationIsPredicted) {
  IterationsHarness node;
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.ChunksOf(node.AllocateTransient(session, 10, {}));
  const int unpredicted = node.Iterate(session, chunks);
  node.Iterate(session, chunks);
  const Counters before = node.Inspect().counters;
  EXPECT_GT(unpredicted, 0);
  EXPECT_LT(node.Iterate(session, chunks), unpredicted);
  const Counters after = node.Inspect().counters;
  EXPECT_GT(after.iterations, before.iterations);
  EXPECT_EQ(after.iteration_mispredictions, before.iteration_mispredictions);
}

}  // namespace
}  // namespace memtide
