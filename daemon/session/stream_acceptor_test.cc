#include "daemon/session/stream_acceptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "base/mutex.h"

namespace memtide {
namespace {

class StreamAcceptorTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/memtide-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    options_.socket_path = directory_ + "/s";
  }
  void TearDown() override {
    acceptor_.reset();
    std::filesystem::remove_all(directory_);
  }
  // Each connection that is handed over gets a byte, and is held until HangUp.
  void Start() {
    auto acceptor = StreamAcceptor::Bind(options_, &counters_);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
    acceptor_->Start([this](int fd) {
      MutexLock lock(&mutex_);
      served_.emplace_back(fd);
      ASSERT_EQ(send(fd, "x", 1, 0), 1);
    });
  }
  void HangUp() {
    MutexLock lock(&mutex_);
    served_.clear();
  }

  OwnedFd Connect() const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    options_.socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_TRUE(fd.valid());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  // Waits until it is known.
  static bool IsServed(const OwnedFd& fd) {
    char byte;
    return recv(fd.get(), &byte, 1, 0) == 1;
  }

  std::string directory_;
  StreamAcceptorOptions options_;
  EdgeCounters counters_;
  Mutex mutex_;
  std::vector<OwnedFd> served_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StreamAcceptor> acceptor_;
};

TEST_F(StreamAcceptorTest, RefusesConnectionsAboveItsLimitUntilSomeAreClosed) {
  options_.max_connections = 8;
  Start();
  std::vector<OwnedFd> held;
  for (int i = 0; i < 6; ++i) {
    held.push_back(Connect());
    EXPECT_TRUE(IsServed(held.back())) << i;
  }
  EXPECT_FALSE(IsServed(Connect())) << "three quarters are one user's";
  HangUp();
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(IsServed(Connect())) << i;
  EXPECT_FALSE(IsServed(Connect()));
  acceptor_.reset();
  EXPECT_EQ(counters_.grpc_connections_refused, 2u);
}

TEST_F(StreamAcceptorTest, OneUsersFloodLeavesRoomForOthers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  options_.max_connections = 8;
  options_.max_per_uid = 2;
  Start();
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(options_.socket_path.c_str(), 0666), 0);
  const OwnedFd first = Connect(), second = Connect();
  EXPECT_TRUE(IsServed(first) && IsServed(second));
  EXPECT_FALSE(IsServed(Connect()));
  const pid_t other = fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    if (setuid(65534) != 0) _exit(2);
    _exit(IsServed(Connect()) ? 0 : 1);
  }
  int status;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// gRPC's listener gives up here (grpc/grpc#16058).
TEST_F(StreamAcceptorTest, WaitsWhileThereAreNoDescriptorsAndGoesOn) {
  Start();
  EXPECT_TRUE(IsServed(Connect()));
  std::vector<OwnedFd> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(OwnedFd(socket(AF_UNIX, SOCK_STREAM, 0)));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  options_.socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  std::vector<OwnedFd> all;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  for (OwnedFd fd(dup(0)); fd.valid(); fd = OwnedFd(dup(0))) all.push_back(std::move(fd));
  EXPECT_EQ(errno, EMFILE);
  for (const OwnedFd& fd : waiting) {
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  // None is served, and none is refused.
  const timeval patience = {0, 300'000};
  ASSERT_EQ(setsockopt(waiting[0].get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  char byte;
  EXPECT_EQ(recv(waiting[0].get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  all.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const timeval for_ever = {};
  ASSERT_EQ(setsockopt(waiting[0].get(), SOL_SOCKET, SO_RCVTIMEO, &for_ever, sizeof(for_ever)), 0);
  for (const OwnedFd& fd : waiting) EXPECT_TRUE(IsServed(fd));
  EXPECT_EQ(counters_.grpc_connections_refused, 0u);
}

TEST_F(StreamAcceptorTest, LeavesHalfOfTheDescriptorsToOthers) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 80;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  Start();
  std::vector<OwnedFd> held;
  for (held.push_back(Connect()); IsServed(held.back()); held.push_back(Connect())) {
  }
  EXPECT_EQ(held.size() - 1, 30u) << "three quarters of a half";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace memtide
