// Tests that killed clients and daemons leave no memory of a GPU in use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "tests/integration/child_process.h"
#include "tests/integration/gpu_node.h"
#include "tests/integration/one_gpu.h"

namespace memtide::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(GpuDeathTest, AProgramKilledHoldingLeasesLeavesTheWholeGpuToTheNext) {
  GpuNode node;
  for (int round = 0; round < 3; ++round) {
    ChildProcess puppet("GPU_PUPPET", {node.socket_dir(), ""});
    ASSERT_EQ(puppet.ReadLine(), "ready");
    ASSERT_EQ(puppet.Ask("allocate 16"), "ok");
    ASSERT_EQ(puppet.Ask("acquire 0 6"), "ok");
    ASSERT_EQ(puppet.Ask("fill 0 6 1"), "ok");
    ASSERT_EQ(puppet.Ask("release 0 4"), "ok");  // These chunks are idle, and still mapped.
    EXPECT_LE(FreeGpuMemory(), kGpuMemory - kGpuChunk * 6);
    puppet.Kill();
    node.InspectUntilIdle();
    EXPECT_EQ(FreeGpuMemoryOnce(kGpuMemory), kGpuMemory);
    const auto client = OpenClient(GpuJob(node));
    ASSERT_NE(client, nullptr);
    EXPECT_EQ(client->properties().job.device_slots, kGpuSlots);
    const auto range = client->leases()->Allocate(kChunks, ChunkKind::kParameter);
    ASSERT_TRUE(range.ok()) << range.status();
    FillEach(client.get(), Places(*range, 0, kChunks), 2);
    EXPECT_EQ(CountWrongEach(client.get(), Places(*range, 0, kChunks), 2), 0u);
    EXPECT_EQ(FreeGpuMemory(), kGpuMemory - kGpuChunk * kGpuSlots);
  }
}

TEST(GpuDeathTest, AProgramKilledWhileItsChunksMoveLeavesNothing) {
  GpuNode node;
  for (int round = 0; round < 5; ++round) {
    ChildProcess puppet("GPU_PUPPET", {node.socket_dir(), ""});
    ASSERT_EQ(puppet.ReadLine(), "ready");
    ASSERT_EQ(puppet.Ask("allocate 24"), "ok");
    // The device pool is full, so that the next chunks evict others.
    for (int n = 0; n < 24; n += 6) {
      const std::string six = std::to_string(n) + " 6";
      ASSERT_EQ(puppet.Ask("acquire " + six), "ok");
      ASSERT_EQ(puppet.Ask("fill " + six + " 3"), "ok");
      ASSERT_EQ(puppet.Ask("release " + six), "ok");
    }
    puppet.Kill();
    node.InspectUntilIdle();
    EXPECT_EQ(FreeGpuMemoryOnce(kGpuMemory), kGpuMemory);
  }
}

TEST(GpuDeathTest, AnotherSessionOfTheJobGoesOn) {
  GpuNode node;
  const auto client = OpenClient(GpuJob(node, "shared"));
  ASSERT_NE(client, nullptr);
  const auto range = client->leases()->Allocate(kChunks, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  FillEach(client.get(), Places(*range, 0, kChunks), 1);
  {
    ChildProcess puppet("GPU_PUPPET", {node.socket_dir(), "shared"});
    ASSERT_EQ(puppet.ReadLine(), "ready");
    ASSERT_EQ(puppet.Ask("allocate 6"), "ok");
    ASSERT_EQ(puppet.Ask("acquire 0 6"), "ok");
    ASSERT_EQ(puppet.Ask("fill 0 6 1"), "ok");
  }
  EXPECT_EQ(CountWrongEach(client.get(), Places(*range, 0, kChunks), 1), 0u);
  // All slots that may be in use are free, as the killed session's leases have ended.
  const auto use = client->Use(Places(*range, 0, kGpuUses), Access::kWrite);
  EXPECT_TRUE(use.ok()) << use.status();
}

TEST(GpuDeathTest, KernelsThatADyingProgramLeftHitNoChunkOfOthers) {
  GpuNode node;
  const auto client = OpenClient(GpuJob(node, "shared"));
  ASSERT_NE(client, nullptr);
  const auto range = client->leases()->Allocate(kChunks, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  const std::vector<PlaceId> used = Places(*range, 0, kGpuUses);
  // From now on all slots have memory, and it is free.
  FillEach(client.get(), Places(*range, 0, kGpuSlots), 3);
  ASSERT_TRUE(client->leases()->Evict(Places(*range, 0, kGpuSlots)).ok());
  ChildProcess puppet("GPU_PUPPET", {node.socket_dir(), "shared"});
  ASSERT_EQ(puppet.ReadLine(), "ready");
  ASSERT_EQ(puppet.Ask("allocate 6"), "ok");
  ASSERT_EQ(puppet.Ask("acquire 0 6"), "ok");
  ASSERT_EQ(puppet.Ask("hangup"), "ok");
  while (node.Inspect().session_count() > 1) {
  }
  // Two of the eight slots are free, and six chunks are wanted.
  std::atomic<bool> filled{false};
  std::thread fill([&] {
    const auto use = client->Use(used, Access::kWrite);
    EXPECT_TRUE(use.ok()) << use.status();
    if (use.ok()) Fill(client.get(), used, 1);
    filled = true;
  });
  // A call that waits while nothing moves waits for the quarantine.
  for (bool waits = false; !filled && !waits;) {
    const v1::InspectNodeResponse now = node.Inspect();
    waits = now.waiting_calls() > 0 && now.transfers_in_flight() == 0;
  }
  const v1::Pool pool = node.Inspect().pools(0);
  EXPECT_EQ(pool.quarantined_bytes(), (kGpuChunk * 6).count());
  EXPECT_EQ(pool.used_bytes() + pool.reserved_bytes() + pool.quarantined_bytes() +
                pool.scrubbing_bytes() + pool.free_bytes(),
            pool.capacity_bytes());
  EXPECT_EQ(puppet.Ask("memset 0 6"), "ok");
  puppet.Kill();
  fill.join();
  EXPECT_EQ(CountWrongEach(client.get(), used, 1), 0u);
  EXPECT_THAT(node.End(), Not(HasSubstr("is not known to have")));
}

// The daemon goes on with the driver that it has loaded; a program that starts later has another.
TEST(GpuDeathTest, AProgramThatStartsAfterAnUpdateOfTheDriverEndsWithTheRemedy) {
  GpuNode node;
  {
    ChildProcess puppet("GPU_PUPPET", {node.socket_dir(), ""},
                        {"MEMTIDE_FAKE_CUDA_FAULTS=cuInit:1=803,cuInit:2=803"});
    EXPECT_THAT(puppet.ReadLine(), HasSubstr("restart the machine after an update"));
  }
  node.InspectUntilIdle();
  const auto client = OpenClient(GpuJob(node));
  ASSERT_NE(client, nullptr);
  const auto range = client->leases()->Allocate(kChunks, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  FillEach(client.get(), Places(*range, 0, kChunks), 1);
  EXPECT_EQ(CountWrongEach(client.get(), Places(*range, 0, kChunks), 1), 0u);
}

TEST(GpuDeathTest, WhenTheDaemonDiesMappedBytesStayAndCallsSaySo) {
  GpuNode node;
  auto client = OpenClient(GpuJob(node));
  ASSERT_NE(client, nullptr);
  const auto range = client->leases()->Allocate(kChunks, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  const std::vector<PlaceId> used = Places(*range, 0, 5);
  ASSERT_TRUE(client->leases()->Acquire(used, Access::kWrite).ok());
  Fill(client.get(), used, 1);
  node.Kill();
  absl::Status status;
  // Acquiring a leased chunk needs no daemon, so it succeeds until the client sees the daemon's
  // end.
  while (status.ok()) {
    status = client->leases()->Acquire({range->first}, Access::kWrite);
    if (status.ok()) client->leases()->EndUse({range->first}).IgnoreError();
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(std::string(status.message()).find("the memtide daemon ended"), std::string::npos)
      << status;
  EXPECT_TRUE(absl::IsUnavailable(client->leases()->Acquire(Places(*range, 20, 1), Access::kRead)));
  EXPECT_TRUE(
      absl::IsUnavailable(client->leases()->Resize(kGpuChunk * 4, std::chrono::seconds(60))));
  EXPECT_EQ(CountWrong(client.get(), used, 1), 0u);
  EXPECT_TRUE(absl::IsUnavailable(client->leases()->EndUse(used)));
  EXPECT_EQ(CountWrong(client.get(), used, 1), 0u);
  client.reset();
  EXPECT_EQ(FreeGpuMemoryOnce(kGpuMemory), kGpuMemory);
  EXPECT_TRUE(fake_cuda::Held().empty());
}

TEST(GpuDeathTest, ADaemonStartsAgainWhereOneDied) {
  GpuNode node;
  const auto before = OpenClient(GpuJob(node));
  ASSERT_NE(before, nullptr);
  const auto range = before->leases()->Allocate(kGpuSlots, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  FillEach(before.get(), Places(*range, 0, kGpuSlots), 1);
  node.Kill();
  // Regions that the first node's client still maps do not reduce the memory of the next daemon.
  GpuNode next;
  const auto client = OpenClient(GpuJob(next));
  ASSERT_NE(client, nullptr);
  const auto again = client->leases()->Allocate(kChunks, ChunkKind::kParameter);
  ASSERT_TRUE(again.ok()) << again.status();
  FillEach(client.get(), Places(*again, 0, kChunks), 2);
  EXPECT_EQ(CountWrongEach(client.get(), Places(*again, 0, kChunks), 2), 0u);
}

}  // namespace
}  // namespace memtide::client
