// Mapping on a GPU whose context ends if mappings change while work of the process runs.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "client/cuda/cuda_space.h"
#include "client/cuda/testing/cuda_space_harness.h"

namespace memtide::client {
namespace {

TEST(IdleMappingTest, ChunksAreMappedAndUnmappedOnceAllWorkIsDone) {
  const Lent first, second;
  auto space = ReserveCudaSpace({kChunk, 8, /*maps_when_idle=*/true}, Uuid());
  ASSERT_TRUE(space.ok()) << space.status();
  Region regions[] = {first.Share(), second.Share()};
  ASSERT_TRUE(UseGpu(0).ok());
  ASSERT_TRUE((*space)->Map(PlaceId(0), &regions[0], Bytes(0), Access::kWrite).ok());
  const CUdeviceptr used = fake_cuda::DeviceAddress((*space)->address(PlaceId(0)));
  for (int round = 0; round < 3; ++round) {
    fake_cuda::SetDelay(std::chrono::milliseconds(20));
    ASSERT_EQ(cuMemsetD8Async(used, 'a' + round, 64, nullptr), CUDA_SUCCESS);
    (*space)->EndUse({PlaceId(0)});
    EXPECT_TRUE((*space)->Map(PlaceId(1), &regions[1], Bytes(0), Access::kWrite).ok());
    ASSERT_EQ(cuMemsetD8Async(used + 64, 'a' + round, 64, nullptr), CUDA_SUCCESS);
    EXPECT_TRUE((*space)->Unmap(PlaceId(1)).ok());
  }
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(std::string(first.data(), 128), std::string(128, 'c'));
}

TEST(IdleMappingTest, AChunkIsMappedOnceACaptureOfAnotherThreadHasEnded) {
  const Lent lent;
  auto space = ReserveCudaSpace({kChunk, 8, /*maps_when_idle=*/true}, Uuid());
  ASSERT_TRUE(space.ok()) << space.status();
  Region region = lent.Share();
  fake_cuda::BeginCapture(fake_cuda::CaptureOn::kBlockingStream);
  const uint64_t questions = fake_cuda::CallCount("cuStreamIsCapturing");
  std::thread maps(
      [&] { EXPECT_TRUE((*space)->Map(PlaceId(0), &region, Bytes(0), Access::kWrite).ok()); });
  while (fake_cuda::CallCount("cuStreamIsCapturing") < questions + 3) std::this_thread::yield();
  EXPECT_TRUE(fake_cuda::EndCapture());
  maps.join();
}

}  // namespace
}  // namespace memtide::client
