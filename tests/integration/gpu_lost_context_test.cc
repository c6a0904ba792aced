// Tests that a program which loses its CUDA context, and goes on, leaves the last committed step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "tests/integration/gpu_node.h"
#include "tests/integration/one_gpu.h"

namespace memtide::client {
namespace {

using ::testing::HasSubstr;

// A named job of two chunks: a parameter, and its shadow chunk, into which each step is written.
class GpuLostContextTest : public testing::Test {
 protected:
  GpuLostContextTest() {
    options_.job.mutable_time_to_live()->set_seconds(600);
    client_ = OpenClient(options_);
    const auto range = client_->leases()->Allocate(2, ChunkKind::kParameter);
    EXPECT_TRUE(range.ok()) << range.status();
    Name(*range);
    const auto ids = client_->leases()->ChunkIds(*range);
    EXPECT_TRUE(ids.ok()) << ids.status();
    ids_ = *ids;
  }
  ~GpuLostContextTest() override {
    client_.reset();
    EXPECT_TRUE(ResetGpu(0).ok());
  }

  void Name(PlaceRange range) {
    parameter_ = range.first;
    shadow_ = PlaceId(range.first.value() + 1);
  }
  // Launches a kernel that sets each byte of a chunk to `value`.
  void Write(PlaceId place, int value) {
    ASSERT_TRUE(client_->leases()->Acquire({place}, Access::kWrite).ok());
    ASSERT_TRUE(UseGpu(0).ok());
    const CUdeviceptr address = fake_cuda::DeviceAddress(client_->address(place));
    ASSERT_EQ(cuMemsetD8Async(address, value, kGpuChunk.count(), nullptr), CUDA_SUCCESS);
    ASSERT_TRUE(client_->leases()->EndUse({place}).ok());
  }
  // Launches a kernel that accesses addresses without memory, then one that should write the shadow
  // chunk, and catches the error.
  void FailToWriteTheShadow() {
    char* const unmapped = client_->address(PlaceId(client_->properties().places - 1));
    ASSERT_TRUE(client_->leases()->Acquire({shadow_}, Access::kWrite).ok());
    fake_cuda::SetDelay(std::chrono::milliseconds(20));
    ASSERT_EQ(cuMemsetD8Async(fake_cuda::DeviceAddress(unmapped), 0, 1, nullptr), CUDA_SUCCESS);
    const CUdeviceptr shadow = fake_cuda::DeviceAddress(client_->address(shadow_));
    ASSERT_EQ(cuMemsetD8Async(shadow, 2, kGpuChunk.count(), nullptr), CUDA_SUCCESS);
    fake_cuda::SetDelay(std::chrono::microseconds(50));
    ASSERT_TRUE(client_->leases()->EndUse({shadow_}).ok());
    ASSERT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  absl::Status Commit(uint64_t step) {
    CommitRequest commit;
    commit.committed.step = step;
    return client_->leases()->Commit(commit, {parameter_}, {shadow_});
  }
  // Ends the program, and begins the next one, with --resume.
  void Resume() {
    client_.reset();
    ASSERT_TRUE(ResetGpu(0).ok());
    ASSERT_TRUE(UseGpu(0).ok());
    client_ = OpenClient(options_);
    ASSERT_NE(client_, nullptr);
    const auto range = client_->leases()->Attach(ids_);
    ASSERT_TRUE(range.ok()) << range.status();
    Name(*range);
  }
  bool AllBytesAre(PlaceId place, int value) {
    const auto use = client_->Use({place}, Access::kRead);
    EXPECT_TRUE(use.ok()) << use.status();
    if (!use.ok()) return false;
    const char* const bytes = client_->address(place);
    return std::count(bytes, bytes + kGpuChunk.count(), value) ==
           static_cast<int64_t>(kGpuChunk.count());
  }

  GpuNode node_;
  Client::Options options_ = GpuJob(node_, "job");
  std::unique_ptr<Client> client_;
  PlaceId parameter_, shadow_;
  std::vector<ChunkId> ids_;
};

// The program catches the error and commits the step all the same.
TEST_F(GpuLostContextTest, AStepThatNoKernelWroteIsNotCommitted) {
  Write(shadow_, 1);
  ASSERT_TRUE(Commit(1).ok());
  FailToWriteTheShadow();
  const absl::Status status = Commit(2);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--resume"));
  EXPECT_EQ(client_->leases()->Acquire({parameter_}, Access::kRead), status)
      << "the session is lost";
  EXPECT_EQ(node_.Inspect().session_count(), 0u);
  Resume();
  EXPECT_EQ(client_->leases()->committed().step, 1u);
  EXPECT_TRUE(AllBytesAre(parameter_, 1));
  EXPECT_TRUE(absl::IsDataLoss(client_->leases()->Acquire({shadow_}, Access::kRead)));
}

TEST_F(GpuLostContextTest, EachCallThatMeetsTheLossEndsTheSession) {
  const std::vector<std::function<absl::Status()>> calls = {
      [this] { return client_->leases()->Flush(); },
      [this] { return client_->leases()->Evict({shadow_}); },
      [this] { return client_->leases()->Acquire({parameter_}, Access::kRead); },
      [this] {
        return client_->leases()->Free({shadow_, 1});
      },
      [this] {
        OwnPart part;
        part.places = {shadow_};
        return client_->leases()->StartPart(&part).status();
      },
      [this] {
        // The fetch of one more chunk than may be leased releases the oldest one.
        const auto more = client_->leases()->Allocate(kGpuUses, ChunkKind::kOther);
        return more.ok() ? client_->leases()->Acquire(Places(*more, 0, kGpuUses), Access::kRead)
                         : more.status();
      },
  };
  for (const auto& call : calls) {
    Write(shadow_, 1);
    FailToWriteTheShadow();
    const absl::Status status = call();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_EQ(node_.Inspect().session_count(), 0u);
    Resume();
    EXPECT_TRUE(absl::IsDataLoss(client_->leases()->Acquire({shadow_}, Access::kRead)));
  }
}

}  // namespace
}  // namespace memtide::client
