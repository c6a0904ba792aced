// Tests CUDA calls that fail once in a client: the client returns an error, loses and leaks
// nothing, and can try again.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <thread>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "tests/integration/gpu_node.h"
#include "tests/integration/one_gpu.h"

namespace memtide::client {
namespace {

class GpuClientFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    client_ = OpenClient(GpuJob(node_));
    ASSERT_NE(client_, nullptr);
    const auto range = client_->leases()->Allocate(kChunks, ChunkKind::kParameter);
    ASSERT_TRUE(range.ok()) << range.status();
    range_ = *range;
    FillEach(client_.get(), All(), 1);
    ASSERT_TRUE(client_->leases()->Flush().ok());
  }
  void TearDown() override {
    fake_cuda::ClearFaults();
    fake_cuda::SetDelay(std::chrono::microseconds(50));
    EXPECT_EQ(client_->leases()->monitor().stats().leases_in_use, 0u);
    EXPECT_EQ(CountWrongEach(client_.get(), All(), 1), 0u);
    client_.reset();
    node_.InspectUntilIdle();
    EXPECT_EQ(FreeGpuMemory(), kGpuMemory);
    EXPECT_TRUE(fake_cuda::Held().empty());
  }

  std::vector<PlaceId> All() const { return Places(range_, 0, kChunks); }
  // Replaces all regions by new ones that the client has not mapped before.
  void RenewRegions() {
    ASSERT_TRUE(client_->leases()->Resize(kGpuChunk * 4, kPatience).ok());
    ASSERT_TRUE(client_->leases()->Resize(kGpuChunk * kGpuSlots, kPatience).ok());
  }
  // Lets the n-th such call fail while several chunks are acquired.
  void ExpectAcquireSurvives(const std::string& call, uint64_t n, Access access) {
    const std::vector<PlaceId> places = Places(range_, 10, 5);
    const uint64_t mappings = fake_cuda::Held().mappings;
    fake_cuda::FailCall(call, n, CUDA_ERROR_NOT_SUPPORTED);
    const absl::Status status = client_->leases()->Acquire(places, access);
    EXPECT_FALSE(status.ok()) << call << " " << n;
    EXPECT_EQ(client_->leases()->monitor().stats().leases_in_use, 0u);
    EXPECT_EQ(fake_cuda::Held().mappings, mappings);
    EXPECT_EQ(node_.Inspect().sessions(0).leases(),
              client_->leases()->monitor().stats().leases_held);
    const auto again = client_->Use(places, access);
    ASSERT_TRUE(again.ok()) << call << " " << n << ": " << again.status();
    EXPECT_EQ(CountWrong(client_.get(), places, 1), 0u);
  }

  GpuNode node_;
  std::unique_ptr<Client> client_;
  PlaceRange range_;
};

TEST_F(GpuClientFaultTest, AnAcquireThatCannotMapCanBeTriedAgain) {
  for (const char* const call : {"cuMemMap", "cuMemSetAccess"}) {
    for (uint64_t n = 1; n <= 5; ++n) {
      ExpectAcquireSurvives(call, n, n % 2 == 0 ? Access::kRead : Access::kWrite);
      ASSERT_TRUE(client_->leases()->Flush().ok());
    }
  }
}

TEST_F(GpuClientFaultTest, AnAcquireThatCannotTakeMemoryInCanBeTriedAgain) {
  RenewRegions();
  ExpectAcquireSurvives("cuMemImportFromShareableHandle", 1, Access::kWrite);
}

// Without protection an upgrade does not call CUDA.
class GpuProtectedClientTest : public GpuClientFaultTest {
 protected:
  void SetUp() override {
    setenv("MEMTIDE_PROTECT", "1", 1);
    GpuClientFaultTest::SetUp();
    unsetenv("MEMTIDE_PROTECT");
  }
};

TEST_F(GpuProtectedClientTest, AnUpgradeThatCannotMapCanBeTriedAgain) {
  const std::vector<PlaceId> places = Places(range_, 3, 3);
  for (uint64_t n = 1; n <= 3; ++n) {
    ASSERT_TRUE(client_->Use(places, Access::kRead).ok());
    fake_cuda::FailCall("cuMemSetAccess", n, CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_FALSE(client_->leases()->Acquire(places, Access::kWrite).ok());
    EXPECT_EQ(client_->leases()->monitor().stats().leases_in_use, 0u);
    {
      const auto use = client_->Use(places, Access::kWrite);
      ASSERT_TRUE(use.ok()) << use.status();
      EXPECT_EQ(CountWrong(client_.get(), places, 1), 0u);
      Fill(client_.get(), places, 2);
    }
    ASSERT_TRUE(client_->leases()->Flush().ok());
    EXPECT_EQ(CountWrongEach(client_.get(), places, 2), 0u);
    FillEach(client_.get(), places, 1);
    ASSERT_TRUE(client_->leases()->Flush().ok());
  }
}

// Work on the GPU that takes longer than all else in a test.
class WorkOnTheGpu {
 public:
  WorkOnTheGpu(Client* client, PlaceId place) {
    fake_cuda::SetDelay(std::chrono::milliseconds(100));
    EXPECT_TRUE(UseGpu(0).ok());
    EXPECT_EQ(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(fake_cuda::DeviceAddress(client->address(place)), 7,
                              kGpuChunk.count(), stream_),
              CUDA_SUCCESS);
  }
  ~WorkOnTheGpu() { EXPECT_EQ(cuStreamDestroy(stream_), CUDA_SUCCESS); }

 private:
  CUstream stream_ = nullptr;
};

TEST_F(GpuClientFaultTest, AnEventThatCannotBeRecordedFailsNoReleaseAndLosesNoWork) {
  const PlaceId place = range_.first;
  ASSERT_TRUE(client_->leases()->Acquire({place}, Access::kWrite).ok());
  const WorkOnTheGpu work(client_.get(), place);
  fake_cuda::FailCall("cuCtxRecordEvent", 1, CUDA_ERROR_NOT_SUPPORTED);
  fake_cuda::FailCall("cuCtxRecordEvent", 2, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_TRUE(client_->leases()->EndUse({place}).ok());
  EXPECT_EQ(client_->leases()->monitor().stats().leases_in_use, 0u);
  client_->leases()->BeginMoment({});
  EXPECT_TRUE(client_->leases()->Evict({place}).ok());
  const auto use = client_->Use({place}, Access::kWrite);
  ASSERT_TRUE(use.ok()) << use.status();
  const char* const bytes = client_->address(place);
  EXPECT_EQ(std::count(bytes, bytes + kGpuChunk.count(), 7), int64_t(kGpuChunk.count()));
  Fill(client_.get(), {place}, 1);
}

TEST_F(GpuClientFaultTest, AWaitThatFailsBeforeUnmappingLosesNoWork) {
  const PlaceId place = range_.first;
  ASSERT_TRUE(client_->leases()->Acquire({place}, Access::kWrite).ok());
  const WorkOnTheGpu work(client_.get(), place);
  ASSERT_TRUE(client_->leases()->EndUse({place}).ok());
  fake_cuda::FailCall("cuEventQuery", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_TRUE(client_->leases()->Evict({place}).ok());
  const auto use = client_->Use({place}, Access::kWrite);
  ASSERT_TRUE(use.ok()) << use.status();
  const char* const bytes = client_->address(place);
  EXPECT_EQ(std::count(bytes, bytes + kGpuChunk.count(), 7), int64_t(kGpuChunk.count()));
  Fill(client_.get(), {place}, 1);
}

TEST_F(GpuClientFaultTest, ALeaseWhoseWorkIsDoneDoesNotWaitForYoungerOnes) {
  const PlaceId idle = range_.first, busy(range_.first.value() + 1);
  ASSERT_TRUE(client_->leases()->Acquire({idle, busy}, Access::kWrite).ok());
  ASSERT_TRUE(client_->leases()->EndUse({idle}).ok());
  client_->leases()->BeginMoment({});
  const WorkOnTheGpu work(client_.get(), busy);
  ASSERT_TRUE(client_->leases()->EndUse({busy}).ok());
  fake_cuda::SetDelay(std::chrono::microseconds(50));
  std::thread flush([&] { EXPECT_TRUE(client_->leases()->Flush().ok()); });
  uint32_t leases = 2;
  while (leases == 2) leases = node_.Inspect().sessions(0).leases();
  EXPECT_EQ(leases, 1u);
  flush.join();
  FillEach(client_.get(), {busy}, 1);
}

TEST_F(GpuClientFaultTest, ASpanComesBackWhenItsLastOwnersWorkIsDone) {
  const PlaceId place = range_.first;
  const auto tensor =
      client_->Wrap({reinterpret_cast<uint64_t>(client_->address(place)), kGpuChunk.count()});
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  ASSERT_TRUE(client_->leases()->Acquire({place}, Access::kWrite).ok());
  Span returned;
  {
    const WorkOnTheGpu work(client_.get(), place);
    ASSERT_TRUE(client_->leases()->EndUse({place}).ok());
    // The deleter is DLManagedTensor's last field.
    reinterpret_cast<void (**)(void*)>(*tensor)[7](*tensor);
    EXPECT_EQ(client_->TakeReturned(&returned, 1), 0u);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  EXPECT_EQ(client_->TakeReturned(&returned, 1), 1u);
  EXPECT_EQ(returned.size_bytes, kGpuChunk.count());
  FillEach(client_.get(), {place}, 1);
}

TEST_F(GpuClientFaultTest, AnOpenThatFailsAnywhereLeavesNothing) {
  client_.reset();
  node_.InspectUntilIdle();
  for (const char* const call :
       {"cuDeviceGetCount", "cuDeviceGetName", "cuDevicePrimaryCtxRetain", "cuEventCreate",
        "cuMemAddressReserve", "cuMemCreate", "cuMemMap"}) {
    fake_cuda::FailCall(call, 1, CUDA_ERROR_NOT_SUPPORTED);
    const absl::Status status = Client::Open(GpuJob(node_)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << call << ": " << status;
    node_.InspectUntilIdle();
    EXPECT_EQ(FreeGpuMemory(), kGpuMemory) << call;
    EXPECT_TRUE(fake_cuda::Held().empty()) << call;
  }
  SetUp();
}

}  // namespace
}  // namespace memtide::client
