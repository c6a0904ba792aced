// Tests that a write to GPU memory which no lease announced is found when the copy is dropped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "tests/integration/gpu_node.h"
#include "tests/integration/one_gpu.h"

namespace memtide::client {
namespace {

using ::testing::HasSubstr;

class GpuCleanCheckTest : public testing::Test {
 protected:
  GpuCleanCheckTest() {
    client_ = OpenClient(GpuJob(node_));
    const auto range = client_->leases()->Allocate(1, ChunkKind::kParameter);
    EXPECT_TRUE(range.ok()) << range.status();
    place_ = range->first;
    FillEach(client_.get(), {place_}, 1);
    EXPECT_TRUE(client_->leases()->Evict({place_}).ok());
  }
  // Leases the chunk for reading, lets a kernel read or write it, and drops it from the GPU.
  absl::Status ReadAnd(bool write) {
    EXPECT_TRUE(client_->leases()->Acquire({place_}, Access::kRead).ok());
    const CUdeviceptr address = fake_cuda::DeviceAddress(client_->address(place_));
    char read[8];
    EXPECT_TRUE(UseGpu(0).ok());
    EXPECT_EQ(write ? cuMemsetD8Async(address + 4096, 7, 8, nullptr)
                    : cuMemcpyDtoHAsync(read, address, 8, nullptr),
              CUDA_SUCCESS);
    EXPECT_TRUE(client_->leases()->EndUse({place_}).ok());
    return client_->leases()->Evict({place_});
  }

  GpuNode node_;
  std::unique_ptr<Client> client_;
  PlaceId place_;
};

TEST_F(GpuCleanCheckTest, AWriteThatNoLeaseAnnouncedIsAnError) {
  const absl::Status status = ReadAnd(true);
  // The daemon ends the session and answers the call, and either may arrive first.
  EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("leased only for reading"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("differ at byte 4096"));
  client_.reset();
  node_.InspectUntilIdle();
}

TEST_F(GpuCleanCheckTest, AChunkThatWasReadIsDropped) {
  EXPECT_TRUE(ReadAnd(false).ok());
  EXPECT_EQ(CountWrongEach(client_.get(), {place_}, 1), 0u);
}

}  // namespace
}  // namespace memtide::client
