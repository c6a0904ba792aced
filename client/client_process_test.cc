// A client in a whole process: system calls, threads, forks, and signals that end it.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/memory/segv_handler.h"
#include "client/testing/client_fixture.h"

namespace memtide::client {
namespace {

using ClientProcessTest = ClientTest;

// --- System calls ---

TEST_F(ClientProcessTest, SystemCallsMayAccessUnmappedChunks) {
  Open(4, 3);
  if (!client_->properties().kernel_faults) GTEST_SKIP() << "no privilege for kernel faults";
  const PlaceRange range = Allocate(2);
  memset(client_->address(range.first), 0x5A, kChunkBytes);
  ASSERT_TRUE(client_->leases()->Flush().ok());
  const int file = memfd_create("out", MFD_CLOEXEC);
  ASSERT_EQ(write(file, client_->address(range.first), kChunkBytes), ssize_t(kChunkBytes));
  ASSERT_TRUE(client_->leases()->Flush().ok());
  ASSERT_EQ(pread(file, client_->address(Nth(range, 1)), kChunkBytes, 0), ssize_t(kChunkBytes));
  EXPECT_EQ(memcmp(client_->address(range.first), client_->address(Nth(range, 1)), kChunkBytes), 0);
  close(file);
}

// A system call that finds the place unmapped and not yet registered would fail with EFAULT.
TEST_F(ClientProcessTest, SystemCallsNeverMissAChunkThatIsGivenBack) {
  Open(4, 3);
  if (!client_->properties().kernel_faults) GTEST_SKIP() << "no privilege for kernel faults";
  const PlaceRange range = Allocate(1);
  memset(client_->address(range.first), 0x5A, kChunkBytes);
  std::atomic<bool> done{false};
  std::thread giver([&] {
    while (!done.load()) EXPECT_TRUE(client_->leases()->Flush().ok());
  });
  const int file = memfd_create("out", MFD_CLOEXEC);
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(pwrite(file, client_->address(range.first), kChunkBytes, 0), ssize_t(kChunkBytes))
        << strerror(errno);
  }
  done.store(true);
  giver.join();
  close(file);
  EXPECT_GT(stats().faults, 1u);
}

// --- Many threads ---

// Each page of a chunk holds a counter. A lock per chunk orders its accesses in the test;
// everything else is up to the client.
void Hammer(Client* client, PlaceRange range, int threads, int rounds, uint64_t seed) {
  std::vector<Mutex> locks(range.count);
  std::vector<uint64_t> expected(range.count, 0);
  std::atomic<int> wrong{0};
  auto work = [&](int worker) {
    std::mt19937_64 random(seed + worker);
    for (int round = 0; round < rounds; ++round) {
      const uint32_t n = random() % range.count;
      const PlaceId place = Nth(range, n);
      const bool write = random() % 2 == 0;
      const bool acquire = random() % 2 == 0;
      const MutexLock lock(&locks[n]);
      if (acquire) {
        // Sometimes acquires for reading what it then writes, which faults.
        const Access access = write && random() % 2 == 0 ? Access::kWrite : Access::kRead;
        if (!client->leases()->Acquire({place}, access).ok()) ++wrong;
      }
      auto* bytes = client->address(place);
      for (size_t at = 0; at < kChunkBytes; at += 4096) {
        auto* word = reinterpret_cast<volatile uint64_t*>(bytes + at);
        if (*word != expected[n]) ++wrong;
        if (write) *word = expected[n] + 1;
      }
      if (write) ++expected[n];
      if (acquire && !client->leases()->EndUse({place}).ok()) ++wrong;
    }
  };
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) pool.emplace_back(work, i);
  for (std::thread& thread : pool) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

class HammerTest : public ClientTest, public testing::WithParamInterface<int> {};

TEST_P(HammerTest, BytesSurviveRandomAccessByThreads) {
  const int threads = GetParam();
  Open(threads + 3, threads + 2);
  const PlaceRange range = Allocate(24);
  Hammer(client_.get(), range, threads, 600 / threads, 7);
  EXPECT_GT(session_->counts().evictions, 50u);
  ASSERT_TRUE(client_->leases()->Flush().ok());
  session_->WaitForLeases(0);
}

INSTANTIATE_TEST_SUITE_P(Threads, HammerTest, testing::Values(1, 2, 4, 8));

TEST_F(ClientProcessTest, OverlappingBatchesDoNotDeadlock) {
  Open(6, 5);
  const PlaceRange range = Allocate(12);
  std::atomic<int> failed{0};
  auto work = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int round = 0; round < 200; ++round) {
      std::vector<PlaceId> places;
      const uint32_t first = random() % 10;
      places = {Nth(range, first + 1), Nth(range, first)};
      if (random() % 2 == 0) std::swap(places[0], places[1]);
      if (!client_->leases()
               ->Acquire(places, random() % 2 == 0 ? Access::kRead : Access::kWrite)
               .ok()) {
        ++failed;
        continue;
      }
      if (!client_->leases()->EndUse(places).ok()) ++failed;
    }
  };
  std::thread a(work, 1), b(work, 2), c(work, 3);
  a.join();
  b.join();
  c.join();
  EXPECT_EQ(failed.load(), 0);
}

// --- Processes ---

using ClientDeathTest = ClientTest;

TEST_F(ClientDeathTest, AForkedChildHasNoMemoryThere) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  Words(range.first)[0] = 5;
  const pid_t child = fork();
  if (child == 0) {
    // A sanitizer's handler would otherwise handle the fault.
    signal(SIGSEGV, SIG_DFL);
    ASSERT_TRUE(InstallSegvHandler().ok());
    _exit(static_cast<int>(*static_cast<volatile uint64_t*>(Words(range.first))));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
}

TEST_F(ClientDeathTest, AForkedChildMayHaveAClientOfItsOwn) {
  const pid_t child = fork();
  if (child == 0) {
    Open(4, 3);
    const PlaceRange range = Allocate(1);
    const bool leased = client_->leases()->Acquire({range.first}, Access::kRead).ok();
    Words(range.first)[0] = 5;  // A lease for reading is upgraded by a signal.
    _exit(leased && stats().upgrades == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(ClientDeathTest, AFaultThatCannotBeHandledEndsTheProcessWithTheReason) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Open(4, 3);
        const PlaceRange range = Allocate(2);
        session_->FailNextFetch(absl::DataLossError("chunk 1 was torn"));
        static_cast<volatile char*>(client_->address(range.first))[0] = 1;
      },
      "memtide: the chunk at .* was written and cannot be fetched: DATA_LOSS: chunk 1 was torn");
}

// Once it was fetched again and again.
TEST_F(ClientDeathTest, AFaultInAChunkThatTheDaemonDoesNotKnowEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Open(4, 3);
        const PlaceRange range = Allocate(2);
        session_->FailNextFetch(absl::NotFoundError("there is no chunk 1"));
        static_cast<volatile char*>(client_->address(range.first))[0] = 1;
      },
      "cannot be fetched: NOT_FOUND: there is no chunk 1");
}

TEST_F(ClientDeathTest, AnAccessToAFreedPlaceIsASegmentationFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_DFL);
        Open(4, 3);
        const PlaceRange range = Allocate(2);
        ASSERT_TRUE(client_->leases()->Free(range).ok());
        static_cast<volatile char*>(client_->address(range.first))[0] = 1;
      },
      testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace memtide::client
