// Tests how memtided starts and how it ends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
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

TEST(DaemonLifecycleTest, TokensAndChunksOfTheLastDaemonMeanNothingToTheNext) {
  const ScratchDirectory scratch;
  auto daemon = std::make_unique<DaemonProcess>(DaemonProcess::SmallFlags(scratch.path()));
  ASSERT_TRUE(daemon->WaitUntilReady()) << daemon->log();
  const auto before = std::make_unique<Session>(scratch.path() + "/s");
  before->Open();
  const std::vector<uint64_t> chunks = before->Allocate(4);
  daemon->Signal(SIGKILL);
  daemon->Wait();
  daemon = std::make_unique<DaemonProcess>(DaemonProcess::SmallFlags(scratch.path()));
  ASSERT_TRUE(daemon->WaitUntilReady()) << daemon->log();
  Session session(scratch.path() + "/s");
  session.Open();
  v1::RenewResponse renewed;
  EXPECT_EQ(session.sessions().Renew(before->Context().get(), {}, &renewed).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(session.sessions().Renew(session.Context().get(), {}, &renewed).ok());
  for (const uint64_t chunk : chunks) {
    v1::FetchRequest request;
    request.add_chunk_ids(chunk);
    v1::FetchResponse response;
    EXPECT_EQ(session.chunks().Fetch(session.Context().get(), request, &response).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
}

// Chunks pass through the device and the host, and are evicted to SSD all the while.
TEST(DaemonLifecycleTest, EndsInTimeUnderTransfers) {
  const ScratchDirectory scratch;
  DaemonProcess daemon(DaemonProcess::SmallFlags(scratch.path()));
  ASSERT_TRUE(daemon.WaitUntilReady()) << daemon.log();
  std::atomic<int> moved[2] = {};
  std::vector<std::thread> clients;
  for (std::atomic<int>& count : moved) {
    clients.emplace_back([&] {
      Session session(scratch.path() + "/s");
      session.Open();
      const std::vector<uint64_t> chunks = session.Allocate(16);
      for (size_t i = 0;; i = (i + 1) % chunks.size()) {
        v1::FetchRequest fetch;
        fetch.add_chunk_ids(chunks[i]);
        fetch.set_access(v1::ACCESS_WRITE);
        v1::FetchResponse fetched;
        if (!session.chunks().Fetch(session.Context().get(), fetch, &fetched).ok()) return;
        v1::EvictRequest evict;
        evict.set_tier(v1::TIER_SSD);
        evict.add_chunk_ids(chunks[i]);
        v1::EvictResponse evicted;
        if (!session.chunks().Evict(session.Context().get(), evict, &evicted).ok()) return;
        ++count;
      }
    });
  }
  // A client that connects after the signal would be refused.
  while (moved[0] < 10 || moved[1] < 10) std::this_thread::yield();
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.log();
  EXPECT_FALSE(Contains(daemon.log(), "not drained")) << daemon.log();
  for (std::thread& client : clients) client.join();
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

// The socket of a service manager, for sd_notify(3).
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& path)
      : path_(path), fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~NotifySocket() { close(fd_); }
  NotifySocket(const NotifySocket&) = delete;

  const std::string& path() const { return path_; }
  // The next message; empty if none comes in time, where a time is given.
  std::string Receive(std::chrono::milliseconds patience = std::chrono::milliseconds(0)) {
    const timeval timeout = {patience.count() / 1000, patience.count() % 1000 * 1000};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    char text[512];
    const ssize_t got = recv(fd_, text, sizeof(text), 0);
    return std::string(text, got > 0 ? static_cast<size_t>(got) : 0);
  }

 private:
  const std::string path_;
  const int fd_;
};

TEST(DaemonLifecycleTest, TellsSystemdThatItIsReadyAliveAndEnding) {
  const ScratchDirectory scratch;
  NotifySocket socket(scratch.path() + "/notify");
  DaemonProcess daemon(DaemonProcess::SmallFlags(scratch.path()),
                       {"NOTIFY_SOCKET=" + socket.path(), "WATCHDOG_USEC=200000"});
  // The first message stores the journal for the next daemon. The test drops the descriptor.
  EXPECT_TRUE(Contains(socket.Receive(), "FDSTORE=1\nFDNAME=journal"));
  EXPECT_EQ(socket.Receive(), "BARRIER=1");
  EXPECT_TRUE(Contains(socket.Receive(), "READY=1"));
  EXPECT_EQ(socket.Receive(), "WATCHDOG=1");
  EXPECT_EQ(socket.Receive(), "WATCHDOG=1");
  daemon.Signal(SIGTERM);
  std::string last = socket.Receive();
  while (last == "WATCHDOG=1") last = socket.Receive();
  EXPECT_TRUE(Contains(last, "STOPPING=1")) << last;
  EXPECT_EQ(daemon.Wait(), 0);
}

// The threads of a process but its first one, held by ptrace(2) between Stop and the destructor.
class StoppedThreads {
 public:
  void Stop(pid_t pid) {
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
      const pid_t thread = std::stoi(entry.path().filename());
      if (thread == pid) continue;
      ASSERT_EQ(ptrace(PTRACE_SEIZE, thread, nullptr, nullptr), 0) << std::strerror(errno);
      ASSERT_EQ(ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr), 0) << std::strerror(errno);
      ASSERT_EQ(waitpid(thread, nullptr, __WALL), thread) << std::strerror(errno);
      threads_.push_back(thread);
    }
  }
  void Continue() {
    for (const pid_t thread : threads_) ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
    threads_.clear();
  }
  ~StoppedThreads() { Continue(); }
  size_t size() const { return threads_.size(); }

 private:
  std::vector<pid_t> threads_;
};

TEST(DaemonLifecycleTest, AnEngineThatStandsStillIsNotReportedAsAlive) {
  const ScratchDirectory scratch;
  NotifySocket socket(scratch.path() + "/notify");
  DaemonProcess daemon(DaemonProcess::SmallFlags(scratch.path()),
                       {"NOTIFY_SOCKET=" + socket.path(), "WATCHDOG_USEC=200000"});
  while (socket.Receive() != "WATCHDOG=1") {
  }
  StoppedThreads threads;
  threads.Stop(daemon.pid());
  ASSERT_GT(threads.size(), 3u);
  // The messages that were sent before, and for the last tick before the threads stopped.
  while (!socket.Receive(std::chrono::milliseconds(500)).empty()) {
  }
  EXPECT_EQ(socket.Receive(std::chrono::milliseconds(1000)), "") << "ten times the interval";
  threads.Continue();
  EXPECT_EQ(socket.Receive(), "WATCHDOG=1");
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
