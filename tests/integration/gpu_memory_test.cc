// Tests chunks in GPU memory, host memory and on SSD, with the real client library and daemon.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "tests/integration/gpu_node.h"
#include "tests/integration/one_gpu.h"

namespace memtide::client {
namespace {

constexpr uint32_t kManyChunks = 6 * kGpuSlots;

TEST(GpuMemoryTest, ManyTimesTheGpusMemoryComesBackInAnyOrder) {
  GpuNode node;
  const auto client = OpenClient(GpuJob(node));
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->properties().job.device_slots, kGpuSlots);
  EXPECT_EQ(client->properties().job.device_memory, MemoryKind::kCudaDescriptor);
  EXPECT_FALSE(client->properties().handles_faults);
  const auto range = client->leases()->Allocate(kManyChunks, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  FillEach(client.get(), Places(*range, 0, kManyChunks), 0);
  std::mt19937 random(1);
  std::vector<uint64_t> stamps(kManyChunks, 0);
  for (uint64_t step = 1; step <= 200; ++step) {
    // Three different chunks.
    const uint32_t n = random() % kManyChunks;
    for (const uint32_t each : {n, (n + 7) % kManyChunks, (n + 31) % kManyChunks}) {
      const std::vector<PlaceId> place = Places(*range, each, 1);
      const bool writes = random() % 2 == 0;
      const auto use = client->Use(place, writes ? Access::kWrite : Access::kRead);
      ASSERT_TRUE(use.ok()) << use.status();
      ASSERT_EQ(CountWrong(client.get(), place, stamps[each]), 0u) << each << " at step " << step;
      if (!writes) continue;
      stamps[each] = step;
      Fill(client.get(), place, step);
    }
  }
  const v1::InspectNodeResponse seen = node.Inspect();
  EXPECT_GT(seen.counters().ssd_read_bytes(), kGpuChunk.count() * kManyChunks);
  EXPECT_EQ(FreeGpuMemory(), kGpuMemory - kGpuChunk * kGpuSlots);
}

TEST(GpuMemoryTest, ManyChunksAreUsedAtOnceByManyThreads) {
  GpuNode node;
  const auto client = OpenClient(GpuJob(node));
  ASSERT_NE(client, nullptr);
  const auto range = client->leases()->Allocate(kManyChunks, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < 3; ++worker) {
    threads.emplace_back([&, worker] {
      const std::vector<PlaceId> mine = Places(*range, worker * kManyChunks / 3, kManyChunks / 3);
      for (uint64_t round = 1; round <= 3; ++round) {
        FillEach(client.get(), mine, round);
        EXPECT_EQ(CountWrongEach(client.get(), mine, round), 0u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The staging buffers take 16 MiB, and 4 of the host pool's 8 slots fit beside them.
TEST(GpuMemoryTest, WhereLittleCanBePinnedTheRestIsCopiedThroughTheRing) {
  const std::string little =
      std::string("MEMTIDE_FAKE_CUDA=") + std::getenv("MEMTIDE_FAKE_CUDA") + ",pinned=24MiB";
  GpuNode node("cuda", {little});
  {
    const auto client = OpenClient(GpuJob(node));
    ASSERT_NE(client, nullptr);
    const auto range = client->leases()->Allocate(kManyChunks, ChunkKind::kParameter);
    ASSERT_TRUE(range.ok()) << range.status();
    for (uint64_t round = 1; round <= 3; ++round) {
      FillEach(client.get(), Places(*range, 0, kManyChunks), round);
      EXPECT_EQ(CountWrongEach(client.get(), Places(*range, 0, kManyChunks), round), 0u);
    }
    const v1::HostMemory seen = node.Inspect().host_memory();
    EXPECT_EQ(seen.staging_bytes(), MiB(16).count());
    EXPECT_EQ(seen.pinned_bytes(), MiB(6).count()) << "of 8 MiB, one slot is left for others";
    EXPECT_EQ(seen.pinned_bytes() + seen.unpinned_bytes(), MiB(16).count()) << "the host pool";
    EXPECT_FALSE(seen.has_numa_node()) << "there is one, or it is unknown";
  }
  const v1::HostMemory left = node.InspectUntilIdle().host_memory();
  EXPECT_EQ(left.pinned_bytes() + left.unpinned_bytes(), 0u);
  EXPECT_NE(node.End().find("some host memory is not pinned"), std::string::npos);
}

TEST(GpuMemoryTest, NewChunksAreZeroAlsoWhereOthersWere) {
  GpuNode node;
  const auto client = OpenClient(GpuJob(node));
  ASSERT_NE(client, nullptr);
  for (int round = 0; round < 3; ++round) {
    const auto range = client->leases()->Allocate(2 * kGpuSlots, ChunkKind::kGradient);
    ASSERT_TRUE(range.ok()) << range.status();
    for (const PlaceId place : Places(*range, 0, range->count)) {
      const auto use = client->Use({place}, Access::kWrite);
      ASSERT_TRUE(use.ok()) << use.status();
      const char* const bytes = client->address(place);
      EXPECT_EQ(std::count(bytes, bytes + kGpuChunk.count(), '\0'), kGpuChunk.count());
      Fill(client.get(), {place}, 9);
    }
    ASSERT_TRUE(client->leases()->Free(*range).ok());
  }
}

TEST(GpuMemoryTest, AClosedClientLeavesTheGpuFree) {
  GpuNode node;
  for (int round = 0; round < 3; ++round) {
    {
      const auto client = OpenClient(GpuJob(node));
      ASSERT_NE(client, nullptr);
      const auto range = client->leases()->Allocate(kManyChunks, ChunkKind::kParameter);
      ASSERT_TRUE(range.ok()) << range.status();
      FillEach(client.get(), Places(*range, 0, kManyChunks), 1);
      // One chunk is still in use when the client is closed.
      ASSERT_TRUE(client->leases()->Acquire({range->first}, Access::kWrite).ok());
    }
    node.InspectUntilIdle();
    EXPECT_EQ(FreeGpuMemory(), kGpuMemory);
    EXPECT_TRUE(fake_cuda::Held().empty());
  }
}

}  // namespace
}  // namespace memtide::client
