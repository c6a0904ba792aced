#include "daemon/io/drive_speed.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/io/testing/faulty_disk.h"
#include "daemon/io/testing/scratch_directory.h"
#include "daemon/io/thread_disk.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::HasSubstr;

// Two directories that count as drives of their own.
class DriveSpeedTest : public testing::Test {
 protected:
  explicit DriveSpeedTest(const std::string& second = "") {
    scratch_.push_back(std::make_unique<ScratchDirectory>());
    scratch_.push_back(second.empty() ? std::make_unique<ScratchDirectory>()
                                      : std::make_unique<ScratchDirectory>(second));
    std::vector<StoreDirectory> directories;
    for (const auto& scratch : scratch_) {
      directories.push_back(*StoreDirectory::Claim(scratch->path()));
    }
    stores_ = std::make_shared<StoreTable>(std::move(directories), std::vector<size_t>{0, 1});
    real_ = std::make_unique<ThreadDisk>(stores_, IoSchedulerOptions(), "a test");
    disk_ = std::make_unique<FaultyDisk>(real_.get());
  }

  std::vector<std::unique_ptr<ScratchDirectory>> scratch_;
  std::shared_ptr<StoreTable> stores_;
  std::unique_ptr<Disk> real_;
  std::unique_ptr<FaultyDisk> disk_;
};

TEST_F(DriveSpeedTest, MeasuresEachDriveAndLeavesNoStore) {
  if (!stores_->directories()[0].direct()) GTEST_SKIP() << "no direct I/O here";
  const auto speeds = MeasureDrives(disk_.get(), stores_.get());
  ASSERT_EQ(speeds.size(), 2u);
  for (const auto& speed : speeds) {
    ASSERT_TRUE(speed.ok()) << speed.status();
    EXPECT_GT(*speed, 1e6);
    EXPECT_LT(*speed, 1e12);
  }
  for (const uint32_t store : {0, 1}) EXPECT_TRUE(stores_->StripesOf(StoreId(store)).empty());
}

TEST_F(DriveSpeedTest, ADriveThatFailsIsNotMeasuredAndTheOthersAre) {
  if (!stores_->directories()[0].direct()) GTEST_SKIP() << "no direct I/O here";
  disk_->FailTransfer(0, absl::DataLossError("injected"));
  const auto speeds = MeasureDrives(disk_.get(), stores_.get());
  // Both are measured at once, and either may be the first.
  const size_t failed = speeds[0].ok() ? 1 : 0;
  EXPECT_EQ(speeds[failed].status(), absl::DataLossError("injected"));
  EXPECT_TRUE(speeds[1 - failed].ok()) << speeds[1 - failed].status();
  for (const uint32_t store : {0, 1}) EXPECT_TRUE(stores_->StripesOf(StoreId(store)).empty());
}

class DriveSpeedOnTmpfsTest : public DriveSpeedTest {
 protected:
  DriveSpeedOnTmpfsTest() : DriveSpeedTest("/dev/shm") {}
};

TEST_F(DriveSpeedOnTmpfsTest, ThePageCacheIsNotMeasured) {
  const auto speeds = MeasureDrives(disk_.get(), stores_.get());
  EXPECT_EQ(speeds[1].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(speeds[1].status().message(), HasSubstr("no direct I/O"));
}

}  // namespace
}  // namespace memtide
