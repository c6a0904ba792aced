// The client over a FakeLender: real addresses, real faults, real eviction, no daemon.
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/fake_lender.h"

namespace memtide::client {
namespace {

constexpr size_t kChunkBytes = 2 << 20;

class ClientTest : public testing::Test {
 protected:
  void Open(uint32_t slots, uint32_t budget) {
    FakeLender::Options options;
    options.slots = slots;
    options.lease_budget = budget;
    auto lender = std::make_unique<FakeLender>(options);
    lender_ = lender.get();
    auto client = Client::OpenWith(std::move(lender), {});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = std::move(client).value();
  }
  PlaceRange Allocate(uint32_t count) {
    auto range = client_->Allocate(count, ChunkKind::kOther);
    EXPECT_TRUE(range.ok()) << range.status();
    return range.value();
  }
  uint64_t* Words(PlaceId place) { return reinterpret_cast<uint64_t*>(client_->address(place)); }
  LeaseStats stats() { return client_->stats().value(); }

  FakeLender* lender_ = nullptr;
  std::unique_ptr<Client> client_;
};

PlaceId Nth(PlaceRange range, uint32_t n) { return PlaceId(range.first.value() + n); }

TEST_F(ClientTest, NewChunksReadAsZeros) {
  Open(4, 3);
  const PlaceRange range = Allocate(8);
  for (uint32_t i = 0; i < range.count; ++i) {
    for (size_t word = 0; word < kChunkBytes / 8; word += 512) {
      ASSERT_EQ(Words(Nth(range, i))[word], 0u);
    }
  }
  EXPECT_EQ(stats().faults, 8u);
}

TEST_F(ClientTest, TouchedChunksKeepTheirBytesThroughEviction) {
  Open(4, 3);
  const PlaceRange range = Allocate(16);
  for (uint32_t i = 0; i < 16; ++i) memset(Words(Nth(range, i)), int(i + 1), kChunkBytes);
  for (uint32_t i = 0; i < 16; ++i) {
    const char* bytes = client_->address(Nth(range, i));
    for (size_t at = 0; at < kChunkBytes; at += 4096) ASSERT_EQ(bytes[at], char(i + 1)) << i;
    ASSERT_EQ(bytes[kChunkBytes - 1], char(i + 1));
  }
  EXPECT_GE(lender_->counts().evictions, 12u);
  EXPECT_LE(stats().leases_held, 3u);
}

TEST_F(ClientTest, AWriteToAReadLeaseUpgradesIt) {
  Open(4, 3);
  const PlaceRange range = Allocate(4);
  ASSERT_TRUE(client_->Acquire({range.first}, Access::kRead).ok());
  Words(range.first)[7] = 42;
  EXPECT_EQ(stats().upgrades, 1u);
  ASSERT_TRUE(client_->Release({range.first}).ok());
  ASSERT_TRUE(client_->Flush().ok());
  EXPECT_EQ(Words(range.first)[7], 42u);
}

TEST_F(ClientTest, AcquiringHeldLeasesMakesNoCall) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  ASSERT_TRUE(client_->Acquire({range.first}, Access::kWrite).ok());
  ASSERT_TRUE(client_->Release({range.first}).ok());
  const uint64_t calls = stats().calls;
  ASSERT_TRUE(client_->Acquire({range.first}, Access::kRead).ok());
  EXPECT_EQ(stats().calls, calls);
  EXPECT_EQ(stats().acquire_hits, 1u);
  ASSERT_TRUE(client_->Release({range.first}).ok());
}

TEST_F(ClientTest, UsesAreToldWithTheNextFetchHitsToo) {
  Open(4, 3);
  const PlaceRange range = Allocate(3);
  const auto use = [&](uint32_t n, Access access) {
    ASSERT_TRUE(client_->Use({Nth(range, n)}, access).ok());
  };
  const auto begin = [&](const std::string& name) {
    Moment moment;
    moment.name = name;
    ASSERT_TRUE(client_->BeginMoment(moment).ok());
  };
  use(0, Access::kRead);  // Before the first moment: not noted.
  begin("one");
  use(0, Access::kRead);
  begin("two");
  use(0, Access::kRead);
  EXPECT_TRUE(lender_->moments().empty());
  use(1, Access::kWrite);
  ASSERT_TRUE(client_->EndIteration().ok());
  ASSERT_EQ(lender_->moments().size(), 2u);
  EXPECT_EQ(lender_->moments()[0].name, "one");
  EXPECT_EQ(lender_->moments()[1].uses.size(), 2u);
  EXPECT_EQ(lender_->moments()[1].uses[1].access, Access::kWrite);
  use(2, Access::kRead);
  ASSERT_EQ(lender_->moments().size(), 4u);
  EXPECT_TRUE(lender_->moments()[2].ends_iteration);
}

TEST_F(ClientTest, ManyMomentsWithoutAFetchAreTold) {
  Open(4, 3);
  const PlaceRange range = Allocate(1);
  for (size_t i = 0; i <= UseLog::kReportAfter + 1; ++i) {
    ASSERT_TRUE(client_->BeginMoment(Moment()).ok());
    ASSERT_TRUE(client_->Use({range.first}, Access::kRead).ok());
  }
  EXPECT_GT(lender_->moments().size(), UseLog::kReportAfter);
}

TEST_F(ClientTest, MoreThanTheBudgetIsRefusedWithAdvice) {
  Open(4, 3);
  const PlaceRange range = Allocate(4);
  const absl::Status status =
      client_->Acquire({Nth(range, 0), Nth(range, 1), Nth(range, 2), Nth(range, 3)}, Access::kRead);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(std::string(status.message()).find("lease_budget"), std::string::npos);
}

TEST_F(ClientTest, FreeingAChunkInUseIsRefused) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  {
    auto use = client_->Use({range.first}, Access::kWrite);
    ASSERT_TRUE(use.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(client_->Free(range)));
  }
  EXPECT_TRUE(client_->Free(range).ok());
  EXPECT_EQ(lender_->counts().leases, 0u);
  EXPECT_EQ(stats().chunks, 0u);
}

TEST_F(ClientTest, FreedPlacesAreUsedAgainAndReadAsZeros) {
  Open(4, 3);
  const PlaceRange first = Allocate(3);
  memset(Words(first.first), 0xFF, kChunkBytes);
  ASSERT_TRUE(client_->Free(first).ok());
  const PlaceRange second = Allocate(3);
  EXPECT_EQ(second.first, first.first);
  EXPECT_EQ(Words(second.first)[100], 0u);
}

TEST_F(ClientTest, ARefusedFetchLeavesNothingLeased) {
  Open(4, 2);
  const PlaceRange range = Allocate(4);
  ASSERT_TRUE(client_->Acquire({Nth(range, 0), Nth(range, 1)}, Access::kWrite).ok());
  ASSERT_TRUE(client_->Release({Nth(range, 0), Nth(range, 1)}).ok());
  lender_->FailNextFetch(absl::DataLossError("the disk is gone"));
  EXPECT_TRUE(absl::IsDataLoss(client_->Acquire({Nth(range, 2), Nth(range, 3)}, Access::kRead)));
  EXPECT_EQ(lender_->counts().leases, stats().leases_held);
  EXPECT_TRUE(client_->Acquire({Nth(range, 2), Nth(range, 3)}, Access::kRead).ok());
}

TEST_F(ClientTest, RevokedLeasesAreGivenBackAsUsesEnd) {
  Open(6, 5);
  const PlaceRange range = Allocate(4);
  const std::vector<PlaceId> all = {Nth(range, 0), Nth(range, 1), Nth(range, 2), Nth(range, 3)};
  ASSERT_TRUE(client_->Acquire(all, Access::kWrite).ok());
  ASSERT_TRUE(client_->Release({all[0], all[1]}).ok());
  lender_->Revoke({{}, 3});
  lender_->WaitForLeases(2);
  ASSERT_TRUE(client_->Release({all[2], all[3]}).ok());
  lender_->WaitForLeases(1);
}

TEST_F(ClientTest, EvictSkipsWhatIsInUse) {
  Open(6, 5);
  const PlaceRange range = Allocate(2);
  Words(Nth(range, 0))[0] = 1;
  ASSERT_TRUE(client_->Acquire({Nth(range, 1)}, Access::kWrite).ok());
  ASSERT_TRUE(client_->Evict({Nth(range, 0), Nth(range, 1)}).ok());
  EXPECT_EQ(lender_->counts().leases, 1u);
  EXPECT_EQ(lender_->counts().evictions, 1u);
  EXPECT_EQ(Words(Nth(range, 0))[0], 1u);
}

TEST_F(ClientTest, NoWaitIsRefusedWhereOthersHoldAllSlots) {
  Open(4, 3);
  const PlaceRange range = Allocate(6);
  ASSERT_TRUE(client_->Acquire({Nth(range, 0), Nth(range, 1)}, Access::kRead).ok());
  ASSERT_TRUE(client_->Acquire({Nth(range, 2), Nth(range, 3)}, Access::kRead).ok());
  EXPECT_TRUE(
      absl::IsUnavailable(client_->Acquire({Nth(range, 4)}, Access::kRead, Duration::zero())));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      client_->Acquire({Nth(range, 4)}, Access::kRead, std::chrono::milliseconds(10))));
}

TEST_F(ClientTest, SystemCallsMayTouchUnmappedChunks) {
  Open(4, 3);
  if (!client_->properties().kernel_faults) GTEST_SKIP() << "no privilege for kernel faults";
  const PlaceRange range = Allocate(2);
  memset(client_->address(range.first), 0x5A, kChunkBytes);
  ASSERT_TRUE(client_->Flush().ok());
  const int file = memfd_create("out", MFD_CLOEXEC);
  ASSERT_EQ(write(file, client_->address(range.first), kChunkBytes), ssize_t(kChunkBytes));
  ASSERT_TRUE(client_->Flush().ok());
  ASSERT_EQ(pread(file, client_->address(Nth(range, 1)), kChunkBytes, 0), ssize_t(kChunkBytes));
  EXPECT_EQ(memcmp(client_->address(range.first), client_->address(Nth(range, 1)), kChunkBytes), 0);
  close(file);
}

// A system call that found the place between mapped and watched failed with EFAULT.
TEST_F(ClientTest, SystemCallsNeverMissAChunkThatIsGivenBack) {
  Open(4, 3);
  if (!client_->properties().kernel_faults) GTEST_SKIP() << "no privilege for kernel faults";
  const PlaceRange range = Allocate(1);
  memset(client_->address(range.first), 0x5A, kChunkBytes);
  std::atomic<bool> done{false};
  std::thread giver([&] {
    while (!done.load()) EXPECT_TRUE(client_->Flush().ok());
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

TEST_F(ClientTest, CallsFailAfterTheLossAndMappedBytesStay) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  Words(range.first)[0] = 77;
  lender_->EndSession(absl::UnavailableError("the memtide daemon ended"));
  EXPECT_TRUE(absl::IsUnavailable(client_->Acquire({Nth(range, 1)}, Access::kRead)));
  EXPECT_TRUE(absl::IsUnavailable(client_->Allocate(1, ChunkKind::kOther).status()));
  EXPECT_EQ(Words(range.first)[0], 77u);
}

// --- Many threads ---

// Every chunk holds its writer's counter in each of its pages; a lock per chunk orders the writers,
// the client does all else.
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
        // Sometimes for reading, although it will be written.
        const Access access = write && random() % 2 == 0 ? Access::kWrite : Access::kRead;
        if (!client->Acquire({place}, access).ok()) ++wrong;
      }
      auto* bytes = client->address(place);
      for (size_t at = 0; at < kChunkBytes; at += 4096) {
        auto* word = reinterpret_cast<volatile uint64_t*>(bytes + at);
        if (*word != expected[n]) ++wrong;
        if (write) *word = expected[n] + 1;
      }
      if (write) ++expected[n];
      if (acquire && !client->Release({place}).ok()) ++wrong;
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
  EXPECT_GT(lender_->counts().evictions, 50u);
  ASSERT_TRUE(client_->Flush().ok());
  lender_->WaitForLeases(0);
}

INSTANTIATE_TEST_SUITE_P(Threads, HammerTest, testing::Values(1, 2, 4, 8));

TEST_F(ClientTest, OverlappingBatchesDoNotDeadlock) {
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
      if (!client_->Acquire(places, random() % 2 == 0 ? Access::kRead : Access::kWrite).ok()) {
        ++failed;
        continue;
      }
      if (!client_->Release(places).ok()) ++failed;
    }
  };
  std::thread a(work, 1), b(work, 2), c(work, 3);
  a.join();
  b.join();
  c.join();
  EXPECT_EQ(failed.load(), 0);
}

// --- Processes ---

TEST_F(ClientTest, AForkedChildIsRefused) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  Words(range.first)[0] = 5;
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        absl::IsFailedPrecondition(client_->Acquire({range.first}, Access::kRead)) &&
        client_->Free(range).ok();
    client_.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(Words(range.first)[0], 5u);
}

using ClientDeathTest = ClientTest;

TEST_F(ClientDeathTest, AForkedChildHasNoMemoryThere) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  Words(range.first)[0] = 5;
  const pid_t child = fork();
  if (child == 0) {
    // Without it, a sanitizer's own handler answers.
    signal(SIGSEGV, SIG_DFL);
    ASSERT_TRUE(InstallSegvHandler().ok());
    _exit(static_cast<int>(*static_cast<volatile uint64_t*>(Words(range.first))));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
}

TEST_F(ClientDeathTest, ATouchThatCannotBeAnsweredEndsTheProcessWithTheReason) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Open(4, 3);
        const PlaceRange range = Allocate(2);
        lender_->FailNextFetch(absl::DataLossError("chunk 1 was torn"));
        static_cast<volatile char*>(client_->address(range.first))[0] = 1;
      },
      "memtide: the chunk at .* was written and cannot be had: DATA_LOSS: chunk 1 was torn");
}

TEST_F(ClientDeathTest, AFreedPlaceIsTheProgramsOwnFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        signal(SIGSEGV, SIG_DFL);
        Open(4, 3);
        const PlaceRange range = Allocate(2);
        ASSERT_TRUE(client_->Free(range).ok());
        static_cast<volatile char*>(client_->address(range.first))[0] = 1;
      },
      testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(ClientTest, ARegionThatIsGoneIsReturnedAndTheBudgetShrinks) {
  Open(8, 6);
  lender_->LendRegion(RegionId(7));
  const PlaceRange range = Allocate(6);
  for (uint32_t i = 0; i < 6; ++i) Words(Nth(range, i))[0] = i;
  lender_->TakeRegionAway(RegionId(7), {4, 2});
  lender_->WaitForReturn(RegionId(7));
  const auto three = {Nth(range, 0), Nth(range, 1), Nth(range, 2)};
  EXPECT_EQ(client_->Acquire(three, Access::kRead).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(client_->Acquire({Nth(range, 0), Nth(range, 1)}, Access::kRead).ok());
  EXPECT_EQ(Words(Nth(range, 1))[0], 1u);
}

TEST_F(ClientTest, OnlySpansOfItsOwnRangeAreWrapped) {
  Open(4, 3);
  const auto base = reinterpret_cast<uint64_t>(client_->properties().base);
  const uint64_t size = client_->properties().places * kChunkBytes;
  const absl::StatusOr<void*> whole = client_->Wrap({base, size});
  ASSERT_TRUE(whole.ok()) << whole.status();
  // The deleter is DLManagedTensor's last field.
  reinterpret_cast<void (**)(void*)>(*whole)[7](*whole);
  Span returned;
  EXPECT_EQ(client_->TakeReturned(&returned, 1), 1u);
  EXPECT_EQ(returned.size_bytes, size);
  for (const Span& span : {Span{base - 1, 1}, Span{base, size + 1}, Span{base + size, 1},
                           Span{base + 8, UINT64_MAX}, Span{0, 8}}) {
    EXPECT_EQ(client_->Wrap(span).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace memtide::client
