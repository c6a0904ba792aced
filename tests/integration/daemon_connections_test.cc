// Tests more connections than the daemon has descriptors: it serves those that are open, and
// accepts others when some are closed.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "tests/integration/daemon_process.h"

namespace memtide {
namespace {

constexpr rlim_t kDescriptors = 200;
constexpr int kConnections = 300;
constexpr std::chrono::seconds kPatience{30};

// Opens a connection and sends nothing.
int Connect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0)
      << std::strerror(errno);
  return fd;
}

TEST(DaemonConnectionsTest, AFloodOfConnectionsLeavesOtherSessionsAlone) {
  ScratchDirectory directory;
  const std::string sockets = directory.path() + "/s";
  DaemonProcess daemon(DaemonProcess::SmallFlags(directory.path()));
  ASSERT_TRUE(daemon.WaitUntilReady()) << daemon.log();
  const rlimit few = {kDescriptors, kDescriptors};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr), 0) << std::strerror(errno);
  Session session(sockets);
  ASSERT_TRUE(session.welcome());
  session.Open();

  std::vector<int> flood;
  for (int i = 0; i < kConnections; ++i) flood.push_back(Connect(sockets + "/grpc.sock"));
  // The daemon handles connections in the order in which they were made.
  const timeval patience = {10, 0};
  ASSERT_EQ(setsockopt(flood.back(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  char byte;
  EXPECT_EQ(recv(flood.back(), &byte, 1, 0), 0) << "the last one is refused";
  EXPECT_EQ(session.Allocate(2).size(), 2u) << "descriptors for memory are left";
  for (const int fd : flood) close(fd);

  Session next(sockets);
  ASSERT_TRUE(next.welcome());
  ASSERT_TRUE(next.channel()->WaitForConnected(std::chrono::system_clock::now() + kPatience));
  v1::InspectNodeResponse node;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const grpc::Status status = next.admin().InspectNode(&context, {}, &node);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(node.session_count(), 2u) << "no session was ended";
  EXPECT_EQ(session.Allocate(1).size(), 1u);
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.log();
  EXPECT_NE(daemon.log().find("a connection is refused: max_"), std::string::npos);
}

}  // namespace
}  // namespace memtide
