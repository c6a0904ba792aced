#include "daemon/session/socket_dir.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/session/seqpacket.h"

namespace memtide {
namespace {

class SocketDirTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/memtide-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    parent_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(parent_); }

  static mode_t ModeOf(const std::string& path) {
    struct stat info;
    return stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
  }

  std::string parent_;
};

TEST_F(SocketDirTest, MakesTheDirectoryWithItsMode) {
  const auto dir = SocketDir::Claim(parent_ + "/a/b/");
  ASSERT_TRUE(dir.ok()) << dir.status();
  EXPECT_EQ((*dir)->path(), parent_ + "/a/b");
  EXPECT_EQ(ModeOf(parent_ + "/a/b"), 0750u);
  EXPECT_EQ(ModeOf(parent_ + "/a/b/lock"), 0600u);
}

TEST_F(SocketDirTest, RefusesASecondDaemonAndNamesTheFirst) {
  auto first = SocketDir::Claim(parent_ + "/s");
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = SocketDir::Claim(parent_ + "/s").status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.message().find("another memtided (pid " + std::to_string(getpid()) + ")"),
            absl::string_view::npos)
      << second;
  first->reset();
  EXPECT_TRUE(SocketDir::Claim(parent_ + "/s").ok());
}

TEST_F(SocketDirTest, RemovesStaleSocketsButNeverOneThatAnswers) {
  const std::string path = parent_ + "/s";
  ASSERT_TRUE(SocketDir::Claim(path).ok());
  const auto listening = ListenUnix(path + "/fd.sock", SOCK_SEQPACKET);
  ASSERT_TRUE(listening.ok()) << listening.status();
  const absl::Status refused = SocketDir::Claim(path).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("fd.sock"), absl::string_view::npos) << refused;
  EXPECT_EQ(ModeOf(path + "/fd.sock"), 0660u);
  close(*listening);
  EXPECT_TRUE(SocketDir::Claim(path).ok());
  EXPECT_EQ(ModeOf(path + "/fd.sock"), 0u);
}

TEST_F(SocketDirTest, RefusesADirectoryThatOthersMayWrite) {
  const std::string path = parent_ + "/s";
  std::filesystem::create_directory(path);
  ASSERT_EQ(chmod(path.c_str(), 0770), 0);
  EXPECT_EQ(SocketDir::Claim(path).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(SocketDirTest, RefusesADirectoryThatOthersMayReplace) {
  const std::string path = parent_ + "/above/s";
  ASSERT_TRUE(SocketDir::Claim(path).ok());
  ASSERT_EQ(chmod((parent_ + "/above").c_str(), 0777), 0);
  const absl::Status status = SocketDir::Claim(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(status.message().find("write to \"" + parent_ + "/above\""), absl::string_view::npos)
      << status;
  ASSERT_EQ(chmod((parent_ + "/above").c_str(), 01777), 0);
  EXPECT_TRUE(SocketDir::Claim(path).ok());
}

// The directory may be renamed while a daemon serves it; the sockets of the one that takes its
// place are not its own.
TEST_F(SocketDirTest, RemovesItsOwnSocketsOnly) {
  const std::string path = parent_ + "/s";
  auto dir = SocketDir::Claim(path);
  ASSERT_TRUE(dir.ok()) << dir.status();
  std::ofstream(path + "/fd.sock") << "own";
  std::filesystem::rename(path, parent_ + "/renamed");
  std::filesystem::create_directory(path);
  std::ofstream(path + "/fd.sock") << "another's";
  dir->reset();
  EXPECT_TRUE(std::filesystem::exists(path + "/fd.sock"));
  EXPECT_FALSE(std::filesystem::exists(parent_ + "/renamed/fd.sock"));
}

TEST_F(SocketDirTest, RemovesAStaleLinkAndNotWhatItNames) {
  const auto listening = ListenUnix(parent_ + "/victim", SOCK_STREAM);
  ASSERT_TRUE(listening.ok()) << listening.status();
  std::filesystem::create_directory(parent_ + "/s");
  std::filesystem::create_symlink("../victim", parent_ + "/s/grpc.sock");
  EXPECT_TRUE(SocketDir::Claim(parent_ + "/s").ok()) << "the link is no socket that answers";
  EXPECT_TRUE(std::filesystem::exists(parent_ + "/victim"));
  EXPECT_FALSE(std::filesystem::is_symlink(parent_ + "/s/grpc.sock"));
  close(*listening);
}

TEST_F(SocketDirTest, FollowsNoLinks) {
  std::filesystem::create_directory(parent_ + "/real");
  std::filesystem::create_directory_symlink(parent_ + "/real", parent_ + "/link");
  EXPECT_FALSE(SocketDir::Claim(parent_ + "/link").ok());
  std::ofstream(parent_ + "/victim") << "content";
  std::filesystem::create_symlink(parent_ + "/victim", parent_ + "/real/lock");
  EXPECT_FALSE(SocketDir::Claim(parent_ + "/real").ok());
  EXPECT_EQ(std::filesystem::file_size(parent_ + "/victim"), 7u);
}

TEST_F(SocketDirTest, RefusesPathsThatNoSocketCanHave) {
  const absl::Status status = SocketDir::Claim("/tmp/" + std::string(120, 'x')).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("125 characters"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace memtide
