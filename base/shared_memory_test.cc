#include "base/shared_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::HasSubstr;

int OpenDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST(SharedMemoryTest, FreshMemoryIsAlignedAndReadsAsZeros) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("test", MiB(6));
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->size(), MiB(6));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % MiB(2).count(), 0u);
  EXPECT_TRUE(std::all_of(memory->data(), memory->data() + memory->size().count(),
                          [](char c) { return c == 0; }));
}

TEST(SharedMemoryTest, EveryPageIsPopulatedAtCreation) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("test", MiB(4));
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::vector<unsigned char> resident(MiB(4).count() / getpagesize());
  ASSERT_EQ(mincore(memory->data(), MiB(4).count(), resident.data()), 0);
  EXPECT_TRUE(std::all_of(resident.begin(), resident.end(), [](auto page) { return page & 1; }));
}

int ResidentPages(const SharedMemory& memory) {
  std::vector<unsigned char> pages(memory.size().count() / getpagesize());
  EXPECT_EQ(mincore(memory.data(), memory.size().count(), pages.data()), 0);
  return static_cast<int>(
      std::count_if(pages.begin(), pages.end(), [](auto page) { return page & 1; }));
}

TEST(SharedMemoryTest, ARangeThatIsEmptiedGoesAndComesBackAsZeros) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("test", MiB(6));
  ASSERT_TRUE(memory.ok()) << memory.status();
  if (memory->huge_pages() == HugePages::kHugetlb) return;
  std::memset(memory->data(), 7, MiB(6).count());
  const int all = ResidentPages(*memory);
  ASSERT_EQ(memory->Empty(MiB(2), MiB(2)), absl::OkStatus());
  EXPECT_EQ(ResidentPages(*memory), all * 2 / 3);
  EXPECT_EQ(memory->data()[MiB(2).count() - 1], 7);
  EXPECT_EQ(memory->data()[MiB(4).count()], 7);
  ASSERT_EQ(memory->Fill(MiB(2), MiB(2)), absl::OkStatus());
  EXPECT_EQ(ResidentPages(*memory), all);
  EXPECT_TRUE(std::all_of(memory->data() + MiB(2).count(), memory->data() + MiB(4).count(),
                          [](char c) { return c == 0; }));
}

TEST(SharedMemoryTest, ItIsMadeInPieces) {
  SharedMemory::Maker maker("test", MiB(6));
  EXPECT_FALSE(maker.Populate(MiB(2)));
  EXPECT_FALSE(maker.Populate(MiB(2)));
  EXPECT_TRUE(maker.Populate(MiB(4)));
  const absl::StatusOr<SharedMemory> memory = maker.Take();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->size(), MiB(6));
  EXPECT_EQ(ResidentPages(*memory), static_cast<int>(MiB(6).count() / getpagesize()));
}

TEST(SharedMemoryTest, WhatCannotFitIsNotBegun) {
  const int before = OpenDescriptors();
  SharedMemory::Maker maker("test", GiB(uint64_t{1} << 20));
  EXPECT_TRUE(maker.Populate(MiB(2)));
  EXPECT_EQ(maker.Take().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(SharedMemoryTest, EmptiedWholeItHasNoPagesForOtherHoldersEither) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("test", MiB(4));
  ASSERT_TRUE(memory.ok()) << memory.status();
  const int duplicate = dup(memory->fd());
  char* other = static_cast<char*>(
      mmap(nullptr, MiB(4).count(), PROT_READ | PROT_WRITE, MAP_SHARED, duplicate, 0));
  ASSERT_NE(other, MAP_FAILED);
  std::memset(other, 7, MiB(4).count());
  ASSERT_EQ(memory->EmptyAll(), absl::OkStatus());
  struct stat status;
  ASSERT_EQ(fstat(duplicate, &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  EXPECT_EQ(other[MiB(3).count()], 0);
  munmap(other, MiB(4).count());
  close(duplicate);
}

TEST(SharedMemoryTest, NoHolderOfTheDescriptorCanResizeOrUnsealIt) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("test", MiB(2));
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(ftruncate(memory->fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(memory->fd(), MiB(4).count()), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(memory->fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedMemoryTest, IsPrivateToTheUserAndNotInherited) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("test", MiB(2));
  ASSERT_TRUE(memory.ok()) << memory.status();
  struct stat status;
  ASSERT_EQ(fstat(memory->fd(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ(fcntl(memory->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SharedMemoryTest, ADuplicateShowsTheSameBytesAndOutlivesTheOwner) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("test", MiB(2));
  ASSERT_TRUE(memory.ok()) << memory.status();
  const int duplicate = dup(memory->fd());
  char* other = static_cast<char*>(
      mmap(nullptr, MiB(2).count(), PROT_READ | PROT_WRITE, MAP_SHARED, duplicate, 0));
  ASSERT_NE(other, MAP_FAILED);
  memory->data()[12345] = 'x';
  EXPECT_EQ(other[12345], 'x');
  { SharedMemory gone = *std::move(memory); }
  EXPECT_EQ(other[12345], 'x');
  munmap(other, MiB(2).count());
  close(duplicate);
}

TEST(SharedMemoryTest, WhatCannotFitIsRefusedAndLeavesNothingBehind) {
  const int before = OpenDescriptors();
  for (const Bytes size : {GiB(uint64_t{1} << 20), Bytes((uint64_t{1} << 63) - MiB(2).count())}) {
    absl::StatusOr<SharedMemory> memory = SharedMemory::Create("absurd", size);
    EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted) << memory.status();
    EXPECT_THAT(memory.status().message(), HasSubstr(FormatBytes(size)));
    EXPECT_THAT(memory.status().message(), HasSubstr("take a smaller --host-pool"));
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(SharedMemoryTest, AFailureWithinLeavesNothingBehind) {
  const int before = OpenDescriptors();
  // The kernel's limit for a memfd's name is 249 bytes.
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create(std::string(300, 'n'), MiB(2));
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted) << memory.status();
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(SharedMemoryTest, ContentOutlivesTheOwnerThroughItsDescriptor) {
  const int before = OpenDescriptors();
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("first", MiB(4));
  ASSERT_TRUE(memory.ok());
  std::memcpy(memory->data() + MiB(3).count(), "content", sizeof("content"));
  const int descriptor = fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0);
  const int other = fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0);
  *memory = *SharedMemory::Create("second", MiB(2));
  {
    const absl::StatusOr<SharedMemory> again = SharedMemory::Adopt(descriptor, MiB(4));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_STREQ(again->data() + MiB(3).count(), "content");
    EXPECT_EQ(again->size(), MiB(4));
  }
  EXPECT_EQ(SharedMemory::Adopt(other, MiB(2)).status().code(), absl::StatusCode::kDataLoss);
  const int no_memory = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(SharedMemory::Adopt(no_memory, MiB(2)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(OpenDescriptors(), before + 1) << "that of the second";
}

TEST(SharedMemoryTest, GivesEverythingBackWhenDestroyed) {
  const int before = OpenDescriptors();
  {
    absl::StatusOr<SharedMemory> first = SharedMemory::Create("first", MiB(2));
    absl::StatusOr<SharedMemory> second = SharedMemory::Create("second", MiB(4));
    ASSERT_TRUE(first.ok() && second.ok());
    *first = *std::move(second);
    EXPECT_EQ(first->size(), MiB(4));
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(SharedMemoryTest, AdviceIsGivenExactlyWhenHugePagesAreMissing) {
  std::string advice;
  const HugePages available = AvailableHugePages(&advice);
  EXPECT_EQ(advice.empty(), available != HugePages::kNone) << advice;
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("test", MiB(2));
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->huge_pages(), available);
}

TEST(SharedMemoryDeathTest, ASizeThatIsNotAMultipleOfAHugePageIsABrokenInvariant) {
  EXPECT_DEATH(SharedMemory::Create("odd", KiB(4)).status().IgnoreError(), "IsMultipleOf");
  EXPECT_DEATH(SharedMemory::Create("none", Bytes(0)).status().IgnoreError(), "IsZero");
}

}  // namespace
}  // namespace memtide
