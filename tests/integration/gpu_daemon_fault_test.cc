// Tests a daemon whose GPU is lost and restarted, or whose memory other programs use.
#include <string>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/gpu_node.h"
#include "tests/integration/one_gpu.h"

namespace memtide::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Faults(const std::string& faults) { return "MEMTIDE_FAKE_CUDA_FAULTS=" + faults; }

// Runs a job that needs all tiers, and expects all of its bytes.
void ExpectAJobWorks(const GpuNode& node) {
  const auto client = OpenClient(GpuJob(node));
  ASSERT_NE(client, nullptr);
  const auto range = client->leases()->Allocate(kChunks, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  const std::vector<PlaceId> all = Places(*range, 0, kChunks);
  for (uint64_t round = 1; round <= 2; ++round) {
    FillEach(client.get(), all, round);
    EXPECT_EQ(CountWrongEach(client.get(), all, round), 0u);
  }
}

TEST(GpuDaemonFaultTest, AJobGoesOnWhenTheGpuIsLost) {
  for (const char* const fault :
       {"cuMemcpyDtoHAsync:1=700", "cuMemcpyHtoDAsync:1=700", "cuMemcpyDtoHAsync:5=719",
        "cuMemcpyHtoDAsync:17=700", "cuMemcpyHtoDAsync:3=214", "cuEventSynchronize:20=700",
        "cuMemsetD8Async:3=700", "cuMemMap:5=700",
        "cuMemcpyDtoHAsync:2=700,cuMemcpyHtoDAsync:11=719"}) {
    SCOPED_TRACE(fault);
    GpuNode node("cuda", {Faults(fault)});
    ExpectAJobWorks(node);
    EXPECT_EQ(node.InspectUntilIdle().counters().transfers_failed(), 0u);
    EXPECT_EQ(FreeGpuMemory(), kGpuMemory);
    EXPECT_THAT(node.End(), AllOf(HasSubstr("was lost ("), HasSubstr("and restarted;")));
  }
}

// The GPU's memory has failed where a chunk was: its error is uncorrectable, or contained.
TEST(GpuDaemonFaultTest, BytesInMemoryThatFailedAreNeitherStoredNorServed) {
  for (const char* const code : {"214", "226"}) {
    SCOPED_TRACE(code);
    GpuNode node("cuda", {Faults(std::string("cuMemcpyDtoHAsync:1=") + code)});
    const auto client = OpenClient(GpuJob(node));
    ASSERT_NE(client, nullptr);
    const auto range = client->leases()->Allocate(3, ChunkKind::kParameter);
    ASSERT_TRUE(range.ok()) << range.status();
    FillEach(client.get(), Places(*range, 0, 3), 1);
    const std::vector<PlaceId> lost = Places(*range, 0, 1), others = Places(*range, 1, 2);
    const absl::Status status = client->leases()->Evict(lost);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    const std::string chunk = std::to_string((*client->leases()->ChunkIds(*range))[0].value());
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("chunk " + chunk), HasSubstr("GPU 0, Fake GPU"), HasSubstr("ECC"),
                      HasSubstr("--resume"), HasSubstr("nvidia-smi")));
    const absl::Status read = client->leases()->Acquire(lost, Access::kRead);
    EXPECT_TRUE(absl::IsDataLoss(read)) << read;
    EXPECT_THAT(std::string(read.message()), AllOf(HasSubstr("memory"), HasSubstr("--resume")));
    EXPECT_EQ(CountWrongEach(client.get(), others, 1), 0u);
    // An operation in place would compute from zeros.
    EXPECT_TRUE(absl::IsDataLoss(client->leases()->Acquire(lost, Access::kWrite)));
    EXPECT_TRUE(client->leases()->Discard(lost).ok());
    FillEach(client.get(), lost, 2);
    EXPECT_EQ(CountWrongEach(client.get(), lost, 2), 0u) << "written anew, elsewhere";
    EXPECT_THAT(node.End(), AllOf(HasSubstr("was lost ("), HasSubstr("and restarted;")));
  }
}

TEST(GpuDaemonFaultTest, AChunkWithACopyBelowIsServedFromItWhenMemoryFails) {
  // The second copy out is the check of the first clean drop.
  GpuNode node("cuda", {Faults("cuMemcpyDtoHAsync:2=214")});
  const auto client = OpenClient(GpuJob(node));
  ASSERT_NE(client, nullptr);
  const auto range = client->leases()->Allocate(1, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  const std::vector<PlaceId> chunk = Places(*range, 0, 1);
  FillEach(client.get(), chunk, 1);
  for (int round = 0; round < 3; ++round) {
    const absl::Status evicted = client->leases()->Evict(chunk);
    EXPECT_TRUE(evicted.ok()) << evicted;
    EXPECT_EQ(CountWrongEach(client.get(), chunk, 1), 0u);
  }
  EXPECT_THAT(node.End(), HasSubstr("and restarted;"));
}

TEST(GpuDaemonFaultTest, AGpuThatCannotBeRestartedEndsItsSessionsAndIsUsedAgain) {
  GpuNode node(
      "cuda",
      {Faults(
          "cuMemcpyDtoHAsync:5=700,cuDevicePrimaryCtxReset:1=801,cuDevicePrimaryCtxReset:2=801")});
  absl::Status status;
  {
    const auto client = OpenClient(GpuJob(node));
    ASSERT_NE(client, nullptr);
    const auto range = client->leases()->Allocate(kChunks, ChunkKind::kParameter);
    ASSERT_TRUE(range.ok()) << range.status();
    for (uint32_t n = 0; n < kChunks && status.ok(); ++n) {
      // The fetch waits for room until its deadline, as no chunk on the GPU can be evicted.
      status = client->Use(Places(*range, n, 1), Access::kWrite, std::chrono::seconds(2)).status();
    }
  }
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("could not be restarted"));
  node.InspectUntilIdle();
  EXPECT_THAT(node.End(), AllOf(HasSubstr("was lost ("), HasSubstr("could not be restarted")));
  EXPECT_EQ(FreeGpuMemory(), kGpuMemory);
}

TEST(GpuDaemonFaultTest, AnAllocationThatFailsOnceIsTriedAgain) {
  for (int n = 1; n <= 6; ++n) {
    const std::string fault = "cuMemCreate:" + std::to_string(n) + "=2";
    SCOPED_TRACE(fault);
    GpuNode node("cuda", {Faults(fault)});
    ExpectAJobWorks(node);
    EXPECT_THAT(node.End(), Not(HasSubstr("was lost")));
  }
}

// Memory of the GPU that another program has allocated.
class Taken {
 public:
  explicit Taken(Bytes left) {
    EXPECT_TRUE(UseGpu(0).ok());
    EXPECT_EQ(cuMemAlloc(&memory_, (kGpuMemory - left).count()), CUDA_SUCCESS);
  }
  ~Taken() { EXPECT_EQ(cuMemFree(memory_), CUDA_SUCCESS); }

 private:
  CUdeviceptr memory_ = 0;
};

TEST(GpuDaemonFaultTest, TooLittleMemoryForAJobIsReportedAndTheNextJobWorks) {
  GpuNode node;
  for (uint32_t left = 0; left < 4; ++left) {
    SCOPED_TRACE(left);
    {
      const Taken taken(kGpuChunk * left);
      const absl::Status status = Client::Open(GpuJob(node)).status();
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("out of memory"), HasSubstr("of 64 MiB are free on the GPU"),
                        HasSubstr("Another process may use it")));
      node.InspectUntilIdle();
      EXPECT_EQ(FreeGpuMemory(), kGpuChunk * left);
    }
    if (left % 2 == 0) ExpectAJobWorks(node);
    node.InspectUntilIdle();
  }
}

// The acquire that finds less memory returns an error, as leases that were idle when it was granted
// still count. After it the job continues with the memory that is left.
TEST(GpuDaemonFaultTest, AJobThatGetsFewerSlotsThanItsShareGoesOn) {
  GpuNode node;
  for (uint32_t left = 5; left < kGpuSlots; left += 2) {
    SCOPED_TRACE(left);
    const Taken taken(kGpuChunk * left);
    auto client = OpenClient(GpuJob(node));
    ASSERT_NE(client, nullptr);
    const auto range = client->leases()->Allocate(kChunks, ChunkKind::kParameter);
    ASSERT_TRUE(range.ok()) << range.status();
    for (uint32_t n = 0; n < kGpuSlots; ++n) {
      const absl::Status status = client->Use(Places(*range, n, 1), Access::kWrite).status();
      if (status.ok()) continue;
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("are free on the GPU"));
    }
    const std::vector<PlaceId> all = Places(*range, 0, kChunks);
    FillEach(client.get(), all, 1);
    EXPECT_EQ(CountWrongEach(client.get(), all, 1), 0u);
    EXPECT_EQ(FreeGpuMemory(), Bytes(0));
    client.reset();
    node.InspectUntilIdle();
  }
  ExpectAJobWorks(node);
}

}  // namespace
}  // namespace memtide::client
