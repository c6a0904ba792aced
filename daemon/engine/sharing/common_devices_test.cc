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

}  // namespace
}  // namespace memtide
