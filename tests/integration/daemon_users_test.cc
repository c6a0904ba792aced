// Tests which users may connect, and which user the daemon takes a client for. Needs root to change
// its user.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <string>

#include "base/clock.h"
#include "tests/integration/daemon_process.h"

namespace memtide {
namespace {

constexpr uid_t kNobody = 65534;
constexpr size_t kTokenBytes = 32;

// Runs `body` in a process of that user and group; returns its result.
int As(uid_t uid, gid_t gid, const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const bool changed = setgroups(0, nullptr) == 0 && setgid(gid) == 0 && setuid(uid) == 0;
    _exit(changed ? body() : 255);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 254;
  return WEXITSTATUS(status);
}

// Asks until the daemon shows as many sessions, for 20 s at most. Users take turns at the engine,
// so that a session may be shown a moment after its client was welcomed. Returns no sessions if a
// call fails.
v1::InspectNodeResponse InspectUntil(int sessions, Session* asker) {
  v1::InspectNodeRequest request;
  request.set_sessions(true);
  request.set_max_chunks(100);
  const Instant due = Now() + std::chrono::seconds(20);
  v1::InspectNodeResponse node;
  do {
    grpc::ClientContext context;
    if (!asker->admin().InspectNode(&context, request, &node).ok()) return {};
  } while (node.sessions_size() < sessions && Now() < due);
  return node;
}

class DaemonUsersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "not root";
    ASSERT_EQ(chmod(scratch_.path().c_str(), 0755), 0);
    ASSERT_TRUE(daemon_.WaitUntilReady()) << daemon_.log();
  }

  const ScratchDirectory scratch_;
  const std::string socket_ = scratch_.path() + "/s/fd.sock";
  DaemonProcess daemon_{DaemonProcess::SmallFlags(scratch_.path())};
};

TEST_F(DaemonUsersTest, AStrangerCannotConnectEvenWhereTheDirectoryIsOpen) {
  const auto connect_errno = [this] { return ConnectSeqPacket(socket_) >= 0 ? 0 : errno; };
  EXPECT_EQ(As(kNobody, kNobody, connect_errno), EACCES) << "the directory keeps strangers out";
  ASSERT_EQ(chmod((scratch_.path() + "/s").c_str(), 0755), 0);
  EXPECT_EQ(As(kNobody, kNobody, connect_errno), EACCES) << "the socket keeps strangers out";
}

// The child starts gRPC, which must not run in this process before.
TEST_F(DaemonUsersTest, AMemberOfTheGroupLearnsSumsOfOthersAndCannotUseTheirTokens) {
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(ready[1]);
    std::string token(kTokenBytes, '\0');
    if (read(ready[0], token.data(), token.size()) != static_cast<ssize_t>(token.size())) _exit(1);
    if (setgroups(0, nullptr) != 0 || setgid(0) != 0 || setuid(kNobody) != 0) _exit(2);
    Session nobody(scratch_.path() + "/s");
    const v1::InspectNodeResponse node = InspectUntil(1, &nobody);
    if (node.sessions_size() != 1 || node.sessions(0).uid() != kNobody) _exit(3);
    if (node.chunks_size() != 0 || node.chunk_count() != 2) _exit(4);
    if (node.others().session_count() != 1 || node.others().job_count() != 1) _exit(5);
    if (node.others().chunk_count() != 2 || node.others().host_share_bytes() == 0) _exit(6);
    grpc::ClientContext of_trace;
    v1::Trace trace;
    const grpc::Status traced = nobody.admin().GetTrace(&of_trace, {}, &trace);
    if (traced.error_code() != grpc::StatusCode::NOT_FOUND) _exit(7);
    grpc::ClientContext stolen;
    stolen.AddMetadata("memtide-token-bin", token);
    v1::RenewResponse renewed;
    const grpc::Status status = nobody.sessions().Renew(&stolen, {}, &renewed);
    _exit(status.error_code() == grpc::StatusCode::UNAUTHENTICATED ? 0 : 8);
  }
  close(ready[0]);
  Session root(scratch_.path() + "/s");
  root.Open();
  EXPECT_EQ(root.Allocate(2).size(), 2u);
  const std::string token = root.first_frame().welcome().token();
  ASSERT_EQ(write(ready[1], token.data(), token.size()), static_cast<ssize_t>(token.size()));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  close(ready[1]);
}

TEST_F(DaemonUsersTest, AMemberOfTheGroupConnectsAsTheUserItIs) {
  int ready[2], finish[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(finish, O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // The group of the directory is the daemon's, which is root here.
    if (setgroups(0, nullptr) != 0 || setgid(0) != 0 || setuid(kNobody) != 0) _exit(1);
    const int fd = ConnectSeqPacket(socket_);
    char frame[4096];
    // The bytes are FdHello{protocol_version: 1}; the answer is the welcome frame.
    if (fd < 0 || send(fd, "\x08\x01", 2, MSG_NOSIGNAL) != 2 || recv(fd, frame, 4096, 0) <= 0) {
      _exit(2);
    }
    char byte = 'x';
    if (write(ready[1], &byte, 1) != 1 || read(finish[0], &byte, 1) != 1) _exit(3);
    _exit(0);
  }
  close(ready[1]);
  char byte = 'x';
  ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the child could not connect";
  Session root(scratch_.path() + "/s");
  const v1::InspectNodeResponse node = InspectUntil(2, &root);
  bool found = false;
  for (const v1::Session& session : node.sessions()) {
    found = found || (session.uid() == kNobody && session.pid() == child);
  }
  EXPECT_TRUE(found) << node.ShortDebugString();
  ASSERT_EQ(write(finish[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ready[0]);
  close(finish[0]);
  close(finish[1]);
}

}  // namespace
}  // namespace memtide
