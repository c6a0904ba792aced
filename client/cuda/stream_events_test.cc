// Waits with a driver that has no event for all work of a context (before CUDA 12.5).
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "client/cuda/epoch_events.h"
#include "client/cuda/testing/cuda_space_harness.h"

namespace memtide::client {
namespace {

uint64_t Number(CUstream stream) { return reinterpret_cast<uint64_t>(stream); }

// Two streams write to the place, and a third one works on other memory for a second.
class StreamEventsTest : public CudaSpaceWorkTest {
 protected:
  StreamEventsTest() {
    EXPECT_TRUE(space_->needs_streams());
    EXPECT_EQ(cuMemAlloc(&other_, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&busy_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(cuEventCreate(&busy_done_, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  }
  ~StreamEventsTest() override {
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuEventDestroy(busy_done_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy(busy_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(other_), CUDA_SUCCESS);
  }

  void BeginOtherWork() {
    fake_cuda::SetDelay(std::chrono::seconds(1));
    ASSERT_EQ(cuMemsetD8Async(other_, 0, 1, busy_), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(busy_done_, busy_), CUDA_SUCCESS);
  }
  bool IsOtherWorkDone() const { return cuEventQuery(busy_done_) == CUDA_SUCCESS; }
  void Cover(const std::vector<CUstream>& streams) {
    std::vector<uint64_t> numbers;
    for (const CUstream stream : streams) numbers.push_back(Number(stream));
    space_->CoverStreams(numbers);
  }
  // Makes the two streams, which BeginToWrite does otherwise.
  void Begin() {
    BeginToWrite('a', 'b');
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  void Write(CUstream stream, int index, char letter) {
    const CUdeviceptr at = fake_cuda::DeviceAddress(space_->address(kPlace)) + 64 * index;
    ASSERT_EQ(cuMemsetD8Async(at, letter, 64, stream), CUDA_SUCCESS);
  }

  CUdeviceptr other_ = 0;
  CUstream busy_ = nullptr;
  CUevent busy_done_ = nullptr;
};

const std::string kCsAndDs = std::string(64, 'c') + std::string(64, 'd');

TEST_F(StreamEventsTest, OnlyTheCoveredStreamsAreWaitedFor) {
  Begin();
  Cover({streams_[0]});
  Cover({streams_[1]});
  ASSERT_TRUE(space_->IsDone(space_->RecordFence()));
  Write(streams_[0], 0, 'c');
  Write(streams_[1], 1, 'd');
  space_->EndUse({kPlace});
  EXPECT_FALSE(space_->IsDone(space_->FenceOf(kPlace)));
  BeginOtherWork();
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(Written(), kCsAndDs);
  EXPECT_FALSE(IsOtherWorkDone());
}

TEST_F(StreamEventsTest, WorkFromBeforeStreamsWereCoveredIsWaitedFor) {
  BeginToWrite('a', 'b');
  space_->EndUse({kPlace});
  Cover({busy_});
  space_->BeginMoment();
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(Written(), std::string(64, 'a') + std::string(64, 'b'));
}

TEST_F(StreamEventsTest, AllStreamsAreWaitedForOnceAnyMayBeUsed) {
  Begin();
  Cover({busy_});
  ASSERT_TRUE(space_->IsDone(space_->RecordFence()));
  space_->CoverAllStreams();
  Write(streams_[0], 0, 'c');
  Write(streams_[1], 1, 'd');
  space_->EndUse({kPlace});
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(Written(), kCsAndDs);
}

TEST_F(StreamEventsTest, MoreStreamsThanAreCoveredOneByOneAreAllStreams) {
  Begin();
  std::vector<CUstream> many(StreamEvents::kMaxStreams + 1);
  for (CUstream& stream : many) {
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    Cover({stream});
  }
  Write(many.back(), 0, 'c');
  Write(many.back(), 1, 'd');
  space_->EndUse({kPlace});
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(Written(), kCsAndDs);
  for (const CUstream stream : many) EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

TEST_F(StreamEventsTest, AStreamIsRecordedOnceForManyUses) {
  Cover({busy_, busy_});
  const uint64_t before = fake_cuda::CallCount("cuEventRecord");
  for (int i = 0; i < 320; ++i) space_->EndUse({kPlace});
  EXPECT_EQ(fake_cuda::CallCount("cuEventRecord") - before, 10u);
}

}  // namespace
}  // namespace memtide::client
