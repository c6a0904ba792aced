// Tests that a job with most of the memory or disk outlives the daemon: the next daemon counts the
// memory in the descriptor store as its own. Uses a real cgroup and a small file system; needs
// root.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/service_manager.h"
#include "tests/integration/stepping.h"

namespace memtide {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

bool WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

// A cgroup with a limit of memory, below (v1) or beside (v2) the test's cgroup. As under systemd,
// memory in the descriptor store is still charged to it when the process has ended.
class MemoryGroup {
 public:
  explicit MemoryGroup(uint64_t limit) {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line) && !valid_;) {
      const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
      if (fields.size() != 3) continue;
      if (fields[1] == "memory") {
        Make("/sys/fs/cgroup/memory", fields[2], fields[2], "memory.limit_in_bytes", limit);
      } else if (fields[1].empty()) {
        const std::string parent = std::filesystem::path(fields[2]).parent_path();
        Make("/sys/fs/cgroup", fields[2], parent, "memory.max", limit);
      }
    }
  }
  ~MemoryGroup() {
    if (valid_) rmdir(path_.c_str());
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  // False if this machine does not permit the test to make a cgroup.
  bool valid() const { return valid_; }
  // Moves this process into the cgroup; processes that it starts later are in it, too.
  void Enter() const { ASSERT_TRUE(WriteFile(path_ + "/cgroup.procs", "0")); }
  void Leave() const { ASSERT_TRUE(WriteFile(own_ + "/cgroup.procs", "0")); }

 private:
  void Make(const std::string& mount, const std::string& own, const std::string& parent,
            const std::string& file, uint64_t limit) {
    own_ = mount + own;
    path_ = absl::StrCat(mount, parent == "/" ? "" : parent, "/memtide-test-", getpid());
    if (mkdir(path_.c_str(), 0700) != 0) return;
    valid_ = WriteFile(path_ + "/" + file, absl::StrCat(limit));
    if (!valid_) rmdir(path_.c_str());
  }

  std::string own_, path_;
  bool valid_ = false;
};

class DaemonRestartRoomTest : public testing::Test {
 protected:
  void Start(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--socket-dir=" + sockets_, "--device=none", "--metrics-address=off",
                               "--log-level=debug"});
    daemon_ = manager_.Start(flags);
  }
  void Kill() {
    daemon_->Signal(SIGKILL);
    daemon_->Wait();
  }
  void ExpectReady() { ASSERT_TRUE(daemon_->WaitUntilReady()) << daemon_->log(); }
  // Runs a daemon and a training process, kills both, and expects that the next daemon, with the
  // flags `again`, restores the job.
  void ExpectTheJobLives(Stepping* stepping, const std::vector<std::string>& flags,
                         const std::vector<std::string>& again) {
    Start(flags);
    ExpectReady();
    if (HasFatalFailure()) return;
    stepping->Train(2);
    Kill();
    Start(again);
    ExpectReady();
    if (HasFatalFailure()) return;
    EXPECT_THAT(daemon_->log(), HasSubstr("job \"killed\" of the last daemon is restored"));
    EXPECT_GE(stepping->Train(1), 2u) << daemon_->log();
  }

  ScratchDirectory directory_;
  const std::string sockets_ = directory_.path() + "/s";
  ServiceManager manager_{directory_.path()};
  std::unique_ptr<DaemonProcess> daemon_;
};

class HostRoomTest : public DaemonRestartRoomTest {
 protected:
  void SetUp() override {
    if (!group_.valid()) GTEST_SKIP() << "no cgroup can be made here; config_test has a fake one";
    group_.Enter();
  }
  void TearDown() override {
    daemon_.reset();
    if (group_.valid()) group_.Leave();
  }

  MemoryGroup group_{400 * kMiB};
  Stepping stepping_{sockets_, 24};  // 240 MiB.
};

TEST_F(HostRoomTest, AJobThatFillsMostOfTheCgroupIsThereAfterARestart) {
  const std::vector<std::string> flags = {"--no-ssd", "--host-pool=240MiB"};
  ExpectTheJobLives(&stepping_, flags, flags);
}

TEST_F(HostRoomTest, APoolOfADefaultSizeIsNoSmallerThanWhatTheJobsHave) {
  ExpectTheJobLives(&stepping_, {"--no-ssd", "--host-pool=240MiB"}, {"--no-ssd"});
}

TEST_F(HostRoomTest, APoolThatCannotBeHadAnyMoreLosesNoJob) {
  ExpectTheJobLives(&stepping_, {"--no-ssd", "--host-pool=240MiB"},
                    {"--no-ssd", "--host-pool=1GiB", "--host-reserve=1GiB"});
  EXPECT_THAT(daemon_->log(), HasSubstr("host_pool_bytes: 1 GiB, but only "));
  EXPECT_THAT(daemon_->log(), HasSubstr("host_reserve_bytes: 1 GiB, but only "));
}

class SsdRoomTest : public DaemonRestartRoomTest {
 protected:
  void SetUp() override {
    // In a mount namespace of the test, the file system is unmounted even if the test is killed.
    if (unshare(CLONE_NEWNS) != 0 || mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0) {
      GTEST_SKIP() << "no file system can be mounted here; config_test has a fake one";
    }
    ASSERT_TRUE(std::filesystem::create_directory(small_));
    ASSERT_EQ(mount("tmpfs", small_.c_str(), "tmpfs", 0, "size=100m,mode=700"), 0);
  }
  void TearDown() override {
    daemon_.reset();
    umount2(small_.c_str(), MNT_DETACH);
  }

  const std::string small_ = directory_.path() + "/small";
};

TEST_F(SsdRoomTest, AJobThatFillsMostOfTheFileSystemIsThereAfterARestart) {
  Stepping stepping(sockets_, 6);
  const std::vector<std::string> flags = {"--ssd-dir=" + small_, "--host-pool=20MiB",
                                          "--ssd-pool=60MiB"};
  ExpectTheJobLives(&stepping, flags, flags);
}

TEST_F(SsdRoomTest, APoolOfADefaultSizeIsThereAfterARestart) {
  Stepping stepping(sockets_, 7);
  const std::vector<std::string> flags = {"--ssd-dir=" + small_, "--host-pool=20MiB"};
  ExpectTheJobLives(&stepping, flags, flags);
}

TEST_F(SsdRoomTest, APoolThatCannotBeHadAnyMoreLosesNoJob) {
  Stepping stepping(sockets_, 6);
  ExpectTheJobLives(&stepping, {"--ssd-dir=" + small_, "--host-pool=20MiB", "--ssd-pool=60MiB"},
                    {"--ssd-dir=" + small_, "--host-pool=20MiB", "--ssd-pool=1TiB"});
  EXPECT_THAT(daemon_->log(), HasSubstr("ssd_pool_bytes: 1 TiB, but the directories have room"));
}

// systemd does not restart a service after status 2 (RestartPreventExitStatus=), and closes its
// descriptors then.
TEST_F(DaemonRestartRoomTest, NoMistakeInTheSettingsEndsAJob) {
  const std::vector<std::string> flags = {"--ssd-dir=" + directory_.path() + "/d",
                                          "--host-pool=20MiB", "--ssd-pool=512MiB"};
  for (const char* mistake : {"--no-such-flag", "--session-lease=1ns"}) {
    Start({mistake});
    EXPECT_EQ(daemon_->Wait(), 2) << mistake << ": there is nothing to lose";
  }
  Start(flags);
  ExpectReady();
  Stepping stepping(sockets_);
  stepping.Train(2);
  Kill();
  for (const char* mistake : {"--no-such-flag", "--session-lease=1ns"}) {
    Start({mistake});
    EXPECT_EQ(daemon_->Wait(), 1) << mistake;
  }
  Start(flags);
  ExpectReady();
  EXPECT_GE(stepping.Train(1), 2u) << daemon_->log();
}

}  // namespace
}  // namespace memtide
