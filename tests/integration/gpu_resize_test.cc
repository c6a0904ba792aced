// Tests Resize: memory that a job gives up is free on the GPU when the call returns, and no byte is
// lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "tests/integration/child_process.h"
#include "tests/integration/gpu_node.h"
#include "tests/integration/one_gpu.h"

namespace memtide::client {
namespace {

const Bytes kFull = kGpuChunk * kGpuSlots;
const Bytes kHalf = kGpuChunk * (kGpuSlots / 2);
constexpr Duration kSoon = std::chrono::milliseconds(50);

class GpuResizeTest : public testing::Test {
 protected:
  void SetUp() override {
    client_ = OpenClient(GpuJob(node_, "resized"));
    ASSERT_NE(client_, nullptr);
    const auto range = client_->leases()->Allocate(kChunks, ChunkKind::kParameter);
    ASSERT_TRUE(range.ok()) << range.status();
    range_ = *range;
    FillEach(client_.get(), All(), 1);
    ASSERT_EQ(FreeGpuMemory(), kGpuMemory - kFull);
  }

  std::vector<PlaceId> All() const { return Places(range_, 0, kChunks); }
  // The GPU's memory that the job uses.
  static Bytes Used() { return kGpuMemory - FreeGpuMemory(); }
  void ExpectResize(Bytes share) {
    const absl::Status status = client_->leases()->Resize(share, kPatience);
    EXPECT_TRUE(status.ok()) << status;
  }
  // Opens another session of the job, which maps every region that has chunks of the job.
  void OpenPuppet() {
    puppet_.emplace("GPU_PUPPET", std::vector<std::string>{node_.socket_dir(), "resized"});
    ASSERT_EQ(puppet_->ReadLine(), "ready");
    ASSERT_EQ(puppet_->Ask("allocate 16"), "ok");
    for (int n = 0; n < 16; ++n) {
      const std::string one = std::to_string(n) + " 1";
      ASSERT_EQ(puppet_->Ask("acquire " + one), "ok");
      ASSERT_EQ(puppet_->Ask("fill " + one + " 5"), "ok");
      ASSERT_EQ(puppet_->Ask("release " + one), "ok");
    }
  }
  void ExpectPuppetsBytes() {
    for (int n = 0; n < 16; ++n) {
      const std::string one = std::to_string(n) + " 1";
      EXPECT_EQ(puppet_->Ask("acquire " + one), "ok");
      EXPECT_EQ(puppet_->Ask("wrong " + one + " 5"), "0");
      EXPECT_EQ(puppet_->Ask("release " + one), "ok");
    }
  }

  GpuNode node_;
  std::unique_ptr<Client> client_;
  PlaceRange range_;
  absl::optional<ChildProcess> puppet_;
};

TEST_F(GpuResizeTest, GivenUpMemoryIsFreeWhenTheCallReturns) {
  for (int round = 0; round < 5; ++round) {
    ExpectResize(kHalf);
    EXPECT_EQ(Used(), kHalf);
    EXPECT_EQ(client_->leases()->monitor().stats().lease_budget, 3u);
    EXPECT_EQ(CountWrongEach(client_.get(), All(), 1), 0u);
    EXPECT_EQ(Used(), kHalf);
    ExpectResize(kFull);
    EXPECT_EQ(CountWrongEach(client_.get(), All(), 1), 0u);
    EXPECT_EQ(Used(), kFull);
    EXPECT_EQ(client_->leases()->monitor().stats().lease_budget, kGpuUses);
  }
}

TEST_F(GpuResizeTest, TheMemoryCanBeHadByAnotherProgramAtOnce) {
  const Bytes rest = FreeGpuMemory();
  CUdeviceptr held = 0;
  ASSERT_EQ(cuMemAlloc(&held, rest.count()), CUDA_SUCCESS);
  ExpectResize(kHalf);
  CUdeviceptr more = 0;
  EXPECT_EQ(cuMemAlloc(&more, kHalf.count()), CUDA_SUCCESS);
  EXPECT_EQ(CountWrongEach(client_.get(), All(), 1), 0u);
  EXPECT_EQ(cuMemFree(more), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(held), CUDA_SUCCESS);
}

TEST_F(GpuResizeTest, LeasesInUseKeepItUntilTheyEnd) {
  const std::vector<PlaceId> used = Places(range_, 0, kGpuUses);
  ASSERT_TRUE(client_->leases()->Acquire(used, Access::kWrite).ok());
  const absl::Status status = client_->leases()->Resize(kHalf, kSoon);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_GT(Used(), kHalf);
  EXPECT_EQ(CountWrong(client_.get(), used, 1), 0u);
  Fill(client_.get(), used, 2);
  ASSERT_TRUE(client_->leases()->EndUse(used).ok());
  EXPECT_EQ(FreeGpuMemoryOnce(kGpuMemory - kHalf), kGpuMemory - kHalf) << "it went on";
  EXPECT_EQ(CountWrongEach(client_.get(), used, 2), 0u);
  ExpectResize(kHalf);
}

TEST_F(GpuResizeTest, ASecondSessionReleasesItsMemoryToo) {
  OpenPuppet();
  ExpectResize(kHalf);
  EXPECT_EQ(Used(), kHalf);
  EXPECT_EQ(CountWrongEach(client_.get(), All(), 1), 0u);
  ExpectPuppetsBytes();
  ExpectResize(kFull);
  ExpectPuppetsBytes();
  EXPECT_EQ(CountWrongEach(client_.get(), All(), 1), 0u);
  EXPECT_EQ(Used(), kFull);
}

TEST_F(GpuResizeTest, LeasesInUseInASecondSessionKeepItUntilTheyEnd) {
  OpenPuppet();
  ASSERT_EQ(puppet_->Ask("acquire 0 6"), "ok");
  const absl::Status status = client_->leases()->Resize(kHalf, kSoon);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(puppet_->Ask("wrong 0 6 5"), "0");
  EXPECT_EQ(puppet_->Ask("release 0 6"), "ok");
  EXPECT_EQ(FreeGpuMemoryOnce(kGpuMemory - kHalf), kGpuMemory - kHalf) << "it went on";
  ExpectPuppetsBytes();
  EXPECT_EQ(CountWrongEach(client_.get(), All(), 1), 0u);
}

TEST_F(GpuResizeTest, AKilledSessionKeepsNoMemory) {
  OpenPuppet();
  ASSERT_EQ(puppet_->Ask("acquire 0 6"), "ok");
  const absl::Status early = client_->leases()->Resize(kHalf, kSoon);
  EXPECT_TRUE(absl::IsDeadlineExceeded(early)) << early;
  absl::Status status;
  std::thread resizing([&] { status = client_->leases()->Resize(kHalf, kPatience); });
  puppet_->Kill();
  resizing.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(FreeGpuMemoryOnce(kGpuMemory - kHalf), kGpuMemory - kHalf);
  EXPECT_EQ(CountWrongEach(client_.get(), All(), 1), 0u);
}

TEST_F(GpuResizeTest, WorkOnTheGpuIsDoneBeforeItsMemoryGoes) {
  CUstream stream = nullptr;
  ASSERT_TRUE(UseGpu(0).ok());
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (const PlaceId place : All()) {
    const auto use = client_->Use({place}, Access::kWrite);
    ASSERT_TRUE(use.ok()) << use.status();
    const CUdeviceptr address = fake_cuda::DeviceAddress(client_->address(place));
    ASSERT_EQ(cuMemsetD8Async(address, 7, kGpuChunk.count(), stream), CUDA_SUCCESS);
  }
  ExpectResize(kHalf);
  for (const PlaceId place : All()) {
    const auto use = client_->Use({place}, Access::kRead);
    ASSERT_TRUE(use.ok()) << use.status();
    const char* const bytes = client_->address(place);
    EXPECT_EQ(std::count(bytes, bytes + kGpuChunk.count(), 7), int64_t(kGpuChunk.count()));
  }
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

}  // namespace
}  // namespace memtide::client
