#include "daemon/recovery/journal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <utility>

namespace memtide {
namespace {

OwnedFd Duplicate(int fd) { return OwnedFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

JobRecord SomeJob(uint64_t id) {
  JobRecord job;
  job.job = JobId(id);
  job.uid = 1000;
  job.name = "job \xff" + std::to_string(id);
  job.chunk_size = MiB(2);
  job.time_to_live = std::chrono::hours(1);
  job.shares = {Bytes(0), MiB(64), MiB(128)};
  job.device_memory = MemoryKind::kCudaIpc;
  job.device = 3;
  job.regions = {RegionId(1), RegionId(5)};
  job.stores = {StoreId(2), StoreId(6)};
  job.store_stripes = {{3, 1}, {1, 1}};
  job.guaranteed = {0, 12, 64};
  job.slots_per_region = 16;
  job.slots_per_store = 64;
  job.committed_step = 7;
  job.manifest = std::string("a\0b", 3);
  job.ranks = {{7, "of rank 0"}, {8, std::string("\0", 1)}};
  return job;
}

ChunkRecord SomeChunk(uint32_t place, uint64_t version) {
  ChunkRecord chunk;
  chunk.chunk = ChunkId(uint64_t{3} << 32 | place);
  chunk.job = JobId(1);
  chunk.kind = ChunkKind::kParameter;
  chunk.version = Version(version);
  chunk.host = ChunkRecord::Copy{place, true};
  chunk.ssd = ChunkRecord::Copy{place + 1, false, {version, ~version}, true};
  chunk.torn = place % 2 == 1;
  chunk.names = {{chunk.chunk, 0}, {ChunkId(uint64_t{2} << 32 | 77), 1}};
  return chunk;
}

TEST(JournalTest, WhatOneProcessAppendedAnotherReads) {
  auto journal = Journal::Create();
  ASSERT_TRUE(journal.ok()) << journal.status();
  const JobRecord job = SomeJob(1);
  const ChunkRecord chunk = SomeChunk(9, 4);
  ASSERT_TRUE((*journal)->Append({{job, SomeJob(2)}, {}, {chunk, SomeChunk(10, 1)}, {}}).ok());
  ASSERT_TRUE((*journal)->Append({{}, {JobId(2)}, {}, {10}}).ok());
  OwnedFd fd = Duplicate((*journal)->fd());
  journal->reset();

  const auto next = Journal::Open(std::move(fd));
  ASSERT_TRUE(next.ok()) << next.status();
  const Restore contents = (*next)->Contents();
  ASSERT_EQ(contents.job_records.size(), 1u);
  const JobRecord& read = contents.job_records[0];
  EXPECT_EQ(read.job, job.job);
  EXPECT_EQ(read.uid, job.uid);
  EXPECT_EQ(read.name, job.name);
  EXPECT_EQ(read.chunk_size, job.chunk_size);
  EXPECT_EQ(read.time_to_live, job.time_to_live);
  EXPECT_EQ(read.shares, job.shares);
  EXPECT_EQ(read.device_memory, job.device_memory);
  EXPECT_EQ(read.device, job.device);
  EXPECT_EQ(read.regions, job.regions);
  EXPECT_EQ(read.stores, job.stores);
  EXPECT_EQ(read.store_stripes, job.store_stripes);
  EXPECT_EQ(read.guaranteed, job.guaranteed);
  EXPECT_EQ(read.slots_per_region, job.slots_per_region);
  EXPECT_EQ(read.slots_per_store, job.slots_per_store);
  EXPECT_EQ(read.committed_step, job.committed_step);
  EXPECT_EQ(read.manifest, job.manifest);
  ASSERT_EQ(read.ranks.size(), 2u);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(read.ranks[rank].committed_step, job.ranks[rank].committed_step);
    EXPECT_EQ(read.ranks[rank].manifest, job.ranks[rank].manifest);
  }
  ASSERT_EQ(contents.chunk_records.size(), 1u);
  const ChunkRecord& restored = contents.chunk_records[0];
  EXPECT_EQ(restored.chunk, chunk.chunk);
  EXPECT_EQ(restored.job, chunk.job);
  EXPECT_EQ(restored.kind, chunk.kind);
  EXPECT_EQ(restored.version, chunk.version);
  EXPECT_EQ(restored.torn, chunk.torn);
  ASSERT_TRUE(restored.host.has_value() && restored.ssd.has_value());
  EXPECT_EQ(restored.host->slot, 9u);
  EXPECT_TRUE(restored.host->valid);
  EXPECT_EQ(restored.ssd->slot, 10u);
  EXPECT_FALSE(restored.ssd->valid);
  EXPECT_TRUE(restored.host->sums.empty());
  EXPECT_EQ(restored.ssd->sums, chunk.ssd->sums);
  EXPECT_TRUE(restored.ssd->unflushed && !restored.host->unflushed);
  ASSERT_EQ(restored.names.size(), 2u);
  for (size_t name = 0; name < 2; ++name) {
    EXPECT_EQ(restored.names[name].id, chunk.names[name].id);
    EXPECT_EQ(restored.names[name].rank, name);
  }
}

TEST(JournalTest, ItsMemoryStaysBoundedHoweverLongItRuns) {
  auto journal = Journal::Create();
  ASSERT_TRUE(journal.ok());
  constexpr uint32_t kChunks = 1000;
  for (uint64_t round = 1; round <= 2000; ++round) {
    Record record;
    record.jobs = {SomeJob(1)};
    record.jobs[0].committed_step = round;
    for (uint32_t i = 0; i < kChunks; ++i) record.chunks.push_back(SomeChunk(i, round));
    ASSERT_TRUE((*journal)->Append(record).ok());
  }
  struct stat status;
  ASSERT_EQ(fstat((*journal)->fd(), &status), 0);
  EXPECT_LT(status.st_blocks * 512, 2 * Journal::kFewBytes.count());
  const auto next = Journal::Open(Duplicate((*journal)->fd()));
  ASSERT_TRUE(next.ok()) << next.status();
  const Restore contents = (*next)->Contents();
  EXPECT_EQ(contents.job_records[0].committed_step, 2000u);
  ASSERT_EQ(contents.chunk_records.size(), kChunks);
  for (const ChunkRecord& chunk : contents.chunk_records) EXPECT_EQ(chunk.version, Version(2000));
}

Bytes MemoryOf(const Journal& journal) {
  struct stat status;
  EXPECT_EQ(fstat(journal.fd(), &status), 0);
  return Bytes(static_cast<uint64_t>(status.st_blocks) * 512);
}

// The steps that the journal restores, by job.
std::map<JobId, uint64_t> StepsIn(int fd) {
  const auto journal = Journal::Open(Duplicate(fd));
  EXPECT_TRUE(journal.ok()) << journal.status();
  std::map<JobId, uint64_t> steps;
  if (!journal.ok()) return steps;
  for (const JobRecord& job : (*journal)->Contents().job_records) {
    steps[job.job] = job.committed_step;
  }
  return steps;
}

Record CommitOf(uint64_t job, uint64_t step, size_t manifest_bytes) {
  Record record;
  record.jobs = {SomeJob(job)};
  record.jobs[0].committed_step = step;
  record.jobs[0].manifest = std::string(manifest_bytes, 'm');
  return record;
}

TEST(JournalTest, NoAppendWritesOrFreesMuchHoweverLargeTheContentIs) {
  auto journal = Journal::Create();
  ASSERT_TRUE(journal.ok());
  constexpr uint64_t kJobs = 128;
  for (uint64_t id = 1; id <= kJobs; ++id) {
    ASSERT_TRUE((*journal)->Append(CommitOf(id, 1, 256 << 10)).ok());
  }
  Bytes before = MemoryOf(**journal), most = before, least = before;
  // More than four times the content.
  for (int i = 0; i < 12'000; ++i) {
    ASSERT_TRUE((*journal)->Append(CommitOf(kJobs + 1 + i % 8, i, 16 << 10)).ok());
    const Bytes after = MemoryOf(**journal);
    ASSERT_LE(after, before + MiB(1)) << i;
    ASSERT_LE(before, after + MiB(5)) << i;
    before = after;
    most = std::max(most, after);
    least = std::min(least, after);
  }
  EXPECT_LT(least + MiB(64), most) << "it was written anew, and the old half was freed";
  EXPECT_EQ(StepsIn((*journal)->fd()).size(), kJobs + 8);
}

// A process may end between any two of these.
TEST(JournalTest, TheContentIsWholeAfterEachRecordWhileItIsWrittenAnew) {
  auto journal = Journal::Create();
  ASSERT_TRUE(journal.ok());
  std::map<JobId, uint64_t> expected;
  std::mt19937 random(1);
  for (uint64_t step = 1; step <= 600; ++step) {
    const uint64_t id = 1 + random() % 24;
    Record record = CommitOf(id, step, random() % (100 << 10));
    if (random() % 4 == 0) {
      record.jobs.clear();
      record.ended = {JobId(id)};
      expected.erase(JobId(id));
    } else {
      expected[JobId(id)] = step;
    }
    ASSERT_TRUE((*journal)->Append(record).ok());
    ASSERT_EQ(StepsIn((*journal)->fd()), expected) << step;
  }
}

TEST(JournalTest, OneThatIsFullIsEmptyUntilItsContentFitsAgain) {
  auto journal = Journal::Create(MiB(8));
  ASSERT_TRUE(journal.ok());
  uint64_t id = 1;
  absl::Status status;
  for (; status.ok(); ++id) {
    ASSERT_LT(id, 100u);
    status = (*journal)->Append(CommitOf(id, 1, 512 << 10));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(StepsIn((*journal)->fd()).empty()) << "an old record could be wrong";
  EXPECT_TRUE((*journal)->Append(CommitOf(1, 2, 512 << 10)).ok()) << "it is said once";
  EXPECT_TRUE(StepsIn((*journal)->fd()).empty());
  // Others end, and the content is written with the records that follow.
  Record ended;
  for (uint64_t job = 2; job < id; ++job) ended.ended.push_back(JobId(job));
  ASSERT_TRUE((*journal)->Append(ended).ok());
  for (uint64_t step = 3; step < 20; ++step) {
    ASSERT_TRUE((*journal)->Append(CommitOf(1, step, 512 << 10)).ok());
  }
  EXPECT_EQ(StepsIn((*journal)->fd()), (std::map<JobId, uint64_t>{{JobId(1), 19}}));
  EXPECT_LT(MemoryOf(**journal), MiB(32));
  for (uint64_t job = 2; job < id; ++job) {
    status = (*journal)->Append(CommitOf(job, 1, 512 << 10));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << "it is said again";
}

// Killed at any moment, a process leaves whole records: each writes the same version everywhere.
TEST(JournalTest, EachRecordCountsAsAWholeWheneverTheProcessIsKilled) {
  for (int kill_number = 0; kill_number < 100; ++kill_number) {
    auto journal = Journal::Create();
    ASSERT_TRUE(journal.ok());
    int started[2];
    ASSERT_EQ(pipe(started), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (uint64_t round = 1;; ++round) {
        Record record;
        for (uint32_t i = 0; i < 200; ++i) record.chunks.push_back(SomeChunk(i, round));
        if (!(*journal)->Append(record).ok()) _exit(1);
        if (round == 1 && write(started[1], "x", 1) != 1) _exit(2);
      }
    }
    char byte;
    ASSERT_EQ(read(started[0], &byte, 1), 1);
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::microseconds(97) * kill_number;
    while (std::chrono::steady_clock::now() < until) {
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    close(started[0]);
    close(started[1]);
    const auto next = Journal::Open(Duplicate((*journal)->fd()));
    ASSERT_TRUE(next.ok()) << next.status();
    const Restore contents = (*next)->Contents();
    ASSERT_EQ(contents.chunk_records.size(), 200u);
    for (const ChunkRecord& chunk : contents.chunk_records) {
      ASSERT_EQ(chunk.version, contents.chunk_records[0].version);
    }
  }
}

// Turns a journal with one entry into that of an older version, whose entries have no sums.
void MakeOlder(int fd, uint64_t version) {
  uint32_t size = 0;
  ASSERT_EQ(pread(fd, &size, sizeof(size), 4096), 4);
  std::string entry(size, '\0');
  ASSERT_EQ(pread(fd, &entry[0], size, 4096 + 12), size);
  ASSERT_EQ(pwrite(fd, entry.data(), size, 4096 + 4), size);
  const uint64_t length = 4 + size;
  ASSERT_EQ(pwrite(fd, &length, sizeof(length), 16), 8);
  ASSERT_EQ(pwrite(fd, &version, sizeof(version), 8), 8);
}

class OlderJournalTest : public testing::TestWithParam<uint64_t> {};

TEST_P(OlderJournalTest, LacksStripesOrRanksAndIsOfThisVersionFromThenOn) {
  auto journal = Journal::Create();
  ASSERT_TRUE(journal.ok());
  JobRecord job = SomeJob(1);
  job.store_stripes.clear();
  job.ranks.clear();
  ChunkRecord chunk = SomeChunk(1, 1);
  chunk.names.clear();
  ASSERT_TRUE((*journal)->Append({{job}, {}, {chunk}, {}}).ok());
  const int fd = (*journal)->fd();
  MakeOlder(fd, GetParam());
  const auto next = Journal::Open(Duplicate(fd));
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_EQ((*next)->Contents().job_records.size(), 1u);
  EXPECT_TRUE((*next)->Contents().job_records[0].store_stripes.empty());
  EXPECT_TRUE((*next)->Contents().job_records[0].ranks.empty());
  EXPECT_TRUE((*next)->Contents().chunk_records[0].names.empty());
  uint64_t version = 0;
  ASSERT_EQ(pread(fd, &version, sizeof(version), 8), 8);
  EXPECT_EQ(version, 4u) << "an older daemon would read its records wrongly";
  ASSERT_TRUE((*next)->Append({{SomeJob(2)}, {}, {}, {}}).ok());
  const auto again = Journal::Open(Duplicate(fd));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->Contents().job_records.size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Versions, OlderJournalTest, testing::Values(1, 2, 3));

TEST(JournalTest, WhateverBitFlipsIsFoundAndNamed) {
  auto journal = Journal::Create();
  ASSERT_TRUE(journal.ok());
  ASSERT_TRUE((*journal)->Append({{SomeJob(1)}, {}, {SomeChunk(1, 1)}, {}}).ok());
  ASSERT_TRUE((*journal)->Append({{}, {}, {SomeChunk(2, 1)}, {1}}).ok());
  const int fd = (*journal)->fd();
  uint32_t length = 0;  // The lower half of the length word.
  ASSERT_EQ(pread(fd, &length, sizeof(length), 16), 4);
  const auto expect_found = [&](off_t at, const char* what) {
    uint8_t byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    for (int bit = 0; bit < 8; ++bit) {
      const uint8_t flipped = byte ^ static_cast<uint8_t>(1 << bit);
      ASSERT_EQ(pwrite(fd, &flipped, 1, at), 1);
      const absl::Status status = Journal::Open(Duplicate(fd)).status();
      EXPECT_FALSE(status.ok()) << "bit " << bit << " of byte " << at;
      EXPECT_NE(status.message().find(what), absl::string_view::npos) << status;
    }
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
  };
  for (off_t at = 0; at < 16; ++at) expect_found(at, "journal");
  for (off_t at = 16; at < 24; ++at) expect_found(at, "the journal's length is damaged");
  uint32_t first = 0;
  ASSERT_EQ(pread(fd, &first, sizeof(first), 4096), 4);
  for (off_t at = 4096; at < 4096 + length; ++at) {
    expect_found(at, at < 4096 + 12 + first ? "entry 0 of the journal" : "entry 1 of the journal");
  }
  EXPECT_TRUE(Journal::Open(Duplicate(fd)).ok()) << "every bit is as it was";
}

// No daemon has such numbers: the next one would be zero, or memory for all before it is too much.
TEST(JournalTest, NumbersThatNoDaemonCanHaveMadeAreDamage) {
  const auto is_refused = [](const Record& record) {
    auto journal = Journal::Create();
    EXPECT_TRUE((*journal)->Append(record).ok());
    return Journal::Open(Duplicate((*journal)->fd())).status().code() ==
           absl::StatusCode::kDataLoss;
  };
  EXPECT_FALSE(is_refused({{SomeJob(UINT64_MAX - 1)}, {}, {SomeChunk(1, 1)}, {}}));
  EXPECT_TRUE(is_refused({{SomeJob(UINT64_MAX)}, {}, {}, {}}));
  JobRecord region = SomeJob(1), store = SomeJob(1);
  region.regions.emplace_back(UINT32_MAX);
  store.stores.emplace_back(UINT32_MAX);
  EXPECT_TRUE(is_refused({{region}, {}, {}, {}}));
  EXPECT_TRUE(is_refused({{store}, {}, {}, {}}));
  EXPECT_TRUE(is_refused({{}, {}, {SomeChunk(UINT32_MAX, 1)}, {}}));
  ChunkRecord named = SomeChunk(1, 1);
  named.names = {{ChunkId(UINT32_MAX), 0}};
  EXPECT_TRUE(is_refused({{}, {}, {named}, {}}));
}

TEST(JournalTest, WhatIsNoJournalIsRefused) {
  OwnedFd other(memfd_create("other", MFD_CLOEXEC));
  EXPECT_EQ(Journal::Open(Duplicate(other.get())).status().code(), absl::StatusCode::kDataLoss);
  auto journal = Journal::Create();
  ASSERT_TRUE(journal.ok());
  struct stat status;
  ASSERT_EQ(fstat((*journal)->fd(), &status), 0);
  ASSERT_EQ(ftruncate(other.get(), status.st_size), 0);
  EXPECT_EQ(Journal::Open(Duplicate(other.get())).status().code(), absl::StatusCode::kDataLoss);
}

TEST(JournalTest, AnotherVersionAndDamageAreToldApart) {
  auto journal = Journal::Create();
  ASSERT_TRUE(journal.ok());
  ASSERT_TRUE((*journal)->Append({{SomeJob(1)}, {}, {SomeChunk(1, 1)}, {}}).ok());
  const int fd = (*journal)->fd();
  const uint64_t version = 99;
  ASSERT_EQ(pwrite(fd, &version, sizeof(version), 8), 8);
  EXPECT_EQ(Journal::Open(Duplicate(fd)).status().code(), absl::StatusCode::kFailedPrecondition);
  OwnedFd larger(memfd_create("larger", MFD_CLOEXEC));
  ASSERT_EQ(pwrite(larger.get(), "memtideJ", 8, 0), 8);
  ASSERT_EQ(pwrite(larger.get(), &version, sizeof(version), 8), 8);
  EXPECT_EQ(Journal::Open(Duplicate(larger.get())).status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "another version may have another size";
  const uint64_t this_version = 4;
  ASSERT_EQ(pwrite(fd, &this_version, sizeof(this_version), 8), 8);
  ASSERT_TRUE(Journal::Open(Duplicate(fd)).ok());
  // The size of the first entry, right behind the header's page.
  for (const uint32_t size : {0xFFFFFFFFu, 3u, 1u << 20}) {
    ASSERT_EQ(pwrite(fd, &size, sizeof(size), 4096), 4);
    EXPECT_EQ(Journal::Open(Duplicate(fd)).status().code(), absl::StatusCode::kDataLoss) << size;
  }
}

}  // namespace
}  // namespace memtide
