#include "daemon/recovery/saved_jobs.h"

#include <string>

#include "daemon/io/snapshot_files.h"
#include "daemon/io/testing/scratch_directory.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

Snapshot SomeSnapshot() {
  Snapshot snapshot;
  JobRecord& job = snapshot.job;
  job.job = JobId(5);
  job.uid = 1000;
  job.name = "gpt";
  job.chunk_size = MiB(2);
  job.time_to_live = std::chrono::hours(24);
  job.shares = {Bytes(0), MiB(32), MiB(128)};
  job.stores = {StoreId(7)};
  job.store_stripes = {{1}};
  job.slots_per_region = 16;
  job.slots_per_store = 64;
  job.committed_step = 12;
  job.manifest = "step 12";
  job.durable_every = 3;
  for (uint64_t i = 0; i < 3; ++i) {
    ChunkRecord chunk;
    chunk.chunk = ChunkId(uint64_t{1} << 32 | i);
    chunk.job = job.job;
    chunk.version = Version(9);
    chunk.ssd = ChunkRecord::Copy{static_cast<uint32_t>(i), i != 2, {}};
    if (i != 2) chunk.ssd->sums = {11, 12};
    chunk.torn = i == 2;
    snapshot.chunks.push_back(chunk);
  }
  return snapshot;
}

TEST(SavedJobsTest, ASnapshotIsReadAsItWasWritten) {
  const absl::StatusOr<Snapshot> read = DecodeSnapshot(EncodeSnapshot(SomeSnapshot()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->job.name, "gpt");
  EXPECT_EQ(read->job.durable_every, 3u);
  EXPECT_EQ(read->job.committed_step, 12u);
  EXPECT_EQ(read->job.manifest, "step 12");
  ASSERT_EQ(read->chunks.size(), 3u);
  EXPECT_EQ(read->chunks[1].ssd->sums, (ContentSums{11, 12}));
  EXPECT_TRUE(read->chunks[2].torn && !read->chunks[2].ssd->valid);
}

TEST(SavedJobsTest, RanksAndTheirNamesAreReadAsTheyWereWritten) {
  Snapshot snapshot = SomeSnapshot();
  snapshot.job.ranks = {{12, "rank 0"}, {12, "rank 1"}};
  snapshot.chunks[1].names = {{ChunkId(3), 0}, {ChunkId(4), 1}};
  const absl::StatusOr<Snapshot> read = DecodeSnapshot(EncodeSnapshot(snapshot));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->job.ranks.size(), 2u);
  EXPECT_EQ(read->job.ranks[1].committed_step, 12u);
  EXPECT_EQ(read->job.ranks[1].manifest, "rank 1");
  ASSERT_EQ(read->chunks[1].names.size(), 2u);
  EXPECT_EQ(read->chunks[1].names[1].id, ChunkId(4));
  EXPECT_EQ(read->chunks[1].names[1].rank, 1u);
}

TEST(SavedJobsTest, EachBitThatFlipsAndEachByteThatIsMissingIsSeen) {
  const std::string text = EncodeSnapshot(SomeSnapshot());
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      ASSERT_FALSE(DecodeSnapshot(damaged).ok()) << i << ", bit " << bit;
    }
    ASSERT_FALSE(DecodeSnapshot(text.substr(0, i)).ok()) << i;
  }
}

TEST(SavedJobsTest, AnotherVersionIsSaid) {
  std::string text = EncodeSnapshot(SomeSnapshot());
  text[text.find('1')] = '2';
  EXPECT_EQ(DecodeSnapshot(text).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SavedJobsTest, RecordsThatNoDaemonWritesAreRefused) {
  const auto is_refused = [](void (*change)(Snapshot*)) {
    Snapshot snapshot = SomeSnapshot();
    change(&snapshot);
    return DecodeSnapshot(EncodeSnapshot(snapshot)).status().code() == absl::StatusCode::kDataLoss;
  };
  EXPECT_FALSE(is_refused([](Snapshot* all) { all->chunks.pop_back(); }));
  EXPECT_TRUE(is_refused([](Snapshot* two) { two->chunks[1].chunk = two->chunks[0].chunk; }));
  EXPECT_TRUE(is_refused([](Snapshot* other) { other->chunks[1].job = JobId(6); }));
  EXPECT_TRUE(is_refused([](Snapshot* host) { host->chunks[1].host = ChunkRecord::Copy{}; }));
  EXPECT_TRUE(is_refused([](Snapshot* region) { region->job.regions = {RegionId(1)}; }));
  EXPECT_TRUE(is_refused([](Snapshot* none) { none->job.durable_every = 0; }));
}

TEST(SavedJobsTest, WhatCannotBeReadKeepsItsNumbersAndTheOthersAreRead) {
  const ScratchDirectory directory;
  const std::vector<std::string> directories = {directory.path()};
  ASSERT_TRUE(SaveSnapshotFile(directories, JobId(5), {}, EncodeSnapshot(SomeSnapshot())).ok());
  ASSERT_TRUE(SaveSnapshotFile(directories, JobId(8), {}, EncodeSnapshot(SomeSnapshot())).ok());
  ASSERT_TRUE(SaveSnapshotFile(directories, JobId(9), {}, "rubbish").ok());
  const SavedJobs saved = LoadSavedJobs(directories).value();
  ASSERT_EQ(saved.jobs.size(), 1u);
  EXPECT_EQ(saved.jobs[0].snapshot.job.job, JobId(5));
  ASSERT_EQ(saved.unreadable.size(), 2u);
  EXPECT_EQ(saved.unreadable[0].message(),
            directory.path() + "/.memtide-snapshot-8 is damaged: it is of job 5");
  EXPECT_EQ(
      saved.unreadable[1].message(),
      directory.path() + "/.memtide-snapshot-9 is damaged: it does not begin as snapshots do");
  EXPECT_EQ(saved.last_job, 9u);
}

}  // namespace
}  // namespace memtide
