#include "daemon/device/gpu_owners.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "daemon/io/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kGpu[] = "GPU-1234";

v1::GpuOwner Owner(bool service, uint64_t mebibytes) {
  v1::GpuOwner owner;
  owner.set_pid(17);
  owner.set_service(service);
  owner.set_socket_dir("/run/x");
  owner.set_pool_bytes(mebibytes << 20);
  return owner;
}

class GpuOwnersTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<GpuOwnership>> Take(const v1::GpuOwner& owner) {
    notes_.clear();
    return GpuOwnership::Take(kGpu, owner, &notes_, scratch_.path());
  }
  std::string Path(const std::string& name) const {
    return scratch_.path() + "/memtide-gpu." + kGpu + "." + name;
  }
  size_t Files() const {
    return std::distance(std::filesystem::directory_iterator(scratch_.path()), {});
  }
  // Leaves the file of a daemon that was killed.
  void BeKilled() {
    const pid_t child = fork();
    if (child == 0) {
      const auto taken = Take(Owner(true, 8));
      kill(getpid(), taken.ok() ? SIGKILL : SIGTERM);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(WTERMSIG(status), SIGKILL);
    ASSERT_EQ(Files(), 1u);
  }

  const ScratchDirectory scratch_{"/dev/shm"};
  std::vector<std::string> notes_;
};

TEST_F(GpuOwnersTest, PrivateDaemonsShareAGpuAndAreToldHowMuchOthersHave) {
  const auto first = Take(Owner(false, 24));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(notes_, IsEmpty());
  const auto second = Take(Owner(false, 40));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("1 private memtided, which has 24 MiB of it")));
  const auto third = Take(Owner(false, 8));
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("2 private memtided, which have 64 MiB of it")));
  EXPECT_THAT(FindGpuOwners(kGpu, scratch_.path()).owners, SizeIs(3));
  EXPECT_THAT(FindGpuOwners("GPU-5678", scratch_.path()).owners, IsEmpty());
}

TEST_F(GpuOwnersTest, AServiceHasAGpuAloneAndTheErrorSaysWhoItIsAndWhatToDo) {
  auto first = Take(Owner(true, 48));
  ASSERT_TRUE(first.ok()) << first.status();
  for (const bool service : {true, false}) {
    const auto second = Take(Owner(service, 8));
    ASSERT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    for (const std::string part : {kGpu, "service", "pid 17", "48 MiB", "/run/x", "memtide run",
                                   "--device cuda:N", "--device none"}) {
      EXPECT_THAT(std::string(second.status().message()), HasSubstr(part));
    }
  }
  EXPECT_EQ(Files(), 1u) << "what was refused is gone";
  first->reset();
  EXPECT_EQ(Files(), 0u);
  EXPECT_TRUE(Take(Owner(true, 8)).ok());
}

TEST_F(GpuOwnersTest, AServiceThatStartsBesidePrivateDaemonsIsTold) {
  const auto script = Take(Owner(false, 24));
  ASSERT_TRUE(script.ok()) << script.status();
  const auto service = Take(Owner(true, 8));
  ASSERT_TRUE(service.ok()) << service.status();
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("24 MiB")));
}

TEST_F(GpuOwnersTest, AllUsersMayReadWhoHasAGpuAndOnlyTheDaemonsMayWrite) {
  const mode_t before = umask(077);
  const auto taken = Take(Owner(true, 8));
  umask(before);
  ASSERT_TRUE(taken.ok()) << taken.status();
  const auto file = std::filesystem::directory_iterator(scratch_.path())->path();
  struct stat info;
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0644u);
  const GpuOwners found = FindGpuOwners(kGpu, scratch_.path());
  ASSERT_THAT(found.owners, SizeIs(1));
  EXPECT_EQ(found.owners.front().uid(), geteuid()) << "by the file, not by its text";
}

TEST_F(GpuOwnersTest, ADaemonThatWasKilledHasNothingAndItsFileGoes) {
  BeKilled();
  EXPECT_TRUE(Take(Owner(true, 8)).ok());
  EXPECT_THAT(notes_, IsEmpty());
  EXPECT_EQ(Files(), 0u);
}

TEST_F(GpuOwnersTest, WhoCanOnlyReadAFileCannotMakeItsDaemonLookAlive) {
  BeKilled();
  const auto file = std::filesystem::directory_iterator(scratch_.path())->path();
  const int reader = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  ASSERT_EQ(fcntl(reader, F_OFD_SETLK, &lock), 0);
  ASSERT_EQ(flock(reader, LOCK_EX), 0);
  lock.l_type = F_WRLCK;
  ASSERT_NE(fcntl(reader, F_OFD_SETLK, &lock), 0) << "the lock that counts";
  EXPECT_TRUE(Take(Owner(true, 8)).ok());
  close(reader);
}

TEST_F(GpuOwnersTest, HostileFilesAreReportedAndKeepNobodyOut) {
  ASSERT_EQ(symlink("/etc/passwd", Path("link").c_str()), 0);
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0644), 0);
  ASSERT_EQ(mkdir(Path("folder").c_str(), 0755), 0);
  std::vector<int> locked;
  for (const std::string& text : {std::string(5000, 'x'), std::string("pid: {"), std::string()}) {
    const std::string path = Path(std::to_string(locked.size()));
    std::ofstream(path) << text;
    locked.push_back(open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    ASSERT_EQ(fcntl(locked.back(), F_OFD_SETLK, &lock), 0);
  }
  const auto taken = Take(Owner(true, 8));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_THAT(notes_, SizeIs(6));
  for (const char* part :
       {"link is of no use: ", "pipe is of no use: it is not a file",
        "folder is of no use: it is not a file", "0 is of no use: it does not say",
        "1 is of no use: it does not say", "2 is of no use: it does not say"}) {
    EXPECT_THAT(notes_, testing::Contains(HasSubstr(part)));
  }
  for (const int fd : locked) close(fd);
}

TEST_F(GpuOwnersTest, ControlCharactersOfOthersAreNotPrinted) {
  v1::GpuOwner owner = Owner(true, 8);
  owner.set_socket_dir("/run/\x1b[2J\n");
  EXPECT_THAT(Describe(owner), HasSubstr("sockets in /run/\\033[2J\\n"));
}

TEST_F(GpuOwnersTest, WithoutADirectoryADaemonStartsAndSaysThatOthersDoNotSeeIt) {
  std::vector<std::string> notes;
  const auto taken = GpuOwnership::Take(kGpu, Owner(true, 8), &notes, scratch_.path() + "/none");
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(*taken, nullptr);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("others do not see"), HasSubstr("is unknown")));
}

}  // namespace
}  // namespace memtide
