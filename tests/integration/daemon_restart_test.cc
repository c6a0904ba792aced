// Tests that after a daemon ends or is killed, the next one restores the jobs that have a time to
// live, from a descriptor store like systemd's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/integration/daemon_process.h"
#include "tests/integration/service_manager.h"
#include "tests/integration/stepping.h"

namespace memtide {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kKills = 100;

class DaemonRestartTest : public testing::Test {
 protected:
  std::vector<std::string> Flags() const { return options_.Flags(sockets_, directory_.path()); }
  void Start(const std::vector<std::string>& flags) {
    daemon_ = manager_.Start(flags);
    ASSERT_TRUE(daemon_->WaitUntilReady()) << daemon_->log();
  }
  void Start() { Start(Flags()); }
  void Kill() {
    daemon_->Signal(SIGKILL);
    daemon_->Wait();
  }

  const KillOptions options_;
  ScratchDirectory directory_;
  const std::string sockets_ = directory_.path() + "/s";
  ServiceManager manager_{directory_.path()};
  std::unique_ptr<DaemonProcess> daemon_;
  Stepping stepping_{sockets_, options_};
};

TEST_F(DaemonRestartTest, DeathsOfTheDaemonLeaveWholeSteps) {
  Start();
  const int kills = kKills * options_.percent_of_kills / 100;
  for (int kill = 0; kill < kills && !HasFailure(); ++kill) {
    SCOPED_TRACE(kill);
    stepping_.TrainAndDie([this] { Kill(); });
    Start();
  }
  EXPECT_GT(stepping_.said(), kills / 4u) << "steps were made";
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->Wait(), 0) << daemon_->log();
}

TEST_F(DaemonRestartTest, APlannedRestartLosesNothing) {
  Start();
  stepping_.Train(5);
  daemon_->Signal(SIGTERM);
  ASSERT_EQ(daemon_->Wait(), 0) << daemon_->log();
  Start();
  EXPECT_THAT(daemon_->log(), HasSubstr("job \"killed\" of the last daemon is restored"));
  EXPECT_GE(stepping_.Train(3), 5u);
}

// Daemons that are killed while they restore a job, each a little later than the last one.
TEST_F(DaemonRestartTest, DeathsWhileAJobIsRestoredLoseNothing) {
  Start();
  stepping_.Train(3);
  Kill();
  for (const char* moment : {"host pool: ", "ssd pool: ", "is restored at its step", " serves "}) {
    for (int death = 0; death < 3; ++death) {
      SCOPED_TRACE(moment);
      daemon_ = manager_.Start(Flags());
      ASSERT_TRUE(daemon_->WaitForLog(moment)) << daemon_->log();
      Kill();
    }
  }
  Start();
  EXPECT_THAT(daemon_->log(), HasSubstr("job \"killed\" of the last daemon is restored"));
  EXPECT_GE(stepping_.Train(3), 3u);
}

TEST_F(DaemonRestartTest, ADeathWhileAJobIsGivenUpLeavesNothingOfIt) {
  Start();
  stepping_.Train(3);
  Kill();
  manager_.Lose(manager_.Names()[1]);
  for (int death = 0; death < 3; ++death) {
    daemon_ = manager_.Start(Flags());
    ASSERT_TRUE(daemon_->WaitForLog(death == 0 ? "is lost, with its step" : "ssd pool: "));
    Kill();
  }
  Start();
  manager_.AwaitCount(1);
  EXPECT_EQ(manager_.Names(), std::vector<std::string>{"journal"});
  stepping_.BeginAnew();
  EXPECT_EQ(stepping_.Train(1), 0u) << "the name is free";
}

TEST_F(DaemonRestartTest, AJobWhoseMemoryIsNotInTheStoreIsDroppedAndLogged) {
  Start();
  stepping_.Train(3);
  Kill();
  const std::vector<std::string> names = manager_.Names();
  ASSERT_GE(names.size(), 3u) << "the journal, regions and stores";
  EXPECT_EQ(names[0], "journal");
  manager_.Lose(names[1]);
  Start();
  EXPECT_THAT(daemon_->log(), HasSubstr("job \"killed\" is lost, with its step"));
  EXPECT_THAT(daemon_->log(), HasSubstr("FileDescriptorStoreMax="));
  EXPECT_EQ(manager_.Names(), std::vector<std::string>{"journal"});
  stepping_.BeginAnew();
  EXPECT_EQ(stepping_.Train(1), 0u) << "the name is free";
}

TEST_F(DaemonRestartTest, AJobThatNoLongerFitsIsDroppedAndLogged) {
  Start();
  stepping_.Train(3);
  Kill();
  KillOptions smaller = options_;
  smaller.host_pool = "6MiB";  // No job fits three chunks.
  Start(smaller.Flags(sockets_, directory_.path()));
  EXPECT_THAT(daemon_->log(), HasSubstr("job \"killed\" is lost, with its step"));
  EXPECT_THAT(daemon_->log(), HasSubstr("of the host pool, which has"));
  manager_.AwaitCount(1);
}

// Two directories share a drive, and the third has one of its own: half of each store is on it.
TEST_F(DaemonRestartTest, StoresOverUnequalDirectoriesAreRestoredAsTheyWereMade) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no second file system";
  ScratchDirectory other("/dev/shm");
  const auto start = [&] {
    daemon_ = manager_.Start({"--socket-dir=" + sockets_, "--ssd-dir=" + directory_.path() + "/d",
                              "--ssd-dir=" + directory_.path() + "/e",
                              "--ssd-dir=" + other.path() + "/f", "--device=none",
                              "--host-pool=20MiB", "--ssd-pool=96MiB", "--metrics-address=off"});
    ASSERT_TRUE(daemon_->WaitUntilReady()) << daemon_->log();
    EXPECT_THAT(daemon_->log(), HasSubstr("/d: 1 of 4 stripes"));
    EXPECT_THAT(daemon_->log(), HasSubstr("/f: 2 of 4 stripes"));
  };
  start();
  stepping_.Train(3);
  Kill();
  start();
  EXPECT_THAT(daemon_->log(), HasSubstr("job \"killed\" of the last daemon is restored"));
  EXPECT_GE(stepping_.Train(3), 3u);
}

// As after a package was rolled back: the older daemon refuses to start, and the newer one goes on.
TEST_F(DaemonRestartTest, AJournalOfAnotherVersionIsRefusedAndNothingIsLost) {
  Start();
  stepping_.Train(3);
  Kill();
  constexpr uint64_t kVersionOffset = 8;
  const std::vector<std::string> names = manager_.Names();
  const uint64_t version = manager_.Overwrite("journal", kVersionOffset, 99);
  daemon_ = manager_.Start(Flags());
  EXPECT_EQ(daemon_->Wait(), 1) << "systemd restarts it, and so keeps the descriptors";
  EXPECT_THAT(daemon_->log(), HasSubstr("the journal has version 99"));
  EXPECT_THAT(daemon_->log(), HasSubstr("install the memtided that wrote it"));
  EXPECT_EQ(manager_.Names(), names);
  EXPECT_EQ(manager_.Overwrite("journal", kVersionOffset, version), 99u);
  Start();
  EXPECT_GE(stepping_.Train(1), 3u);
}

TEST_F(DaemonRestartTest, DescriptorsThatAnotherVersionHasStoredStay) {
  manager_.Store("later-1", eventfd(0, EFD_CLOEXEC));
  Start();
  stepping_.Train(1);
  EXPECT_THAT(daemon_->log(), HasSubstr("descriptor later-1"));
  EXPECT_THAT(manager_.Names(), Contains("later-1"));
}

// After a crash that damages the journal, the daemon must still start.
TEST_F(DaemonRestartTest, WithoutItsJournalTheDaemonStartsAnew) {
  Start();
  stepping_.Train(3);
  Kill();
  manager_.Lose("journal");
  Start();
  manager_.AwaitCount(1);
  EXPECT_EQ(manager_.Names(), std::vector<std::string>{"journal"});
  stepping_.BeginAnew();
  EXPECT_EQ(stepping_.Train(1), 0u);
}

TEST_F(DaemonRestartTest, AJobThatEndsLeavesTheDescriptorStore) {
  Start();
  {
    Session session(sockets_);
    v1::OpenRequest request;
    request.set_job_name("short");
    request.set_chunk_size_bytes(2 << 20);
    request.mutable_time_to_live()->set_nanos(100'000'000);
    v1::OpenResponse response;
    ASSERT_TRUE(session.sessions().Open(session.Context().get(), request, &response).ok());
    ASSERT_EQ(session.Allocate(1).size(), 1u);
    EXPECT_THAT(manager_.Names(), Contains(StartsWith("region-")));
    EXPECT_THAT(manager_.Names(), Contains(StartsWith("store-")));
  }
  manager_.AwaitCount(1);
}

}  // namespace
}  // namespace memtide
