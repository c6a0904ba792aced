// The promises of every Disk, as a suite to be instantiated with a way of opening one.
#ifndef MEMTIDE_DAEMON_IO_TESTING_DISK_CONTRACT_H_
#define MEMTIDE_DAEMON_IO_TESTING_DISK_CONTRACT_H_

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "daemon/io/disk.h"
#include "daemon/io/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {

struct DiskContractParam {
  std::string name;
  size_t directories = 1;
  std::function<std::unique_ptr<Disk>(const std::vector<std::string>& directories)> open;
};

class DiskContract : public testing::TestWithParam<DiskContractParam> {
 protected:
  static constexpr DiskTransfer::Direction kRead = DiskTransfer::Direction::kRead;
  static constexpr DiskTransfer::Direction kWrite = DiskTransfer::Direction::kWrite;

  DiskContract() {
    std::vector<std::string> paths;
    for (size_t i = 0; i < GetParam().directories; ++i) {
      directories_.push_back(std::make_unique<ScratchDirectory>());
      paths.push_back(directories_.back()->path());
    }
    disk_ = GetParam().open(paths);
  }

  static SharedMemory Memory(Bytes size) {
    absl::StatusOr<SharedMemory> memory = SharedMemory::Create("disk-contract", size);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  // A word that tells its place and `seed` in every cache line.
  static void Fill(char* memory, Bytes size, uint64_t seed) {
    for (uint64_t line = 0; line < size.count() / 64; ++line) {
      const uint64_t word = (line + 1) * 0x9E3779B97F4A7C15 ^ seed;
      memcpy(memory + line * 64, &word, sizeof(word));
    }
  }
  std::future<absl::Status> Begin(DiskTransfer::Direction direction, StoreId store, Bytes offset,
                                  char* memory, Bytes size) {
    DiskTransfer transfer;
    transfer.direction = direction;
    transfer.store = store;
    transfer.offset = offset;
    transfer.size = size;
    transfer.memory = memory;
    auto result = std::make_shared<std::promise<absl::Status>>();
    disk_->Start(transfer, [result](absl::Status status) { result->set_value(std::move(status)); });
    return result->get_future();
  }
  absl::Status Move(DiskTransfer::Direction direction, StoreId store, Bytes offset, char* memory,
                    Bytes size) {
    return Begin(direction, store, offset, memory, size).get();
  }

  std::vector<std::unique_ptr<ScratchDirectory>> directories_;
  std::unique_ptr<Disk> disk_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DiskContract);

// While it lives, no file can grow beyond `size`. Binds privileged processes too.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(Bytes size) {
    handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = size.count();
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int);
};

TEST_P(DiskContract, SaysWhatItIs) {
  for (const auto& directory : directories_) {
    EXPECT_THAT(disk_->Describe(), testing::HasSubstr(directory->path()));
  }
}

TEST_P(DiskContract, WhatIsWrittenIsReadBack) {
  SharedMemory memory = Memory(MiB(64));
  disk_->AddBuffer(memory.data(), memory.size());
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(128)).ok());
  char* const copy = memory.data() + MiB(32).count();
  for (const Bytes size : {KiB(4), KiB(12), MiB(1), MiB(4), MiB(6), MiB(32)}) {
    for (const Bytes offset : {Bytes(0), KiB(4), MiB(4) - KiB(4), MiB(93)}) {
      Fill(memory.data(), size, size.count() + offset.count());
      ASSERT_EQ(Move(kWrite, StoreId(1), offset, memory.data(), size), absl::OkStatus());
      ASSERT_EQ(Move(kRead, StoreId(1), offset, copy, size), absl::OkStatus());
      EXPECT_EQ(memcmp(memory.data(), copy, size.count()), 0) << size << " at " << offset;
    }
  }
  disk_->RemoveBuffer(memory.data());
  disk_->DropStore(StoreId(1));
}

// As another process takes it up: by copies of the descriptors.
TEST_P(DiskContract, AStoreLivesOnInItsFiles) {
  SharedMemory memory = Memory(MiB(64));
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(30)).ok());
  Fill(memory.data(), MiB(30), 1);
  ASSERT_EQ(Move(kWrite, StoreId(1), Bytes(0), memory.data(), MiB(30)), absl::OkStatus());
  const auto duplicates = [this] {
    std::vector<OwnedFd> files;
    for (const int fd : disk_->Files(StoreId(1))) {
      files.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    }
    return files;
  };
  std::vector<OwnedFd> files = duplicates(), others = duplicates(), too_few = duplicates();
  too_few.pop_back();
  const StripeCounts stripes = disk_->StripesOf(StoreId(1));
  disk_.reset();
  std::vector<std::string> paths;
  for (const auto& directory : directories_) paths.push_back(directory->path());
  disk_ = GetParam().open(paths);
  const auto adopt = [&](uint32_t id, Bytes size, std::vector<OwnedFd> from) {
    return disk_->AdoptStore(StoreId(id), size, stripes, std::move(from)).code();
  };
  EXPECT_EQ(adopt(7, MiB(32), std::move(others)), absl::StatusCode::kDataLoss) << "another size";
  EXPECT_EQ(adopt(7, MiB(30), std::move(too_few)), absl::StatusCode::kDataLoss);
  ASSERT_EQ(adopt(7, MiB(30), std::move(files)), absl::StatusCode::kOk);
  char* const copy = memory.data() + MiB(32).count();
  ASSERT_EQ(Move(kRead, StoreId(7), Bytes(0), copy, MiB(30)), absl::OkStatus());
  EXPECT_EQ(memcmp(memory.data(), copy, MiB(30).count()), 0);
  EXPECT_EQ(disk_->StripesOf(StoreId(7)), stripes);
}

TEST_P(DiskContract, MemoryThatWasNeverAnnouncedWorks) {
  SharedMemory memory = Memory(MiB(16));
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(16)).ok());
  Fill(memory.data(), MiB(8), 1);
  ASSERT_EQ(Move(kWrite, StoreId(1), MiB(2), memory.data(), MiB(8)), absl::OkStatus());
  char* const copy = memory.data() + MiB(8).count();
  ASSERT_EQ(Move(kRead, StoreId(1), MiB(2), copy, MiB(8)), absl::OkStatus());
  EXPECT_EQ(memcmp(memory.data(), copy, MiB(8).count()), 0);
}

TEST_P(DiskContract, ABufferMayComeBackAtTheSameAddress) {
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(4)).ok());
  SharedMemory memory = Memory(MiB(4));
  for (int i = 0; i < 3; ++i) {
    disk_->AddBuffer(memory.data(), MiB(4));
    Fill(memory.data(), MiB(4), i);
    ASSERT_EQ(Move(kWrite, StoreId(1), Bytes(0), memory.data(), MiB(4)), absl::OkStatus());
    disk_->RemoveBuffer(memory.data());
  }
  memset(memory.data(), 0, MiB(4).count());
  ASSERT_EQ(Move(kRead, StoreId(1), Bytes(0), memory.data(), MiB(4)), absl::OkStatus());
  SharedMemory expected = Memory(MiB(4));
  Fill(expected.data(), MiB(4), 2);
  EXPECT_EQ(memcmp(memory.data(), expected.data(), MiB(4).count()), 0);
}

// Each thread works on slots of its own, many of them in flight, in a random order.
TEST_P(DiskContract, ManyTransfersOfSeveralThreadsDoNotMeet) {
  constexpr int kThreads = 4, kSlots = 8, kRounds = 2;
  const Bytes slot = MiB(2);
  SharedMemory memory = Memory(slot * (2 * kThreads * kSlots));
  disk_->AddBuffer(memory.data(), memory.size());
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), slot * (kThreads * kSlots)).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      for (int round = 0; round < kRounds; ++round) {
        std::vector<std::future<absl::Status>> pending;
        const auto at = [&](int s) { return memory.data() + slot.count() * (t * kSlots + s); };
        const auto copy_of = [&](int s) { return at(s) + slot.count() * (kThreads * kSlots); };
        std::vector<int> order(kSlots);
        for (int s = 0; s < kSlots; ++s) order[s] = s;
        std::shuffle(order.begin(), order.end(), random);
        for (const int s : order) {
          Fill(at(s), slot, random());
          pending.push_back(Begin(kWrite, StoreId(1), slot * (t * kSlots + s), at(s), slot));
        }
        for (auto& status : pending) EXPECT_EQ(status.get(), absl::OkStatus());
        pending.clear();
        std::shuffle(order.begin(), order.end(), random);
        for (const int s : order) {
          pending.push_back(Begin(kRead, StoreId(1), slot * (t * kSlots + s), copy_of(s), slot));
        }
        for (auto& status : pending) EXPECT_EQ(status.get(), absl::OkStatus());
        for (int s = 0; s < kSlots; ++s) EXPECT_EQ(memcmp(at(s), copy_of(s), slot.count()), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  disk_->RemoveBuffer(memory.data());
}

TEST_P(DiskContract, StoresDoNotShareBytes) {
  SharedMemory memory = Memory(MiB(4));
  for (const unsigned id : {1, 2}) {
    ASSERT_TRUE(disk_->MakeStore(StoreId(id), MiB(2)).ok());
    memset(memory.data(), id, MiB(2).count());
    ASSERT_EQ(Move(kWrite, StoreId(id), Bytes(0), memory.data(), MiB(2)), absl::OkStatus());
  }
  ASSERT_EQ(Move(kRead, StoreId(1), Bytes(0), memory.data(), MiB(2)), absl::OkStatus());
  EXPECT_EQ(memory.data()[MiB(1).count()], 1);
  disk_->DropStore(StoreId(1));
  ASSERT_EQ(Move(kRead, StoreId(2), Bytes(0), memory.data(), MiB(2)), absl::OkStatus());
  EXPECT_EQ(memory.data()[MiB(1).count()], 2);
}

TEST_P(DiskContract, AStoreThatDoesNotFitIsRefusedAndItsIdStaysFree) {
  const std::string& path = directories_[0]->path();
  struct statvfs disk;
  ASSERT_EQ(statvfs(path.c_str(), &disk), 0);
  const Bytes capacity = Bytes(disk.f_frsize) * disk.f_blocks;
  const absl::Status larger_than_the_disk =
      disk_->MakeStore(StoreId(1), RoundDown(capacity * 2, MiB(4)) * GetParam().directories);
  EXPECT_EQ(larger_than_the_disk.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(larger_than_the_disk.message(), testing::HasSubstr(path));
  {
    FileSizeLimit limit(MiB(2));
    const absl::Status larger_than_allowed = disk_->MakeStore(StoreId(1), MiB(32));
    EXPECT_EQ(larger_than_allowed.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(larger_than_allowed.message(), testing::HasSubstr("EFBIG"));
  }
  EXPECT_EQ(disk_->MakeStore(StoreId(1), MiB(32)), absl::OkStatus());
}

// The files are as long as the limit allows and no longer: the kernel moves what it can, and what
// it cannot is an error, of this transfer only.
TEST_P(DiskContract, AWriteThatTheSystemCutsShortIsAnErrorAndLeavesTheRestWorking) {
  SharedMemory memory = Memory(MiB(32));
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(32)).ok());
  {
    FileSizeLimit limit(MiB(2));
    const absl::Status status = Move(kWrite, StoreId(1), Bytes(0), memory.data(), MiB(32));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(status.message(), testing::HasSubstr("EFBIG"));
    EXPECT_EQ(Move(kWrite, StoreId(1), Bytes(0), memory.data(), MiB(2)), absl::OkStatus());
  }
  EXPECT_EQ(Move(kWrite, StoreId(1), Bytes(0), memory.data(), MiB(32)), absl::OkStatus());
}

TEST_P(DiskContract, TheDestructorWaitsForWhatIsInFlight) {
  SharedMemory memory = Memory(MiB(32));
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(32)).ok());
  std::atomic<int> done{0};
  for (int i = 0; i < 16; ++i) {
    DiskTransfer transfer;
    transfer.direction = kWrite;
    transfer.store = StoreId(1);
    transfer.offset = MiB(2 * i);
    transfer.size = MiB(2);
    transfer.memory = memory.data() + MiB(2 * i).count();
    disk_->Start(transfer, [&](absl::Status status) { done += status.ok() ? 1 : 0; });
  }
  disk_.reset();
  EXPECT_EQ(done, 16);
}

TEST_P(DiskContract, ADoneMayStartTheNextTransfer) {
  SharedMemory memory = Memory(MiB(2));
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(2)).ok());
  std::promise<absl::Status> result;
  DiskTransfer transfer;
  transfer.direction = kWrite;
  transfer.store = StoreId(1);
  transfer.size = MiB(2);
  transfer.memory = memory.data();
  disk_->Start(transfer, [&](absl::Status) {
    DiskTransfer next = transfer;
    next.direction = kRead;
    disk_->Start(next, [&](absl::Status status) { result.set_value(status); });
  });
  EXPECT_EQ(result.get_future().get(), absl::OkStatus());
}

TEST_P(DiskContract, ATransferOutsideItsStoreIsABrokenInvariant) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  SharedMemory memory = Memory(MiB(4));
  ASSERT_TRUE(disk_->MakeStore(StoreId(1), MiB(2)).ok());
  EXPECT_DEATH(Move(kRead, StoreId(1), MiB(1), memory.data(), MiB(2)).IgnoreError(), "store 1");
  EXPECT_DEATH(Move(kRead, StoreId(1), Bytes(512), memory.data(), KiB(4)).IgnoreError(), "store 1");
  EXPECT_DEATH(Move(kRead, StoreId(2), Bytes(0), memory.data(), KiB(4)).IgnoreError(), "store 2");
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_TESTING_DISK_CONTRACT_H_
