// How address spaces on a GPU wait for launched work, over the fake CUDA with its delayed copies.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "client/cuda/cuda_space.h"
#include "client/cuda/testing/cuda_space_harness.h"

namespace memtide::client {
namespace {

// The chunk is leased for reading, kernels read it, and an operation that writes it is launched.
TEST_F(CudaSpaceWorkTest, AChunkBecomesWritableUnderKernelsThatReadIt) {
  const auto upgrade_in_use = [](AddressSpace* space) {
    Lent lent;
    Region region = lent.Share();
    memcpy(lent.data(), "weight", 6);
    ASSERT_TRUE(space->Map(PlaceId(4), &region, Bytes(0), Access::kRead).ok());
    const CUdeviceptr address = fake_cuda::DeviceAddress(space->address(PlaceId(4)));
    fake_cuda::SetDelay(std::chrono::milliseconds(50));
    char read[6] = {};
    ASSERT_EQ(cuMemcpyDtoHAsync(read, address, 6, nullptr), CUDA_SUCCESS);
    space->EndUse({PlaceId(4)});
    ASSERT_TRUE(space->MakeWritable(PlaceId(4)).ok());
    ASSERT_EQ(cuMemsetD8Async(address, 'w', 6, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(std::string(read, 6), "weight");
    EXPECT_EQ(std::string(lent.data(), 6), "wwwwww");
    EXPECT_TRUE(space->Unmap(PlaceId(4)).ok());
  };
  const uint64_t calls = fake_cuda::CallCount("cuMemSetAccess");
  upgrade_in_use(space_.get());
  EXPECT_EQ(fake_cuda::CallCount("cuMemSetAccess") - calls, 2u) << "one is the daemon's side";
  const Protecting protecting;
  upgrade_in_use(Reserve().get());
}

const std::string kAsAndBs = std::string(64, 'a') + std::string(64, 'b');

TEST_F(CudaSpaceWorkTest, UnmapWaitsForWorkOfAllStreamsLaunchedBeforeTheUseEnded) {
  BeginToWrite('a', 'b');
  space_->EndUse({kPlace});
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(Written(), kAsAndBs);
}

TEST_F(CudaSpaceWorkTest, AnOldFenceStillDelaysUnmapManyUsesLater) {
  BeginToWrite('a', 'b');
  space_->EndUse({kPlace});
  for (int i = 0; i < 600; ++i) UseInAnEpoch(PlaceId(2));
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(Written(), kAsAndBs);
}

TEST_F(CudaSpaceWorkTest, AFailedWaitIsRetriedBeforeMemoryIsUnmapped) {
  BeginToWrite('a', 'b');
  space_->EndUse({kPlace});
  // Both waits return this while another thread captures a graph.
  fake_cuda::FailCall("cuEventQuery", 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  fake_cuda::FailCall("cuCtxSynchronize", 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  fake_cuda::ClearFaults();
  EXPECT_EQ(Written(), kAsAndBs);
}

// Another library of the process captures a graph in its own thread.
TEST_F(CudaSpaceWorkTest, ACaptureIsLeftAloneAndUnmapWaitsForItsEnd) {
  BeginToWrite('a', 'b');
  UseInAnEpoch(kPlace);
  fake_cuda::BeginCapture(fake_cuda::CaptureOn::kBlockingStream);
  EXPECT_FALSE(space_->IsDone(space_->FenceOf(kPlace)));
  for (int i = 0; i < 100; ++i) UseInAnEpoch(kPlace);
  EXPECT_FALSE(space_->IsDone(space_->RecordFence()));
  const uint64_t questions = fake_cuda::CallCount("cuStreamIsCapturing");
  std::thread unmaps([this] { EXPECT_TRUE(space_->Unmap(kPlace).ok()); });
  while (fake_cuda::CallCount("cuStreamIsCapturing") < questions + 3) std::this_thread::yield();
  EXPECT_TRUE(fake_cuda::EndCapture()) << "an event, or a wait, has invalidated it";
  unmaps.join();
  EXPECT_EQ(Written(), kAsAndBs);
}

// The question fails on a lost device. A session that ended by it would hide the loss from the
// daemon (gpu_lost_device_test).
TEST_F(CudaSpaceWorkTest, AQuestionForCapturesThatFailsHasNoConsequence) {
  BeginToWrite('a', 'b');
  for (int n = 1; n <= 100; ++n) {
    fake_cuda::FailCall("cuStreamIsCapturing", n, CUDA_ERROR_UNKNOWN);
  }
  UseInAnEpoch(kPlace);
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_TRUE(space_->IsDone(space_->RecordFence()));
  fake_cuda::ClearFaults();
  EXPECT_EQ(Written(), kAsAndBs);
}

// CUDA does not tell of such a capture.
TEST_F(CudaSpaceWorkTest, ACaptureOnAStreamThatWaitsForNoOtherIsInvalidated) {
  fake_cuda::BeginCapture(fake_cuda::CaptureOn::kOtherStream);
  UseInAnEpoch(kPlace);
  EXPECT_FALSE(fake_cuda::EndCapture());
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
}

TEST_F(CudaSpaceWorkTest, AWaitThatCudaRefusesForGoodEndsTheUseOfTheContext) {
  space_->EndUse({kPlace});
  fake_cuda::FailCall("cuEventQuery", 1, CUDA_ERROR_NOT_SUPPORTED);
  fake_cuda::FailCall("cuCtxSynchronize", 1, CUDA_ERROR_NOT_SUPPORTED);
  const uint64_t waits = fake_cuda::CallCount("cuCtxSynchronize");
  const absl::Status status = space_->Unmap(kPlace);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(fake_cuda::CallCount("cuCtxSynchronize") - waits, 1u) << "it does not try again";
  fake_cuda::ClearFaults();
}

// The event that stands for the work is recorded again, for work that lasts, during the wait.
TEST_F(CudaSpaceWorkTest, AWaitEndsWithItsWorkAlthoughItsEventIsUsedAgain) {
  CUdeviceptr other = 0;
  CUevent other_done = nullptr;
  ASSERT_EQ(cuMemAlloc(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&other_done, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  BeginToWrite('a', 'b');
  UseInAnEpoch(kPlace);
  const uint64_t queries = fake_cuda::CallCount("cuEventQuery");
  std::thread waits([this] { EXPECT_TRUE(space_->Unmap(kPlace).ok()); });
  while (fake_cuda::CallCount("cuEventQuery") == queries) std::this_thread::yield();
  for (int i = 0; i < 200; ++i) UseInAnEpoch(PlaceId(2));
  fake_cuda::SetDelay(std::chrono::seconds(1));
  ASSERT_EQ(cuMemsetD8Async(other, 0, 1, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(other_done, nullptr), CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) UseInAnEpoch(PlaceId(2));
  waits.join();
  EXPECT_EQ(cuEventQuery(other_done), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(Written(), kAsAndBs);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(other_done), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(other), CUDA_SUCCESS);
}

TEST_F(CudaSpaceWorkTest, UnmapWaitsWhereNoEventCouldBeRecorded) {
  BeginToWrite('a', 'b');
  space_->EndUse({kPlace});
  fake_cuda::FailCall("cuCtxRecordEvent", 1, CUDA_ERROR_NOT_SUPPORTED);
  fake_cuda::FailCall("cuCtxRecordEvent", 2, CUDA_ERROR_NOT_SUPPORTED);
  space_->BeginMoment();
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  fake_cuda::ClearFaults();
  EXPECT_EQ(Written(), kAsAndBs);
}

// The work is older than all events that are kept.
TEST_F(CudaSpaceWorkTest, OldWorkDoesNotWaitForNewWork) {
  UseInAnEpoch(kPlace);
  for (int i = 0; i < 200; ++i) UseInAnEpoch(PlaceId(2));
  CUdeviceptr other = 0;
  CUevent other_done = nullptr;
  ASSERT_EQ(cuMemAlloc(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&other_done, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  fake_cuda::SetDelay(std::chrono::seconds(1));
  ASSERT_EQ(cuMemsetD8Async(other, 0, 1, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(other_done, nullptr), CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) UseInAnEpoch(PlaceId(2));
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(cuEventQuery(other_done), CUDA_ERROR_NOT_READY);
  EXPECT_FALSE(space_->IsDone(space_->FenceOf(PlaceId(2))));
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(other_done), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(other), CUDA_SUCCESS);
}

// In the worst case no moments are reported.
TEST_F(CudaSpaceWorkTest, AThousandUsesRecordThirtyOneEvents) {
  // An event enters the context, asks whether a thread captures, and leaves the context.
  constexpr uint64_t kCallsOfAnEvent = 4;
  const uint64_t before = fake_cuda::CallCount("*");
  for (int i = 0; i < 1000; ++i) space_->EndUse({kPlace});
  EXPECT_EQ(fake_cuda::CallCount("*") - before, 1000u / 32 * kCallsOfAnEvent);
  const uint64_t uses = fake_cuda::CallCount("*");
  for (int i = 0; i < 1000; ++i) space_->BeginMoment();
  EXPECT_EQ(fake_cuda::CallCount("*") - uses, kCallsOfAnEvent)
      << "a moment without uses needs none";
}

TEST_F(CudaSpaceWorkTest, UsesOfManyThreadsAreWaitedFor) {
  constexpr int kThreads = 4, kUses = 300;
  std::atomic<int> threads_done{0};
  fake_cuda::SetDelay(std::chrono::microseconds(20));
  const CUdeviceptr bytes = fake_cuda::DeviceAddress(space_->address(kPlace));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      CUstream stream = nullptr;
      ASSERT_TRUE(UseGpu(0).ok());
      ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      for (int i = 0; i < kUses; ++i) {
        const char letter = i == kUses - 1 ? 'z' : 'a';
        ASSERT_EQ(cuMemsetD8Async(bytes + t, letter, 1, stream), CUDA_SUCCESS);
        space_->EndUse({kPlace});
        if (i % 7 == t) space_->BeginMoment();
        if (i % 50 == t) space_->IsDone(space_->RecordFence());
      }
      threads_done.fetch_add(1);
      while (threads_done.load() <= kThreads) std::this_thread::yield();
      ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
    });
  }
  while (threads_done.load() < kThreads) std::this_thread::yield();
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(std::string(lent_.data(), kThreads), std::string(kThreads, 'z'));
  threads_done.fetch_add(1);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CudaSpaceWorkTest, AFenceIsDoneWhenItsStreamsAre) {
  EXPECT_TRUE(space_->IsDone(space_->RecordFence()));
  BeginToWrite('a', 'b');
  const uint64_t work = space_->RecordFence();
  EXPECT_FALSE(space_->IsDone(work));
  for (const CUstream stream : streams_) {
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  EXPECT_TRUE(space_->IsDone(work));
}

}  // namespace
}  // namespace memtide::client
