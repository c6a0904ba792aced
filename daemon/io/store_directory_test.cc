#include "daemon/io/store_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "daemon/io/testing/restrict_process.h"
#include "daemon/io/testing/scratch_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::HasSubstr;

class StoreDirectoryTest : public testing::Test {
 protected:
  std::string At(const std::string& name) const { return directory_.path() + "/" + name; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(At(name)) << text;
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  // The message of a refusal.
  std::string Refusal(const std::string& path) const {
    const absl::Status status = StoreDirectory::Claim(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  }

  ScratchDirectory directory_;
};

TEST_F(StoreDirectoryTest, ClaimsAnEmptyDirectoryAndClaimsItAgainLater) {
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<StoreDirectory> claimed = StoreDirectory::Claim(directory_.path());
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    EXPECT_EQ(Names(), std::set<std::string>{".memtide-store"});
  }
}

TEST_F(StoreDirectoryTest, TheRootOfAFileSystemCountsAsEmpty) {
  ASSERT_EQ(mkdir(At("lost+found").c_str(), 0700), 0);
  EXPECT_TRUE(StoreDirectory::Claim(directory_.path()).ok());
}

TEST_F(StoreDirectoryTest, ASecondOwnerIsToldWhoTheFirstIs) {
  absl::StatusOr<StoreDirectory> claimed = StoreDirectory::Claim(directory_.path());
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_THAT(Refusal(directory_.path()),
              HasSubstr("is in use by process " + std::to_string(getpid())));
}

TEST_F(StoreDirectoryTest, SomebodyElsesFilesAreNamedAndLeftAlone) {
  Write("thesis.tex", "years of work");
  EXPECT_THAT(Refusal(directory_.path()), HasSubstr("\"thesis.tex\""));
  EXPECT_EQ(Names(), std::set<std::string>{"thesis.tex"});
}

TEST_F(StoreDirectoryTest, AMarkerOfAnotherKindIsRefusedAndLeftAlone) {
  Write(".memtide-store", "memtide-store 2\n1\n");
  EXPECT_THAT(Refusal(directory_.path()), HasSubstr("another kind or version"));
  std::stringstream text;
  text << std::ifstream(At(".memtide-store")).rdbuf();
  EXPECT_EQ(text.str(), "memtide-store 2\n1\n");
}

TEST_F(StoreDirectoryTest, AMarkerThatWasNeverWrittenIsACrashOfOurs) {
  Write(".memtide-store", "");
  EXPECT_TRUE(StoreDirectory::Claim(directory_.path()).ok());
}

TEST_F(StoreDirectoryTest, AMarkerThatIsNotAFileIsRefused) {
  ASSERT_EQ(symlink("/etc/passwd", At(".memtide-store").c_str()), 0);
  EXPECT_THAT(Refusal(directory_.path()), HasSubstr("ELOOP"));
  ASSERT_EQ(unlink(At(".memtide-store").c_str()), 0);
  ASSERT_EQ(mkfifo(At(".memtide-store").c_str(), 0600), 0);
  EXPECT_THAT(Refusal(directory_.path()), HasSubstr("not a file"));
}

TEST_F(StoreDirectoryTest, NamesLeftByACrashAreRemovedAndOthersKept) {
  ASSERT_TRUE(StoreDirectory::Claim(directory_.path()).ok());
  Write(".memtide-file-1-0", "left behind");
  Write("notes", "an administrator's");
  ASSERT_TRUE(StoreDirectory::Claim(directory_.path()).ok());
  EXPECT_EQ(Names(), (std::set<std::string>{".memtide-store", "notes"}));
}

TEST_F(StoreDirectoryTest, ADirectoryThatOthersCanWriteIsRefused) {
  ASSERT_EQ(chmod(directory_.path().c_str(), 0770), 0);
  EXPECT_THAT(Refusal(directory_.path()), HasSubstr("mode 0770"));
  EXPECT_TRUE(Names().empty());
}

TEST_F(StoreDirectoryTest, ADirectoryThatOthersCanReplaceIsRefused) {
  ASSERT_EQ(mkdir(At("above").c_str(), 0777), 0);
  ASSERT_EQ(mkdir(At("above/d").c_str(), 0700), 0);
  ASSERT_EQ(chmod(At("above").c_str(), 0777), 0);
  EXPECT_THAT(Refusal(At("above/d")), HasSubstr("write to \"" + At("above") + "\""));
  ASSERT_EQ(chmod(At("above").c_str(), 0755), 0);
  EXPECT_TRUE(StoreDirectory::Claim(At("above/d")).ok());
}

TEST_F(StoreDirectoryTest, WhatIsNotADirectoryIsRefused) {
  Write("file", "");
  EXPECT_THAT(Refusal(At("file")), HasSubstr("ENOTDIR"));
  ASSERT_EQ(mkdir(At("real").c_str(), 0700), 0);
  ASSERT_EQ(symlink("real", At("link").c_str()), 0);
  EXPECT_THAT(Refusal(At("link")), HasSubstr("ENOTDIR"));
  EXPECT_EQ(StoreDirectory::Claim(At("missing")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StoreDirectoryTest, FilesArePrivateReservedAndWithoutAName) {
  absl::StatusOr<StoreDirectory> claimed = StoreDirectory::Claim(directory_.path());
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  absl::StatusOr<OwnedFd> file = claimed->MakeFile(MiB(4));
  ASSERT_TRUE(file.ok()) << file.status();
  struct stat status;
  ASSERT_EQ(fstat(file->get(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ(status.st_nlink, 0u);
  EXPECT_EQ(Bytes(status.st_size), MiB(4));
  EXPECT_GE(status.st_blocks * 512, static_cast<blkcnt_t>(MiB(4).count()));
  EXPECT_EQ((fcntl(file->get(), F_GETFL) & O_DIRECT) != 0, claimed->direct());
  EXPECT_EQ(Names(), std::set<std::string>{".memtide-store"});
}

// Runs in a child: as on a file system that has no unnamed files.
void MakeFilesWithoutTmpfile(const std::string& path) {
  RefuseSystemCall(__NR_openat, EOPNOTSUPP, O_TMPFILE);
  absl::StatusOr<StoreDirectory> claimed = StoreDirectory::Claim(path);
  if (!claimed.ok()) _exit(1);
  absl::StatusOr<OwnedFd> file = claimed->MakeFile(MiB(1));
  if (!file.ok()) _exit(2);
  struct stat status;
  _exit(fstat(file->get(), &status) == 0 && status.st_nlink == 0 ? 0 : 3);
}

TEST_F(StoreDirectoryTest, WithoutUnnamedFilesTheirNamesAreGoneAtOnce) {
  EXPECT_EXIT(MakeFilesWithoutTmpfile(directory_.path()), testing::ExitedWithCode(0), "");
  EXPECT_EQ(Names(), std::set<std::string>{".memtide-store"});
}

TEST(StoreDirectoryOnTmpfsTest, IsBufferedAndWorks) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  ScratchDirectory directory("/dev/shm");
  absl::StatusOr<StoreDirectory> claimed = StoreDirectory::Claim(directory.path());
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_FALSE(claimed->direct());
  EXPECT_TRUE(claimed->MakeFile(MiB(1)).ok());
}

TEST_F(StoreDirectoryTest, ADriveThatIsMountedLaterIsAnotherDirectory) {
  const std::string path = At("d");
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  absl::StatusOr<StoreDirectory> claimed = StoreDirectory::Claim(path);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_TRUE(claimed->CheckPath().ok());
  ASSERT_EQ(rename(path.c_str(), At("away").c_str()), 0);
  EXPECT_FALSE(claimed->CheckPath().ok());
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  EXPECT_EQ(claimed->CheckPath().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace memtide
