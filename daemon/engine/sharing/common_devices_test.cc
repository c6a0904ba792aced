// Common contents of sessions with a device: the bytes in host memory, and each device's copies.
#include <cstring>
#include <string>
#include <variant>
#include <vector>

#include "daemon/engine/testing/frozen_script.h"
#include "gmock/gmock.h"

namespace memtide {
namespace {

class CommonDeviceTest : public TwoScriptsAtADeviceTest {
 protected:
  CommonDeviceTest() : TwoScriptsAtADeviceTest(/*count=*/2) {}

  void Share() {
    a_.Offer();
    EXPECT_EQ(b_.Offer().shared.size(), 2u);
    EXPECT_EQ(a_.Offer().shared.size(), 2u);
  }
};

TEST_F(CommonDeviceTest, EachHasACopyOfWhatIsCommonAtItsDevice) {
  Share();
  const MemoryPlace of_a = Lease(a_, 1, Access::kRead), of_b = Lease(b_, 1, Access::kRead);
  EXPECT_EQ(At(of_a), FrozenValues(2));
  EXPECT_EQ(At(of_b), FrozenValues(2));
}

// A kernel may be reading there, so that the place must stay what it is.
TEST_F(CommonDeviceTest, AWriterKeepsWhatItHasLeasedAndOthersDoNotSeeWhatItWrites) {
  Share();
  const MemoryPlace read = Lease(a_, 0, Access::kRead);
  const MemoryPlace written = Lease(a_, 0, Access::kWrite);
  EXPECT_EQ(written.region, read.region);
  EXPECT_EQ(written.offset, read.offset);
  const std::vector<float> values = FrozenValues(77);
  std::memcpy(node_.At(written), values.data(), kFrozenElements * sizeof(float));
  node_.Release(a_.session(), a_.chunks()[0]);
  EXPECT_EQ(a_.Read(0), FrozenValues(77)) << "it leaves the device";
  EXPECT_EQ(b_.Read(0), FrozenValues(1));
  EXPECT_EQ(At(Lease(b_, 0, Access::kRead)), FrozenValues(1));
}

TEST_F(CommonDeviceTest, WhatIsNotAtTheDeviceComesThereBeforeItIsWritten) {
  Share();
  Write(a_, 0, 77);
  node_.Release(a_.session(), a_.chunks()[0]);
  EXPECT_EQ(a_.Read(0), FrozenValues(77));
  EXPECT_EQ(b_.Read(0), FrozenValues(1));
}

TEST_F(CommonDeviceTest, TheContentGoesWithItsLastReaderAtADevice) {
  const size_t before = node_.memory_segments();
  Share();
  EXPECT_GT(node_.memory_segments(), before);
  for (FrozenScript* const script : {&a_, &b_}) {
    for (const size_t i : {0, 1}) {
      Lease(*script, i, Access::kRead);
      Lease(*script, i, Access::kWrite);
      node_.Release(script->session(), script->chunks()[i]);
    }
  }
  EXPECT_EQ(node_.memory_segments(), before);
}

TEST_F(CommonDeviceTest, AnEvictionEndsWithTheContentThatItsWriterLeaves) {
  Share();
  const std::vector<ChunkId> chunks = {a_.chunks()[1]};
  node_.StartMoving(a_.session(), chunks[0]);
  const EvictCall evict{node_.Call(), a_.session(), Tier::kHost, chunks};
  node_.Post(evict);
  ASSERT_FALSE(node_.Answered(evict.call)) << "the chunk is on its way to the device";
  a_.Fill(1, 77);
  EXPECT_TRUE(absl::IsAborted(node_.ReplyTo(evict.call).status));
  EXPECT_EQ(a_.Read(1), FrozenValues(77));
}

// A copy that the device keeps needs a place to go to.
TEST_F(CommonDeviceTest, WithoutAHomeAWriterIsToldWhatToEnlarge) {
  Share();
  Lease(a_, 0, Access::kRead);
  while (!node_.Allocate(a_.session(), 1).empty()) continue;
  const Reply reply = node_.Fetch(a_.session(), a_.chunks()[0], Tier::kDevice, Access::kWrite);
  EXPECT_TRUE(absl::IsResourceExhausted(reply.status)) << reply.status;
  EXPECT_THAT(std::string(reply.status.message()), testing::HasSubstr("ssd share has no slot"));
  EXPECT_EQ(At(Lease(a_, 0, Access::kRead)), FrozenValues(1));
}

// The offer has looked at the chunk before, and does so again for its next part.
TEST(OfferAtAFailingDeviceTest, AChunkWhoseMemoryFailsMeanwhileIsLost) {
  constexpr Bytes kChunk = EngineByteHarness::kChunk;
  EngineOptions options{{kChunk * 8}, kChunk * 4, kChunk * 64, Limits()};
  options.device_kinds = {MemoryKind::kCudaDescriptor};
  EngineByteHarness node(options);
  FrozenScript script(&node, /*count=*/4, /*first=*/1);
  for (const ChunkId chunk : script.chunks()) {
    ASSERT_TRUE(node.Fetch(script.session(), chunk, Tier::kDevice, Access::kWrite).status.ok());
    node.Release(script.session(), chunk);
  }
  const CallId offer = script.Ask();
  const size_t first_part = node.in_flight();
  ASSERT_LT(first_part, 4u);
  const EvictCall evict{node.Call(), script.session(), Tier::kHost, {script.chunks()[3]}};
  node.Post(evict);
  ASSERT_EQ(node.in_flight(), first_part + 1);
  for (size_t i = 0; i < first_part; ++i) node.FinishOne();
  node.FinishOne(absl::DataLossError("ECC"));
  EXPECT_TRUE(absl::IsDataLoss(node.ReplyTo(evict.call).status));
  node.FinishUntilAnswered(offer);
  EXPECT_TRUE(absl::IsDataLoss(node.ReplyTo(offer).status)) << node.ReplyTo(offer).status;
  const Reply read = node.Fetch(script.session(), script.chunks()[3], Tier::kHost, Access::kRead);
  EXPECT_TRUE(absl::IsDataLoss(read.status)) << read.status;
}

}  // namespace
}  // namespace memtide
