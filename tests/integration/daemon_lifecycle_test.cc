// Tests how memtided starts and how it ends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/daemon_process.h"

namespace memtide {
namespace {

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

mode_t ModeOf(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

TEST(DaemonLifecycleTest, StartsWithoutConfigFileAndEndsCleanlyOnSigterm) {
  const ScratchDirectory scratch;
  DaemonProcess daemon(DaemonProcess::SmallFlags(scratch.path()));
  ASSERT_TRUE(daemon.WaitUntilReady()) << daemon.log();
  EXPECT_EQ(ModeOf(scratch.path() + "/s"), 0750u);
  EXPECT_EQ(ModeOf(scratch.path() + "/s/fd.sock"), 0660u);
  EXPECT_EQ(ModeOf(scratch.path() + "/s/grpc.sock"), 0660u);
  EXPECT_EQ(ModeOf(scratch.path() + "/d"), 0700u);
  {
    Session session(scratch.path() + "/s");
    session.Open();
    session.Allocate(2);
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(), 0) << daemon.log();
  }
  EXPECT_FALSE(std::filesystem::exists(scratch.path() + "/s/fd.sock"));
  EXPECT_FALSE(std::filesystem::exists(scratch.path() + "/s/grpc.sock"));
}

TEST(DaemonLifecycleTest, RefusesASecondDaemonOnItsSocketsAndOnItsDisk) {
  const ScratchDirectory scratch;
  DaemonProcess first(DaemonProcess::SmallFlags(scratch.path()));
  ASSERT_TRUE(first.WaitUntilReady()) << first.log();
  const std::string pid = std::to_string(first.pid());

  DaemonProcess same_sockets({"--socket-dir=" + scratch.path() + "/s", "--no-ssd",
                              "--host-pool=8MiB", "--metrics-address=off"});
  EXPECT_EQ(same_sockets.Wait(), 1);
  EXPECT_TRUE(Contains(same_sockets.log(), "another memtided (pid " + pid + ")"))
      << same_sockets.log();

  DaemonProcess same_disk({"--socket-dir=" + scratch.path() + "/t",
                           "--ssd-dir=" + scratch.path() + "/d", "--ssd-pool=8MiB",
                           "--host-pool=8MiB", "--metrics-address=off"});
  EXPECT_EQ(same_disk.Wait(), 1);
  EXPECT_TRUE(Contains(same_disk.log(), scratch.path() + "/d is in use by process " + pid))
      << same_disk.log();

  EXPECT_TRUE(Session(scratch.path() + "/s").welcome()) << "the first one was disturbed";
}

TEST(DaemonLifecycleTest, StartsAgainOnTheDirectoriesOfOneThatWasKilled) {
  const ScratchDirectory scratch;
  std::string boot_id;
  for (int start = 0; start < 3; ++start) {
    DaemonProcess daemon(DaemonProcess::SmallFlags(scratch.path()));
    ASSERT_TRUE(daemon.WaitUntilReady()) << daemon.log();
    Session session(scratch.path() + "/s");
    ASSERT_TRUE(session.welcome());
    EXPECT_NE(session.first_frame().welcome().boot_id(), boot_id);
    boot_id = session.first_frame().welcome().boot_id();
    session.Open();
    session.Allocate(4);
    daemon.Signal(SIGKILL);
    EXPECT_EQ(daemon.Wait(), 128 + SIGKILL);
  }
}

TEST(DaemonLifecycleTest, EndsWithItsLifeline) {
  const ScratchDirectory scratch;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFD, FD_CLOEXEC), 0);
  std::vector<std::string> flags = DaemonProcess::SmallFlags(scratch.path());
  flags.push_back("--lifeline-fd=" + std::to_string(ends[0]));
  DaemonProcess daemon(flags);
  close(ends[0]);
  ASSERT_TRUE(daemon.WaitUntilReady()) << daemon.log();
  close(ends[1]);
  EXPECT_EQ(daemon.Wait(), 0);
  EXPECT_TRUE(Contains(daemon.log(), "the lifeline ended")) << daemon.log();
}

TEST(DaemonLifecycleTest, TellsSystemdThatItIsReadyAliveAndEnding) {
  const ScratchDirectory scratch;
  const std::string path = scratch.path() + "/notify";
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const auto receive = [fd] {
    char text[512];
    const ssize_t got = recv(fd, text, sizeof(text), 0);
    return std::string(text, got > 0 ? static_cast<size_t>(got) : 0);
  };
  DaemonProcess daemon(DaemonProcess::SmallFlags(scratch.path()),
                       {"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=200000"});
  // The first message stores the journal for the next daemon. The test drops the descriptor.
  EXPECT_TRUE(Contains(receive(), "FDSTORE=1\nFDNAME=journal"));
  EXPECT_EQ(receive(), "BARRIER=1");
  EXPECT_TRUE(Contains(receive(), "READY=1"));
  EXPECT_EQ(receive(), "WATCHDOG=1");
  EXPECT_EQ(receive(), "WATCHDOG=1");
  daemon.Signal(SIGTERM);
  std::string last = receive();
  while (last == "WATCHDOG=1") last = receive();
  EXPECT_TRUE(Contains(last, "STOPPING=1")) << last;
  EXPECT_EQ(daemon.Wait(), 0);
  close(fd);
}

TEST(DaemonLifecycleTest, SettingsThatCannotWorkEndItWithStatusTwo) {
  const ScratchDirectory scratch;
  DaemonProcess flag({"--host-pool=lots"});
  EXPECT_EQ(flag.Wait(), 2);
  EXPECT_TRUE(Contains(flag.log(), "--host-pool")) << flag.log();
  DaemonProcess setting({"--socket-dir=" + scratch.path() + "/s", "--host-pool=1000000GiB"});
  EXPECT_EQ(setting.Wait(), 2);
  EXPECT_TRUE(Contains(setting.log(), "host_pool_bytes")) << setting.log();
}

// Each message that cannot be parsed would be a line of 217 bytes.
TEST(DaemonLifecycleTest, ClientsDoNotWriteToTheLog) {
  const ScratchDirectory scratch;
  DaemonProcess daemon(DaemonProcess::SmallFlags(scratch.path()));
  ASSERT_TRUE(daemon.WaitUntilReady()) << daemon.log();
  const std::string ready = daemon.log();
  // The hello of a program whose name is not UTF-8.
  const std::string hello("\x08\x01\x12\x02\xff\xfe", 6);
  const int fd = ConnectSeqPacket(scratch.path() + "/s/fd.sock");
  ASSERT_GE(fd, 0);
  ASSERT_EQ(send(fd, hello.data(), hello.size(), MSG_NOSIGNAL), 6);
  char frame[4096];
  EXPECT_GT(recv(fd, frame, sizeof(frame), 0), 0) << "the refusal";
  close(fd);
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.log();
  EXPECT_FALSE(Contains(daemon.log(), "protobuf")) << daemon.log();
  EXPECT_FALSE(Contains(daemon.log(), "UTF-8")) << daemon.log();
}

}  // namespace
}  // namespace memtide
