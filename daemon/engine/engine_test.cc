#include "daemon/engine/engine.h"

#include <vector>

#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

TEST(EngineTest, AFetchOfAResidentChunkMovesNothing) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const ChunkId chunk = node.Allocate(session, 1)[0];
  node.Touch(session, chunk, Access::kWrite);
  const CallId again = node.Fetch(session, {chunk});
  EXPECT_TRUE(node.transfers_.empty());
  EXPECT_EQ(node.CodeOf(again), absl::StatusCode::kOk);
  EXPECT_EQ(node.Inspect().counters.fetch_hits, 1u);
}

TEST(EngineTest, AFetchKnowsWhetherItWaited) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const ChunkId chunk = node.Allocate(session, 1)[0];
  const CallId moved = node.Fetch(session, {chunk});
  node.Wait(std::chrono::milliseconds(1));
  node.FinishTransfers();
  EXPECT_TRUE(std::get<FetchReply>(node.ReplyTo(moved).value).waited);
  const CallId at_once = node.Fetch(session, {chunk});
  EXPECT_FALSE(std::get<FetchReply>(node.ReplyTo(at_once).value).waited);
}

TEST(EngineTest, AVictimThatWasOnlyReadLeavesWithoutAWrite) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 12);
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kWrite);
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kRead);
  const Bytes written = node.Inspect().counters.ssd_written;
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kRead);
  EXPECT_EQ(node.Inspect().counters.ssd_written, written);
}

TEST(EngineTest, AChunkOnSsdReachesTheDeviceThroughAFullHost) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 12);
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kWrite);
  const CallId fetch = node.Fetch(session, {chunks[0], chunks[1], chunks[2]});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST(EngineTest, NothingIsZeroedInAChunkThatMayHoldAnything) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 8, 0, true);
  const CallId fetch = node.Fetch(session, {chunks[0], chunks[1]}, Access::kWrite);
  EXPECT_TRUE(node.transfers_.empty());
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
  node.Release(session, {chunks[0], chunks[1]});
  // Written content is evicted and promoted as any other, even beside chunks that were only read.
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kRead);
  const Bytes brought = node.Inspect().counters.host_to_device;
  node.Touch(session, chunks[0], Access::kRead);
  EXPECT_EQ(node.Inspect().counters.host_to_device, brought + kChunk);
  EXPECT_EQ(node.Inspect().counters.zeroed, Bytes(0));
}

TEST(EngineTest, RepeatingARequestHasOneEffectAndTheSameReply) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> first = node.Allocate(session, 3, 77);
  EXPECT_EQ(node.Allocate(session, 3, 77), first);
  EXPECT_EQ(node.Inspect().chunk_count, 3u);
}

TEST(EngineTest, AWriterThatDiesLeavesATornChunkThatCannotBeRead) {
  EngineHarness node(ThreeTiers());
  const SessionId writer = node.Open(1000, "shared");
  const SessionId reader = node.Open(1000, "shared");
  const ChunkId chunk = node.Allocate(writer, 1)[0];
  node.Fetch(writer, {chunk}, Access::kWrite);
  node.FinishTransfers();
  node.Post(ClientGone{writer});
  EXPECT_EQ(node.CodeOf(node.Fetch(reader, {chunk})), absl::StatusCode::kDataLoss);
  EXPECT_EQ(node.CodeOf(node.Fetch(reader, {chunk}, Access::kWrite)), absl::StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(node.Fetch(reader, {chunk})), absl::StatusCode::kOk);
}

TEST(EngineTest, AForeignChunkLooksLikeOneThatDoesNotExist) {
  EngineHarness node({{kChunk * 8}, kChunk * 8, kChunk * 64, Limits()});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(900);
  open.chunk_size = kChunk;
  open.device_share = open.host_share = kChunk * 4;
  open.ssd_share = kChunk * 32;
  node.Post(ClientConnected{open.session, 1, 1});
  node.Post(open);
  const SessionId other = node.Open(2);
  const ChunkId chunk = node.Allocate(open.session, 1)[0];
  const std::string foreign(node.ReplyTo(node.Fetch(other, {chunk})).status.message());
  EXPECT_EQ(foreign, "there is no chunk " + std::to_string(chunk.value()));
}

TEST(EngineTest, AWriterWaitsForReadersAndAsksForTheirLeases) {
  EngineHarness node(ThreeTiers());
  const SessionId reader = node.Open(1000, "shared");
  const SessionId writer = node.Open(1000, "shared");
  const ChunkId chunk = node.Allocate(reader, 1)[0];
  node.Fetch(reader, {chunk});
  node.FinishTransfers();
  const CallId write = node.Fetch(writer, {chunk}, Access::kWrite);
  EXPECT_FALSE(node.Answered(write));
  ASSERT_EQ(node.revokes_.size(), 1u);
  EXPECT_EQ(node.revokes_[0].chunks, std::vector<ChunkId>{chunk});
  node.Release(reader, {chunk});
  EXPECT_EQ(node.CodeOf(write), absl::StatusCode::kOk);
}

TEST(EngineTest, AFetchThatFindsNoRoomEndsAtItsDeadlineAndSaysWhy) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 5);
  node.Fetch(session, {chunks[0], chunks[1], chunks[2], chunks[3]});
  node.FinishTransfers();
  FetchCall late;
  late.call = node.Call();
  late.session = session;
  late.chunks = {chunks[4]};
  late.deadline = std::chrono::seconds(2);
  node.Post(late);
  node.Wait(std::chrono::seconds(3));
  EXPECT_EQ(node.CodeOf(late.call), absl::StatusCode::kDeadlineExceeded);
  const std::string why(node.ReplyTo(late.call).status.message());
  EXPECT_NE(why.find("4 of 4 slots are leased"), std::string::npos);
  EXPECT_EQ(why.find("killed"), std::string::npos);
}

TEST(EngineTest, AFailedWriteBackKeepsTheOnlyCopy) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 9);
  for (size_t i = 0; i < 8; ++i) node.Touch(session, chunks[i], Access::kWrite);
  const CallId fetch = node.Fetch(session, {chunks[8]}, Access::kWrite);
  // One write to SSD fails; another victim leaves in its place.
  while (node.transfers_.front().kind != StartTransfer::Kind::kHostToSsd) node.FinishOne();
  node.FinishOne(absl::InternalError("EIO"));
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
  EXPECT_EQ(node.Inspect().counters.transfers_failed, 1u);
}

TEST(EngineTest, FailedTransfersAreReportedAtOnceAndThenOnceAMinute) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 9);
  for (size_t i = 0; i < 8; ++i) node.Touch(session, chunks[i], Access::kWrite);
  node.Fetch(session, {chunks[8]}, Access::kWrite);
  size_t failed = 0;
  const auto fail_writes = [&] {
    while (!node.transfers_.empty()) {
      const bool to_ssd = node.transfers_.front().kind == StartTransfer::Kind::kHostToSsd;
      failed += to_ssd;
      node.FinishOne(to_ssd ? absl::InternalError("EIO") : absl::OkStatus());
    }
  };
  fail_writes();
  ASSERT_GT(failed, 1u);
  ASSERT_EQ(node.transfers_fail_.size(), 1u);
  EXPECT_EQ(node.transfers_fail_[0].count, 1u);
  EXPECT_EQ(node.transfers_fail_[0].last.code(), absl::StatusCode::kInternal);
  for (int second = 0; second < 59; ++second) {
    node.Wait(std::chrono::seconds(1));
    node.Post(RenewCall{node.Call(), session});
    fail_writes();
  }
  EXPECT_EQ(node.transfers_fail_.size(), 1u);
  node.Wait(std::chrono::seconds(1));
  ASSERT_EQ(node.transfers_fail_.size(), 2u);
  EXPECT_EQ(1 + node.transfers_fail_[1].count, node.Inspect().counters.transfers_failed);
}

TEST(EngineTest, FreeingAChunkEndsAlsoTheFetchesThatWaitForOthers) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  node.Touch(session, chunks[0], Access::kRead);
  const CallId fetch = node.Fetch(session, chunks);  // The first one is there.
  FreeCall free{node.Call(), session, 77, {chunks[0]}};
  node.Post(free);
  EXPECT_EQ(node.CodeOf(free.call), absl::StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kNotFound);
  node.FinishTransfers();
}

TEST(EngineTest, FetchesOfOneSessionAtTwoTiersWaitForEachOther) {
  EngineHarness node(ThreeTiers());
  const SessionId first = node.Open(1000, "shared"), second = node.Open(1000, "shared");
  const ChunkId chunk = node.Allocate(first, 1)[0];
  const CallId held = node.Fetch(first, {chunk});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(held), absl::StatusCode::kOk);
  const CallId device = node.Fetch(second, {chunk}, Access::kWrite, Tier::kDevice);
  const CallId host = node.Fetch(second, {chunk}, Access::kWrite, Tier::kHost);
  node.Release(first, {chunk});
  node.FinishTransfers();
  EXPECT_NE(node.Answered(device), node.Answered(host));
  node.Release(second, {chunk});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(device), absl::StatusCode::kOk);
  EXPECT_EQ(node.CodeOf(host), absl::StatusCode::kOk);
}

TEST(EngineTest, AnAllocationWaitsForFreedChunksThatStillMove) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 64);
  node.Fetch(session, {chunks[0]});
  node.Post(FreeCall{node.Call(), session, 77, {chunks[0]}});
  const AllocateCall allocate{node.Call(), session, 78, 1};
  node.Post(allocate);
  EXPECT_FALSE(node.Answered(allocate.call));
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(allocate.call), absl::StatusCode::kOk);
}

TEST(EngineTest, AChunkThatWaitsForTheDeviceGivesUpItsHostSlotToWhatLeavesIt) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 8);
  for (int i = 0; i < 8; ++i) {
    node.Fetch(session, {chunks[i]}, Access::kWrite, i < 4 ? Tier::kDevice : Tier::kHost);
    node.FinishTransfers();
    node.Release(session, {chunks[i]});
  }
  // Both tiers are full of only copies, and the oldest one on the host is wanted on the device.
  const CallId fetch = node.Fetch(session, {chunks[4]});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST(EngineTest, EvictEndsTheLeasesOfItsSessionAndNoOthers) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 2);
  node.Fetch(session, chunks, Access::kRead);
  node.FinishTransfers();
  EvictCall evict{node.Call(), session, Tier::kSsd, {chunks[0]}};
  node.Post(evict);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(evict.call), absl::StatusCode::kOk);
  ReleaseCall again{node.Call(), session, /*request_id=*/99, {chunks[0]}};
  node.Post(again);
  EXPECT_EQ(node.CodeOf(again.call), absl::StatusCode::kFailedPrecondition);
  ReleaseCall other{node.Call(), session, /*request_id=*/100, {chunks[1]}};
  node.Post(other);
  EXPECT_EQ(node.CodeOf(other.call), absl::StatusCode::kOk);
}

TEST(EngineTest, AVictimThatIsLeasedAgainIsReplacedAtOnce) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 9);
  const std::vector<ChunkId> clean = {chunks[1], chunks[2], chunks[3]};
  for (const ChunkId chunk : clean) node.Touch(session, chunk, Access::kWrite);
  node.Post(EvictCall{node.Call(), session, Tier::kSsd, clean});
  node.FinishTransfers();
  node.Touch(session, chunks[0], Access::kWrite);
  for (const ChunkId chunk : clean) node.Touch(session, chunk, Access::kRead);
  // The host has three leases and one only copy, so that a victim of the device waits for the disk.
  node.Fetch(session, {chunks[4], chunks[5], chunks[6]}, Access::kWrite, Tier::kHost);
  node.FinishTransfers();
  node.Fetch(session, {chunks[7]}, Access::kWrite, Tier::kHost);
  node.Release(session, {chunks[4]});
  node.FinishTransfers();
  node.Release(session, {chunks[7]});
  node.Fetch(session, {chunks[4]}, Access::kWrite, Tier::kHost);
  node.FinishTransfers();
  node.Fetch(session, {chunks[8]});
  EXPECT_EQ(node.transfers_.size(), 1u);  // To the disk.
  const CallId again = node.Fetch(session, {chunks[0]});
  EXPECT_EQ(node.CodeOf(again), absl::StatusCode::kOk);
  ASSERT_EQ(node.transfers_.size(), 2u);
  EXPECT_EQ(node.transfers_[1].kind, StartTransfer::Kind::kZero);
}

TEST(EngineTest, MemoryThatCannotGrowRefusesTheFetchesThatNeededIt) {
  EngineOptions options;
  options.device_capacities = {GiB(4)};
  options.host_capacity = GiB(4);
  EngineHarness node(options);
  node.Post(ClientConnected{SessionId(9), 1000, 1});
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(9);
  open.chunk_size = GiB(1);
  node.Post(open);
  const std::vector<ChunkId> chunks = node.Allocate(SessionId(9), 2);
  node.fail_memory_ = true;
  const CallId fetch = node.Fetch(SessionId(9), chunks);
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kResourceExhausted);
  node.FinishTransfers();
}

// A read that fails is tried once more; then the fetch ends with the error.
TEST(EngineTest, AReadThatKeepsFailingEndsItsFetch) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 12);
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kWrite);
  const CallId fetch = node.Fetch(session, {chunks[0]});
  for (int i = 0; i < 20 && !node.Answered(fetch); ++i) {
    if (node.transfers_.empty()) node.Wait(std::chrono::milliseconds(100));
    if (node.transfers_.empty()) continue;
    const bool reads = node.transfers_.front().kind == StartTransfer::Kind::kSsdToHost;
    node.FinishOne(reads ? absl::InternalError("the disk is broken") : absl::OkStatus());
  }
  ASSERT_TRUE(node.Answered(fetch));
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kInternal);
}

// A file system that was remounted read-only answers EROFS to each write, and serves reads.
TEST(EngineTest, ADiskThatTakesNoWritesIsStillReadAndNothingIsLost) {
  EngineHarness node(ThreeTiers());
  const SessionId session = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(session, 9);
  for (const ChunkId chunk : chunks) node.Touch(session, chunk, Access::kWrite);
  ASSERT_TRUE(node.Describe(session, {chunks[0]})[0].on_ssd);
  const auto finish_without_writes = [&node] {
    while (!node.transfers_.empty()) {
      const bool writes = node.transfers_.front().kind == StartTransfer::Kind::kHostToSsd;
      node.FinishOne(writes ? absl::InternalError("EROFS") : absl::OkStatus());
    }
  };
  const EvictCall evict{node.Call(), session, Tier::kSsd, {chunks[4]}};
  node.Post(evict);
  finish_without_writes();
  EXPECT_EQ(node.CodeOf(evict.call), absl::StatusCode::kInternal);
  const ChunkInfo whole = node.Describe(session, {chunks[4]})[0];
  EXPECT_TRUE(whole.on_device || whole.on_host);
  EXPECT_FALSE(whole.torn);
  // The device and the host are full of chunks that have no other copy. One that the client frees
  // makes room for a chunk on SSD.
  node.Post(FreeCall{node.Call(), session, 900, {chunks[1], chunks[2]}});
  const CallId fetch = node.Fetch(session, {chunks[0]}, Access::kRead, Tier::kHost);
  for (int i = 0; i < 20 && !node.Answered(fetch); ++i) {
    finish_without_writes();
    node.Wait(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
  for (size_t i = 3; i < chunks.size(); ++i) {
    const ChunkInfo info = node.Describe(session, {chunks[i]})[0];
    EXPECT_TRUE(info.on_device || info.on_host || info.on_ssd) << "chunk " << i;
  }
}

}  // namespace
}  // namespace memtide
