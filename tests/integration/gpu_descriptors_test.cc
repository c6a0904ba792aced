// Tests a job that has more regions of GPU memory than its program may have descriptors.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/cuda/fake/importer_process.h"
#include "tests/integration/gpu_node.h"

namespace memtide::client {
namespace {

constexpr uint32_t kSlots = 100;

const SharedFakeCuda shared("memory=256MiB,delay_us=50");

uint32_t OpenDescriptors() {
  uint32_t count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST(GpuDescriptorsTest, AJobWithMoreRegionsThanTheSoftLimitOfDescriptorsIsResumed) {
  GpuNode node("cuda", {}, kGpuChunk * kSlots);
  Client::Options options = GpuJob(node, "job");
  options.job.mutable_time_to_live()->set_seconds(600);
  std::vector<ChunkId> ids;
  {
    const auto client = OpenClient(options);
    ASSERT_NE(client, nullptr);
    EXPECT_EQ(client->properties().job.device_slots, kSlots);
    const auto range = client->leases()->Allocate(kSlots, ChunkKind::kParameter);
    ASSERT_TRUE(range.ok()) << range.status();
    FillEach(client.get(), Places(*range, 0, kSlots), 1);
    ids = *client->leases()->ChunkIds(*range);
    ASSERT_TRUE(client->leases()->Flush().ok());
  }
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {OpenDescriptors() + kSlots / 2, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  {
    const auto client = OpenClient(options);
    ASSERT_NE(client, nullptr);
    const auto range = client->leases()->Attach(ids);
    ASSERT_TRUE(range.ok()) << range.status();
    for (const PlaceId place : Places(*range, 0, kSlots)) {
      ASSERT_TRUE(client->Use({place}, Access::kRead).ok()) << place.value();
    }
  }
  rlimit after;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, std::min<rlim_t>(before.rlim_max, 6144));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace memtide::client
