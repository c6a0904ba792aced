#include "daemon/io/store_table.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "daemon/io/snapshot_files.h"
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

// Restarts of a machine whose directories are given in any order and number, and whose drives are
// mounted late, or while a daemon runs. `place` is a directory of a drive, or what is under the
// mount point of one.
class Machine {
 public:
  explicit Machine(uint32_t seed) : random_(seed) {
    for (size_t drive = 0; drive < kDrives; ++drive) {
      paths_[drive] = scratch_.path() + "/" + std::to_string(drive);
      for (const size_t place : {drive, drive + kDrives}) MakeDirectory(Away(place));
    }
    for (size_t drive = 0; drive < kDrives; ++drive) Move(Away(drive), paths_[drive]);
  }

  void Do() {
    const uint32_t chosen = Below(10);
    if (stores_ == nullptr) {
      if (chosen < 4) return Mount();
      return Start();
    }
    if (chosen < 5) return Save();
    if (chosen < 7) return End();
    if (chosen < 8) return Mount();
    stores_.reset();
  }
  // Each file of each saved job is the same as when it was saved.
  void Check() {
    for (const Set& set : sets_) {
      for (const auto& [job, store] : set.jobs) {
        EXPECT_NE(FileAt(set.places[0], ".memtide-snapshot-", job), 0u) << job;
        for (size_t i = 0; i < set.places.size(); ++i) {
          EXPECT_EQ(FileAt(set.places[i], ".memtide-store-", store.number), store.files[i]) << job;
        }
      }
    }
  }
  std::map<std::string, int> seen;

 private:
  static constexpr size_t kDrives = 3;
  struct SavedStore {
    uint32_t number;
    std::vector<ino_t> files;
  };
  // Places over which jobs are saved.
  struct Set {
    std::vector<size_t> places;
    std::map<uint64_t, SavedStore> jobs;
    bool has_left = false;  // A store that no snapshot names.
  };

  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }
  std::string Away(size_t place) const { return scratch_.path() + "/away" + std::to_string(place); }
  static void MakeDirectory(const std::string& path) { ASSERT_EQ(mkdir(path.c_str(), 0700), 0); }
  static void Move(const std::string& from, const std::string& to) {
    ASSERT_EQ(rename(from.c_str(), to.c_str()), 0);
  }
  size_t PlaceAt(size_t drive) const { return mounted_[drive] ? drive : drive + kDrives; }
  std::string PathOf(size_t place) const {
    const size_t drive = place % kDrives;
    return PlaceAt(drive) == place ? paths_[drive] : Away(place);
  }
  ino_t FileAt(size_t place, const std::string& prefix, uint64_t number) const {
    struct stat status;
    const std::string path = PathOf(place) + "/" + prefix + std::to_string(number);
    return stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
  }

  // Mounts the drive, or takes it away.
  void Mount() {
    const size_t drive = Below(kDrives);
    Move(paths_[drive], Away(PlaceAt(drive)));
    mounted_[drive] = !mounted_[drive];
    Move(Away(PlaceAt(drive)), paths_[drive]);
  }

  void Start() {
    std::vector<size_t> drives = {0, 1, 2};
    // Most starts have the flags of the last one.
    if (drives_.empty() || Below(3) == 0) {
      std::shuffle(drives.begin(), drives.end(), random_);
      drives.resize(1 + Below(kDrives));
      drives_ = drives;
    }
    std::vector<std::string> paths;
    started_.clear();
    for (const size_t drive : drives_) {
      paths.push_back(paths_[drive]);
      started_.push_back(PlaceAt(drive));
    }
    set_ = nullptr;
    bool is_right = true;
    for (Set& set : sets_) {
      if (set.jobs.empty() && !set.has_left) continue;
      const bool is_seen = std::any_of(set.places.begin(), set.places.end(), [&](size_t place) {
        return std::count(started_.begin(), started_.end(), place) > 0;
      });
      if (set.places == started_) set_ = &set;
      if (is_seen && set.places != started_) is_right = false;
    }
    const absl::StatusOr<std::shared_ptr<StoreTable>> opened = StoreTable::Open(paths);
    ASSERT_EQ(opened.ok(), is_right) << opened.status();
    if (!is_right) {
      const bool is_late = absl::IsUnavailable(opened.status());
      ASSERT_TRUE(is_late || absl::IsInvalidArgument(opened.status())) << opened.status();
      ++seen[is_late ? "late" : "other set"];
      return;
    }
    stores_ = *opened;
    const std::vector<SnapshotFile> files = LoadSnapshotFiles(paths).value();
    ASSERT_EQ(files.size(), set_ == nullptr ? 0 : set_->jobs.size());
    std::set<StoreId> saved;
    for (const SnapshotFile& file : files) {
      ASSERT_EQ(set_->jobs.count(file.job.value()), 1u);
      saved.insert(StoreId(set_->jobs[file.job.value()].number));
    }
    if (!files.empty()) ++seen["restored"];
    next_ = 1;
    const std::set<StoreId> named = NamedStores(paths).value();
    for (const StoreId store : named) next_ = std::max(next_, store.value() + 1);
    const bool had_left = set_ != nullptr && set_->has_left;
    ASSERT_EQ(stores_->RemoveLeftSnapshots(saved)->empty(), !had_left);
    if (set_ != nullptr) set_->has_left = false;
    if (set_ == nullptr) set_ = &sets_.emplace_back(Set{started_, {}});
  }

  // A drive has been mounted since the start, or taken away.
  bool IsOther() const {
    return std::any_of(started_.begin(), started_.end(),
                       [&](size_t place) { return PlaceAt(place % kDrives) != place; });
  }
  void Save() {
    const uint32_t number = next_++;
    const uint64_t job = number + 100;
    ASSERT_TRUE(stores_->Make(StoreId(number), KiB(4)).ok());
    // A snapshot that cannot be written leaves what a crash leaves: the names of its stores.
    const bool fails = !IsOther() && Below(4) == 0;
    const std::string way =
        PathOf(started_[0]) + "/.memtide-snapshot-" + std::to_string(job) + ".next";
    if (fails) MakeDirectory(way);
    const absl::Status status = stores_->SaveSnapshot(JobId(job), {StoreId(number)}, "a snapshot");
    ASSERT_EQ(status.ok(), !fails && !IsOther()) << status;
    if (fails) {
      ASSERT_EQ(rmdir(way.c_str()), 0);
      set_->has_left = true;
    }
    if (IsOther()) ++seen["save under a mount"];
    if (!status.ok()) return;
    SavedStore store{number, {}};
    for (const size_t place : started_) {
      store.files.push_back(FileAt(place, ".memtide-store-", number));
    }
    set_->jobs[job] = store;
  }
  void End() {
    // A job that was never saved has a number that no snapshot here has.
    const bool is_saved = !set_->jobs.empty() && Below(3) > 0;
    const uint64_t job = is_saved ? set_->jobs.begin()->first : 50 + Below(60);
    if (!is_saved && set_->jobs.count(job) > 0) return;
    const uint32_t store = is_saved ? set_->jobs.begin()->second.number : next_ + Below(3);
    const absl::Status status = stores_->RemoveSnapshot(JobId(job), {StoreId(store)});
    ASSERT_EQ(status.ok(), !IsOther()) << status;
    if (IsOther()) ++seen["end under a mount"];
    if (status.ok()) set_->jobs.erase(job);
  }

  std::mt19937 random_;
  // Flushes in memory take no time.
  const ScratchDirectory scratch_{access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ""};
  std::string paths_[kDrives];
  bool mounted_[kDrives] = {true, true, true};
  std::list<Set> sets_;
  std::vector<size_t> drives_;  // The flags of the last start.
  // While a daemon runs: its stores, the places that it has claimed, and the set of these.
  std::shared_ptr<StoreTable> stores_;
  std::vector<size_t> started_;
  Set* set_ = nullptr;
  uint32_t next_ = 1;
};

TEST(StoreTableRestartsTest, NoStartWithOtherDirectoriesLosesASavedJob) {
  std::map<std::string, int> seen;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Machine machine(seed);
    for (int i = 0; i < 60; ++i) {
      machine.Do();
      machine.Check();
      ASSERT_FALSE(HasFailure()) << "operation " << i;
    }
    for (const auto& [what, times] : machine.seen) seen[what] += times;
  }
  for (const char* what :
       {"restored", "other set", "late", "save under a mount", "end under a mount"}) {
    EXPECT_GT(seen[what], 20) << what;
  }
}

}  // namespace
}  // namespace memtide
