// Tests more connections than the daemon has descriptors: it serves those that are open, and
// accepts others when some are closed.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "daemon/service/testing/http2_frames.h"
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

// Writes all of it; false: the daemon has closed the connection.
bool Send(int fd, const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

// The bytes that the daemon sends until it closes the connection.
std::string ReceiveAll(int fd) {
  std::string all;
  char bytes[4096];
  ssize_t got;
  while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0) all.append(bytes, static_cast<size_t>(got));
  EXPECT_TRUE(got == 0 || errno == ECONNRESET) << "it stays open: " << std::strerror(errno);
  return all;
}

// The next frame that the daemon sends.
std::string ReceiveFrame(int fd) {
  constexpr size_t kHead = 9;
  std::string frame;
  for (size_t size = kHead; frame.size() < size;) {
    char bytes[4096];
    const ssize_t got = recv(fd, bytes, std::min(sizeof(bytes), size - frame.size()), 0);
    EXPECT_GT(got, 0) << std::strerror(errno);
    if (got <= 0) return std::string(kHead, '\0');
    frame.append(bytes, static_cast<size_t>(got));
    if (frame.size() != kHead) continue;
    for (const int at : {0, 1, 2}) size += static_cast<uint8_t>(frame[at]) << (16 - 8 * at);
  }
  return frame;
}

class Http2FloodTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.WaitUntilReady()) << daemon_.log();
    session_ = std::make_unique<Session>(sockets_);
    session_->Open();
    flood_ = Connect(sockets_ + "/grpc.sock");
    const timeval patience = {kPatience.count(), 0};
    setsockopt(flood_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ASSERT_TRUE(Send(flood_, http2::Preface()));
    settings_ = ReceiveFrame(flood_);
    ASSERT_EQ(settings_[3], http2::kSettings) << "the daemon's first frame";
  }
  // gRPC holds a client to the settings that the client has acknowledged: an acknowledgement that
  // comes before gRPC has written them is one of nothing.
  void Acknowledge() {
    ASSERT_TRUE(Send(flood_, http2::Frame(http2::kSettings, http2::kAck, 0, "")));
  }
  void TearDown() override {
    close(flood_);
    EXPECT_EQ(session_->Allocate(1).size(), 1u) << "other connections are served";
    daemon_.Signal(SIGTERM);
    EXPECT_EQ(daemon_.Wait(), 0) << daemon_.log();
  }

  ScratchDirectory directory_;
  const std::string sockets_ = directory_.path() + "/s";
  DaemonProcess daemon_{DaemonProcess::SmallFlags(directory_.path())};
  std::unique_ptr<Session> session_;
  int flood_ = -1;
  std::string settings_;
};

TEST_F(Http2FloodTest, PingsEndTheirConnectionAndNoOther) {
  Acknowledge();
  std::string pings;
  for (int i = 0; i < 1000; ++i) pings += http2::Frame(http2::kPing, 0, 0, "12345678");
  Send(flood_, pings);
  EXPECT_THAT(ReceiveAll(flood_), testing::HasSubstr("too_many_pings"));
}

TEST_F(Http2FloodTest, StreamsAboveTheLimitAreNotServed) {
  Acknowledge();
  Send(flood_, http2::Calls(4000));
  ReceiveAll(flood_);
  // The setting MAX_CONCURRENT_STREAMS (3) is 1,024.
  EXPECT_THAT(settings_, testing::HasSubstr(std::string("\0\x03\0\0\x04\0", 6)));
}

// gRPC has no limit for such a client.
TEST_F(Http2FloodTest, StreamsEndTheirConnectionWhenItAcknowledgesNoSetting) {
  for (int i = 0; i < 4000; ++i) {
    v1::RenewResponse renewed;
    ASSERT_TRUE(session_->sessions().Renew(session_->Context().get(), {}, &renewed).ok());
  }
  Send(flood_, http2::Calls(4000));
  ReceiveAll(flood_);
  v1::GetMetricsResponse metrics;
  grpc::ClientContext context;
  ASSERT_TRUE(session_->admin().GetMetrics(&context, {}, &metrics).ok());
  EXPECT_THAT(metrics.text(), testing::HasSubstr("{what=\"grpc_connection\"} 1\n"))
      << "calls that have ended do not count";
}

}  // namespace
}  // namespace memtide
