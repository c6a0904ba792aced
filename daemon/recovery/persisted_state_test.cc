#include "daemon/recovery/persisted_state.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace memtide {
namespace {

TEST(PersistedStateTest, MeasuresWhatIsThereAndNotHowLargeItMayBecome) {
  PersistedState persisted;
  EXPECT_FALSE(Measure(persisted).any);
  OwnedFd memory(memfd_create("region", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 64 << 20), 0);
  ASSERT_EQ(posix_fallocate(memory.get(), 0, 6 << 20), 0);
  persisted.memory[RegionName(RegionId(3))] = std::move(memory);
  char name[] = "/tmp/memtide-test-XXXXXX";
  OwnedFd file(mkstemp(name));
  ASSERT_TRUE(file.valid());
  ASSERT_EQ(unlink(name), 0);
  ASSERT_EQ(posix_fallocate(file.get(), 0, 4 << 20), 0);
  struct stat status;
  ASSERT_EQ(fstat(file.get(), &status), 0);
  persisted.memory[StoreFileName(StoreId(4), 0)] = std::move(file);
  const PersistedMemory measured = Measure(persisted);
  EXPECT_TRUE(measured.any);
  EXPECT_EQ(measured.memory, MiB(6));
  ASSERT_EQ(measured.blocks.size(), 1u);
  EXPECT_GE(measured.blocks.at(status.st_dev), MiB(4));
  EXPECT_LT(measured.blocks.at(status.st_dev), MiB(5)) << "a little more where blocks are listed";
}

JobRecord ElasticJob(uint64_t id, uint32_t host_claim, uint32_t stores) {
  JobRecord job;
  job.job = JobId(id);
  job.chunk_size = MiB(2);
  job.shares = {Bytes(0), MiB(200), MiB(400)};
  job.guaranteed = {0, host_claim, 8};
  job.slots_per_region = job.slots_per_store = 10;
  for (uint32_t i = 0; i < stores; ++i) job.stores.push_back(StoreId(100 * id + i));
  return job;
}

TEST(PersistedStateTest, TheLeastPoolsHaveRoomForWhatIsUsedAndForFixedShares) {
  Restore restore;
  restore.job_records = {ElasticJob(1, 25, 3), ElasticJob(2, 2, 0)};
  for (uint32_t i = 0; i < 30; ++i) {
    ChunkRecord chunk;
    chunk.job = JobId(1);
    if (i % 2 == 0) chunk.host = ChunkRecord::Copy{i / 2, true};
    restore.chunk_records.push_back(chunk);
  }
  PersistedMemory measured;
  SetLeastPools(restore, &measured);
  EXPECT_TRUE(measured.device_pools.empty());
  EXPECT_EQ(measured.host_pool, MiB(2) * (15 + 2)) << "a copy each, and what the idle job may have";
  EXPECT_EQ(measured.ssd_pool, MiB(2) * (3 * 10 + kMinSlots)) << "whole stores";

  JobRecord fixed;
  fixed.job = JobId(3);
  fixed.chunk_size = MiB(2);
  fixed.device = 1;
  fixed.shares = {MiB(16), MiB(32), Bytes(0)};
  restore.job_records.push_back(fixed);
  SetLeastPools(restore, &measured);
  EXPECT_EQ(measured.device_pools, (std::vector<Bytes>{Bytes(), MiB(16)}));
  EXPECT_EQ(measured.host_pool, MiB(32) + MiB(2) * (25 + 2)) << "besides what the others claim";
}

}  // namespace
}  // namespace memtide
