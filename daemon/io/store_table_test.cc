#include "daemon/io/store_table.h"

#include <fcntl.h>

#include <cstring>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "daemon/io/testing/scratch_directory.h"
#include "daemon/io/thread_disk.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Direction = DiskTransfer::Direction;

constexpr StoreId kTableStore(1);

class StoreTableTest : public testing::Test {
 protected:
  // Two directories, which a process has at a time.
  std::shared_ptr<StoreTable> Open() {
    std::vector<StoreDirectory> directories;
    for (const ScratchDirectory& scratch : scratch_) {
      directories.push_back(*StoreDirectory::Claim(scratch.path()));
    }
    return std::make_shared<StoreTable>(std::move(directories), std::vector<size_t>{0, 1});
  }
  static std::vector<OwnedFd> Duplicates(const StoreTable& stores) {
    std::vector<OwnedFd> files;
    for (const int fd : stores.Files(kTableStore))
      files.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    return files;
  }
  static void Move(Disk* disk, Direction direction, char* memory, Bytes size) {
    DiskTransfer transfer;
    transfer.direction = direction;
    transfer.store = kTableStore;
    transfer.size = size;
    transfer.memory = memory;
    std::promise<absl::Status> result;
    disk->Start(transfer, [&](absl::Status status) { result.set_value(std::move(status)); });
    EXPECT_EQ(result.get_future().get(), absl::OkStatus());
  }

  ScratchDirectory scratch_[2];
};

TEST_F(StoreTableTest, AnAdoptedStoreKeepsTheStripesThatItWasMadeWith) {
  constexpr Bytes kSize = MiB(64);
  const SharedMemory memory = *SharedMemory::Create("stripes", kSize);
  for (uint64_t page = 0; page < kSize / KiB(4); ++page) {
    std::memcpy(memory.data() + page * KiB(4).count(), &page, sizeof(page));
  }
  std::vector<OwnedFd> files, wrong;
  {
    const std::shared_ptr<StoreTable> stores = Open();
    stores->StripeFromNowOn({3, 1}, {3e9, 1e9});
    ThreadDisk disk(stores, {}, "a test");
    ASSERT_EQ(disk.MakeStore(kTableStore, kSize), absl::OkStatus());
    Move(&disk, Direction::kWrite, memory.data(), kSize);
    EXPECT_THAT(disk.StripesOf(kTableStore), ElementsAre(3, 1));
    files = Duplicates(*stores);
    wrong = Duplicates(*stores);
  }
  // The next process has measured other speeds.
  const std::shared_ptr<StoreTable> stores = Open();
  ThreadDisk disk(stores, {}, "a test");
  EXPECT_EQ(disk.AdoptStore(kTableStore, kSize, {1, 1}, std::move(wrong)).code(),
            absl::StatusCode::kDataLoss);
  ASSERT_EQ(disk.AdoptStore(kTableStore, kSize, {3, 1}, std::move(files)), absl::OkStatus());
  EXPECT_THAT(disk.StripesOf(kTableStore), ElementsAre(3, 1));
  std::memset(memory.data(), 0, kSize.count());
  Move(&disk, Direction::kRead, memory.data(), kSize);
  for (uint64_t page = 0; page < kSize / KiB(4); ++page) {
    uint64_t read = 0;
    std::memcpy(&read, memory.data() + page * KiB(4).count(), sizeof(read));
    ASSERT_EQ(read, page);
  }
  ASSERT_EQ(disk.MakeStore(StoreId(2), kSize), absl::OkStatus());
  EXPECT_THAT(disk.StripesOf(StoreId(2)), ElementsAre(1, 1));
}

TEST_F(StoreTableTest, StripesOfADamagedRecordAreRefused) {
  const std::shared_ptr<StoreTable> stores = Open();
  ASSERT_TRUE(stores->Make(kTableStore, MiB(64)).ok());
  for (const StripeCounts& counts :
       std::vector<StripeCounts>{{}, {1}, {0, 0}, {1, 1, 1}, {~0u, 2}}) {
    EXPECT_EQ(stores->Adopt(StoreId(2), MiB(64), counts, Duplicates(*stores)).code(),
              absl::StatusCode::kDataLoss);
  }
  EXPECT_TRUE(stores->Adopt(StoreId(2), MiB(64), {1, 1}, Duplicates(*stores)).ok());
}

TEST_F(StoreTableTest, ShowsTheSpeedAndTheStripesOfEachDirectory) {
  const std::shared_ptr<StoreTable> stores = Open();
  stores->StripeFromNowOn({3, 1}, {3e9, 0});
  const std::vector<DiskDirectory> directories = stores->Directories();
  ASSERT_EQ(directories.size(), 2u);
  EXPECT_EQ(directories[0].path, scratch_[0].path());
  EXPECT_EQ(directories[0].bytes_per_second, 3e9);
  EXPECT_EQ(directories[0].stripes, 3u);
  EXPECT_EQ(directories[1].bytes_per_second, 0);
  EXPECT_EQ(directories[1].stripes, 1u);
}

TEST(StoreTableDrivesTest, DirectoriesOfOneFileSystemAreOnOneDrive) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no second file system";
  ScratchDirectory first, second, other("/dev/shm");
  const auto stores = StoreTable::Open({first.path(), other.path(), second.path()});
  ASSERT_TRUE(stores.ok()) << stores.status();
  EXPECT_THAT((*stores)->drives(), ElementsAre(0, 1, 0));
  EXPECT_EQ((*stores)->drive_count(), 2u);
}

}  // namespace
}  // namespace memtide
