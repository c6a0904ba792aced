#include <string>
#include <variant>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

class FailedMemoryTest : public testing::Test {
 protected:
  static EngineOptions WithSlots() {
    EngineOptions options{{kChunk * 6}, kChunk * 4, kChunk * 64, Limits()};
    options.device_kinds = {MemoryKind::kCudaDescriptor};
    return options;
  }
  // Evicts the chunk from the device, which the memory there does not survive.
  CallId EvictInVain(ChunkId chunk) {
    const EvictCall evict{node_.Call(), session_, Tier::kHost, {chunk}};
    node_.Post(evict);
    EXPECT_EQ(node_.transfers_.size(), 1u);
    EXPECT_EQ(node_.transfers_[0].kind, StartTransfer::Kind::kDeviceToHost);
    node_.FinishOne(absl::DataLossError("ECC"));
    return evict.call;
  }
  PoolUsage Device() { return node_.Inspect().pools[0]; }

  EngineHarness node_{WithSlots()};
  const SessionId session_ = node_.Open(1000, "job");
};

TEST_F(FailedMemoryTest, AChunkWithNoOtherCopyIsLostAndSaysSo) {
  const ChunkId chunk = node_.Allocate(session_, 1)[0];
  node_.Touch(session_, chunk, Access::kWrite);
  EXPECT_EQ(node_.CodeOf(EvictInVain(chunk)), absl::StatusCode::kDataLoss);
  const CallId fetch = node_.Fetch(session_, {chunk}, Access::kRead, Tier::kHost);
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kDataLoss);
  const std::string text(node_.ReplyTo(fetch).status.message());
  EXPECT_NE(text.find("chunk " + std::to_string(chunk.value())), std::string::npos) << text;
  EXPECT_NE(text.find("--resume"), std::string::npos) << text;
  for (int i = 0; i < 5; ++i) node_.Wait(std::chrono::milliseconds(100));
  EXPECT_TRUE(node_.transfers_.empty()) << "it is not read again";
}

// An operation in place would have computed from zeros.
TEST_F(FailedMemoryTest, WhoHadTheContentWritesItOnlyAfterADiscard) {
  const std::vector<ChunkId> chunks = node_.Allocate(session_, 2);
  for (const ChunkId chunk : chunks) node_.Touch(session_, chunk, Access::kWrite);
  for (const ChunkId chunk : chunks) EvictInVain(chunk);
  const CallId write = node_.Fetch(session_, {chunks[0]}, Access::kWrite);
  EXPECT_EQ(node_.CodeOf(write), absl::StatusCode::kDataLoss);
  EXPECT_EQ(node_.CodeOf(node_.Discard(session_, {chunks[0]})), absl::StatusCode::kOk);
  node_.Touch(session_, chunks[0], Access::kWrite);
  node_.Touch(session_, chunks[0], Access::kRead);
  const SessionId later = node_.Open(1000, "job");
  node_.Touch(later, chunks[1], Access::kWrite);
  node_.Touch(later, chunks[1], Access::kRead);
}

TEST_F(FailedMemoryTest, WhoWaitsToWriteTheContentIsTold) {
  const ChunkId chunk = node_.Allocate(session_, 1)[0];
  node_.Touch(session_, chunk, Access::kWrite);
  const CallId fetch = node_.Fetch(session_, {chunk}, Access::kWrite, Tier::kHost);
  ASSERT_EQ(node_.transfers_.size(), 1u);
  node_.FinishOne(absl::DataLossError("ECC"));
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kDataLoss);
}

TEST_F(FailedMemoryTest, WhoWaitsForTheChunkIsTold) {
  const ChunkId chunk = node_.Allocate(session_, 1)[0];
  node_.Touch(session_, chunk, Access::kWrite);
  const CallId fetch = node_.Fetch(session_, {chunk}, Access::kRead, Tier::kHost);
  ASSERT_EQ(node_.transfers_.size(), 1u);
  node_.FinishOne(absl::DataLossError("ECC"));
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(node_.transfers_.empty());
}

TEST_F(FailedMemoryTest, TheSlotIsLentNoMoreAndTheSumsHold) {
  const ChunkId chunk = node_.Allocate(session_, 1)[0];
  const CallId fetch = node_.Fetch(session_, {chunk}, Access::kWrite);
  node_.FinishTransfers();
  const RegionId failed = std::get<FetchReply>(node_.ReplyTo(fetch).value).leases[0].place.region;
  node_.Release(session_, {chunk});
  EvictInVain(chunk);
  ASSERT_EQ(node_.gone_.size(), 1u);
  EXPECT_EQ(node_.gone_[0].region, failed);
  EXPECT_EQ(node_.gone_[0].device_slots, 5u);
  node_.Post(ReturnRegionsCall{node_.Call(), session_, {failed}});
  ASSERT_EQ(node_.dropped_.size(), 1u);
  EXPECT_EQ(node_.dropped_[0], failed);
  const PoolUsage pool = Device();
  EXPECT_EQ(pool.used + pool.reserved + pool.scrubbing + pool.free, pool.capacity);
  EXPECT_EQ(pool.free, kChunk);
}

TEST_F(FailedMemoryTest, ACopyIntoMemoryThatFailedGoesToAnotherSlot) {
  const ChunkId chunk = node_.Allocate(session_, 1)[0];
  node_.Touch(session_, chunk, Access::kWrite);
  node_.Post(EvictCall{node_.Call(), session_, Tier::kHost, {chunk}});
  node_.FinishTransfers();
  const CallId fetch = node_.Fetch(session_, {chunk});
  ASSERT_EQ(node_.transfers_.size(), 1u);
  const RegionId failed = node_.transfers_[0].to.region;
  node_.FinishOne(absl::DataLossError("ECC"));
  ASSERT_EQ(node_.transfers_.size(), 1u);
  EXPECT_NE(node_.transfers_[0].to.region, failed);
  node_.FinishTransfers();
  EXPECT_EQ(node_.CodeOf(fetch), absl::StatusCode::kOk);
}

TEST_F(FailedMemoryTest, ACallThatNoLongerFitsEnds) {
  const std::vector<ChunkId> chunks = node_.Allocate(session_, 7);
  node_.Touch(session_, chunks[0], Access::kWrite);
  const EvictCall evict{node_.Call(), session_, Tier::kHost, {chunks[0]}};
  node_.Post(evict);
  ASSERT_EQ(node_.transfers_.size(), 1u);
  const SessionId other = node_.Open(1000, "job");
  const CallId lease = node_.Fetch(other, {chunks[1]}, Access::kWrite);
  // All six slots, of which one is leased and one fails.
  const CallId waits = node_.Fetch(
      session_, {chunks[1], chunks[2], chunks[3], chunks[4], chunks[5], chunks[6]}, Access::kWrite);
  EXPECT_FALSE(node_.Answered(waits));
  node_.FinishOne(absl::DataLossError("ECC"));
  EXPECT_EQ(node_.CodeOf(waits), absl::StatusCode::kResourceExhausted);
  node_.FinishTransfers();
  EXPECT_EQ(node_.CodeOf(lease), absl::StatusCode::kOk);
}

TEST_F(FailedMemoryTest, AJobThatHasTheFewestSlotsKeepsThem) {
  const std::vector<ChunkId> chunks = node_.Allocate(session_, 4);
  for (const ChunkId chunk : chunks) {
    node_.Touch(session_, chunk, Access::kWrite);
    EvictInVain(chunk);
  }
  EXPECT_EQ(node_.gone_.size(), 2u) << "six slots, and at least four stay";
}

TEST_F(FailedMemoryTest, AJobThatHasTheFewestSlotsIsLentTheFailedOneLast) {
  const std::vector<ChunkId> chunks = node_.Allocate(session_, 4);
  for (const size_t i : {0, 1}) {
    node_.Touch(session_, chunks[i], Access::kWrite);
    EvictInVain(chunks[i]);
  }
  ASSERT_EQ(node_.CodeOf(node_.Discard(session_, {chunks[0], chunks[1]})), absl::StatusCode::kOk);
  const CallId all = node_.Fetch(session_, chunks, Access::kWrite);
  node_.FinishTransfers();
  ASSERT_EQ(node_.CodeOf(all), absl::StatusCode::kOk) << node_.ReplyTo(all).status;
  node_.Release(session_, chunks);
  const RegionId failed = std::get<FetchReply>(node_.ReplyTo(all).value).leases[2].place.region;
  node_.Post(EvictCall{node_.Call(), session_, Tier::kHost, {chunks[0]}});
  node_.FinishTransfers();
  EvictInVain(chunks[2]);
  ASSERT_EQ(node_.gone_.size(), 2u) << "the job has four slots, the fewest";
  const CallId fetch = node_.Fetch(session_, {chunks[0]}, Access::kWrite);
  node_.FinishTransfers();
  EXPECT_NE(std::get<FetchReply>(node_.ReplyTo(fetch).value).leases[0].place.region, failed);
}

}  // namespace
}  // namespace memtide
