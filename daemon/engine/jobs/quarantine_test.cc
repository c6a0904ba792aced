#include <variant>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

EngineOptions Quarantining() {
  EngineOptions options = ThreeTiers();
  options.quarantine_device_slots = true;
  return options;
}

class QuarantineTest : public testing::Test {
 protected:
  // Leases chunks for `session`, with all transfers done.
  void Lease(SessionId session, const std::vector<ChunkId>& chunks, Access access) {
    const CallId fetch = node_.Fetch(session, chunks, access);
    node_.FinishTransfers();
    ASSERT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk) << node_.ReplyTo(fetch).status;
  }
  MemoryPlace PlaceOf(CallId fetch) {
    return std::get<FetchReply>(node_.ReplyTo(fetch).value).leases[0].place;
  }
  PoolUsage Device() { return node_.Inspect().pools[0]; }
  void ExpectSums() {
    for (const PoolUsage& pool : node_.Inspect().pools) {
      EXPECT_EQ(pool.used + pool.reserved + pool.balloon + pool.scrubbing + pool.free,
                pool.capacity);
      EXPECT_LE(pool.quarantined, pool.reserved);
    }
  }

  EngineHarness node_{Quarantining()};
};

TEST_F(QuarantineTest, SlotsOfAKilledSessionAreLentAgainWhenItIsQuiet) {
  const SessionId killed = node_.Open(1000, "job"), other = node_.Open(1000, "job");
  const std::vector<ChunkId> chunks = node_.Allocate(killed, 8);
  Lease(killed, {chunks[0], chunks[1], chunks[2], chunks[3]}, Access::kWrite);
  node_.Post(ClientGone{killed});
  EXPECT_EQ(Device().quarantined, kChunk * 4);
  ExpectSums();
  // An empty chunk needs a slot, and all are in quarantine.
  const CallId fetch = node_.Fetch(other, {chunks[4]}, Access::kWrite);
  node_.FinishTransfers();
  EXPECT_FALSE(node_.Answered(fetch));
  node_.Post(ClientQuiet{killed});
  node_.FinishTransfers();
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk);
  EXPECT_EQ(Device().quarantined, Bytes(0));
  ExpectSums();
}

TEST_F(QuarantineTest, WhoMakesATornChunkWholeWritesInAnotherSlot) {
  const SessionId killed = node_.Open(1000, "job"), other = node_.Open(1000, "job");
  const ChunkId chunk = node_.Allocate(killed, 1)[0];
  const CallId before = node_.Fetch(killed, {chunk}, Access::kWrite);
  node_.FinishTransfers();
  const MemoryPlace place = PlaceOf(before);
  node_.Post(ClientGone{killed});
  EXPECT_EQ(node_.CodeOf(node_.Fetch(other, {chunk})), absl::StatusCode::kDataLoss);
  const CallId fetch = node_.Fetch(other, {chunk}, Access::kWrite);
  node_.FinishTransfers();
  ASSERT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk);
  EXPECT_NE(PlaceOf(fetch).offset, place.offset);
}

TEST_F(QuarantineTest, AChunkWithACopyBelowIsServedFromThere) {
  const SessionId killed = node_.Open(1000, "job"), other = node_.Open(1000, "job");
  const ChunkId chunk = node_.Allocate(killed, 1)[0];
  node_.Touch(killed, chunk, Access::kWrite);
  node_.Post(EvictCall{node_.Call(), killed, Tier::kHost, {chunk}});
  node_.FinishTransfers();
  Lease(killed, {chunk}, Access::kRead);
  node_.Post(ClientGone{killed});
  EXPECT_EQ(Device().quarantined, kChunk);
  const CallId fetch = node_.Fetch(other, {chunk});
  ASSERT_EQ(node_.transfers_.size(), 1u);
  EXPECT_EQ(node_.transfers_[0].kind, StartTransfer::Kind::kHostToDevice);
  node_.FinishTransfers();
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST_F(QuarantineTest, AnOnlyCopyThatWasReadStaysAndItsSlotIsNotLentToAnother) {
  const SessionId killed = node_.Open(1000, "job"), other = node_.Open(1000, "job");
  const std::vector<ChunkId> chunks = node_.Allocate(killed, 8);
  node_.Touch(killed, chunks[0], Access::kWrite);
  Lease(killed, {chunks[0]}, Access::kRead);
  node_.Post(ClientGone{killed});
  EXPECT_EQ(Device().quarantined, Bytes(0));
  const CallId fetch = node_.Fetch(other, {chunks[0]});
  ASSERT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk) << "it did not move";
  const MemoryPlace place = PlaceOf(fetch);
  node_.Release(other, {chunks[0]});
  node_.Post(EvictCall{node_.Call(), other, Tier::kHost, {chunks[0]}});
  node_.FinishTransfers();
  EXPECT_EQ(Device().quarantined, kChunk);
  for (int i = 1; i < 4; ++i) {
    const CallId next = node_.Fetch(other, {chunks[i]}, Access::kWrite);
    node_.FinishTransfers();
    EXPECT_NE(PlaceOf(next).offset, place.offset);
  }
}

TEST_F(QuarantineTest, AnOnlyCopyThatWasReadIsServedInHostMemoryMeanwhile) {
  const SessionId killed = node_.Open(1000, "job"), other = node_.Open(1000, "job");
  const std::vector<ChunkId> chunks = node_.Allocate(killed, 1);
  node_.Touch(killed, chunks[0], Access::kWrite);
  Lease(killed, chunks, Access::kRead);
  node_.Post(ClientGone{killed});
  const CallId fetch = node_.Fetch(other, chunks, Access::kRead, Tier::kHost);
  node_.FinishTransfers();
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST_F(QuarantineTest, ASessionThatClosesItselfNeedsNone) {
  const SessionId closed = node_.Open(1000, "job"), other = node_.Open(1000, "job");
  const std::vector<ChunkId> chunks = node_.Allocate(closed, 8);
  Lease(closed, {chunks[0], chunks[1], chunks[2], chunks[3]}, Access::kWrite);
  node_.Post(CloseCall{node_.Call(), closed});
  EXPECT_EQ(Device().quarantined, Bytes(0));
  const CallId fetch = node_.Fetch(other, {chunks[4]}, Access::kWrite);
  node_.FinishTransfers();
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST_F(QuarantineTest, ASessionThatHangsIsQuarantinedToo) {
  const SessionId hung = node_.Open();
  Lease(hung, node_.Allocate(hung, 2), Access::kWrite);
  for (int i = 0; i < 140; ++i) node_.Wait(std::chrono::milliseconds(500));
  EXPECT_EQ(node_.Inspect().session_count, 0u);
  EXPECT_EQ(Device().scrubbing, Device().capacity) << "its job ends when it is quiet";
  node_.Post(ClientQuiet{hung});
  EXPECT_EQ(Device().free, Device().capacity);
}

TEST_F(QuarantineTest, AJobThatEndsKeepsItsMemoryUntilItsLastSessionIsQuiet) {
  const SessionId killed = node_.Open();
  Lease(killed, node_.Allocate(killed, 2), Access::kWrite);
  node_.Post(ClientGone{killed});
  EXPECT_TRUE(node_.dropped_.empty());
  OpenCall open{node_.Call(), SessionId(50)};
  open.chunk_size = kChunk;
  node_.Post(ClientConnected{SessionId(50), 1000, 1});
  node_.Post(open);
  EXPECT_FALSE(node_.Answered(open.call));
  node_.Post(ClientQuiet{killed});
  EXPECT_EQ(node_.CodeOf(open.call), absl::StatusCode::kOk);
}

TEST_F(QuarantineTest, ASlotThatTwoKilledSessionsReadWaitsForBoth) {
  const SessionId first = node_.Open(1000, "job"), second = node_.Open(1000, "job");
  const SessionId other = node_.Open(1000, "job");
  const ChunkId chunk = node_.Allocate(other, 1)[0];
  node_.Touch(other, chunk, Access::kWrite);
  node_.Post(EvictCall{node_.Call(), other, Tier::kHost, {chunk}});
  node_.FinishTransfers();
  Lease(first, {chunk}, Access::kRead);
  Lease(second, {chunk}, Access::kRead);
  node_.Post(ClientGone{first});
  EXPECT_EQ(Device().used, kChunk) << "the second session has it leased";
  node_.Post(ClientGone{second});
  EXPECT_EQ(Device().quarantined, kChunk);
  node_.Post(ClientQuiet{first});
  EXPECT_EQ(Device().quarantined, kChunk);
  node_.Post(ClientQuiet{second});
  EXPECT_EQ(Device().quarantined, Bytes(0));
}

TEST_F(QuarantineTest, AWriteBackThatRunsWhenItsWriterDiesEndsBeforeTheSlotIsLeft) {
  const SessionId killed = node_.Open(1000, "job"), other = node_.Open(1000, "job");
  const ChunkId chunk = node_.Allocate(killed, 1)[0];
  node_.Touch(killed, chunk, Access::kWrite);
  const EvictCall evict{node_.Call(), killed, Tier::kHost, {chunk}};
  node_.Post(evict);
  ASSERT_EQ(node_.transfers_.size(), 1u);
  // The write lease is granted under the write-back.
  ASSERT_EQ(node_.CodeOf(node_.Fetch(killed, {chunk}, Access::kWrite)), absl::StatusCode::kOk);
  node_.Post(ClientGone{killed});
  const CallId fetch = node_.Fetch(other, {chunk}, Access::kWrite);
  EXPECT_FALSE(node_.Answered(fetch)) << "the torn copy is not lent";
  node_.FinishTransfers();
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk);
  EXPECT_EQ(Device().quarantined, kChunk);
}

TEST(QuarantineOfAHomeTest, WhereSlotsStayATornChunkIsWrittenWhenTheSessionIsQuiet) {
  EngineOptions options;
  options.device_capacities = {kChunk * 4};
  options.quarantine_device_slots = true;
  EngineHarness node(options);
  const SessionId killed = node.Open(1000, "job"), other = node.Open(1000, "job");
  const ChunkId chunk = node.Allocate(killed, 1)[0];
  const CallId before = node.Fetch(killed, {chunk}, Access::kWrite);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(before), absl::StatusCode::kOk);
  node.Post(ClientGone{killed});
  const CallId fetch = node.Fetch(other, {chunk}, Access::kWrite);
  node.FinishTransfers();
  EXPECT_FALSE(node.Answered(fetch));
  node.Post(ClientQuiet{killed});
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST(NoQuarantineTest, ADeviceThatIsHostMemoryNeedsNone) {
  EngineHarness node(ThreeTiers());
  const SessionId killed = node.Open(1000, "job"), other = node.Open(1000, "job");
  const std::vector<ChunkId> chunks = node.Allocate(killed, 8);
  const CallId lease =
      node.Fetch(killed, {chunks[0], chunks[1], chunks[2], chunks[3]}, Access::kWrite);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(lease), absl::StatusCode::kOk);
  node.Post(ClientGone{killed});
  const CallId fetch = node.Fetch(other, {chunks[4]}, Access::kWrite);
  node.FinishTransfers();
  EXPECT_EQ(node.CodeOf(fetch), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace memtide
