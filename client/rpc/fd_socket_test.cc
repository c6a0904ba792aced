// FdSocket against a daemon that the test imitates, including one that violates the protocol.
#include "client/rpc/fd_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace memtide::client {
namespace {

// The listening side, in a directory of its own.
class FdSocketTest : public testing::Test {
 protected:
  FdSocketTest() {
    char made[] = "/tmp/memtide-fd-XXXXXX";
    EXPECT_NE(mkdtemp(made), nullptr);
    directory_ = made;
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, (directory_ + "/fd.sock").c_str(), sizeof(address.sun_path) - 1);
    listener_ = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
  }
  ~FdSocketTest() override {
    unlink((directory_ + "/fd.sock").c_str());
    rmdir(directory_.c_str());
  }

  // Accepts one client, stores its hello, and replies with `answer`.
  absl::StatusOr<FdSocket> ConnectTo(const v1::FdFrame& answer) {
    std::thread daemon([&] {
      peer_ = Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      char packet[4096];
      const ssize_t size = recv(peer_.get(), packet, sizeof(packet), 0);
      EXPECT_TRUE(size > 0 && hello_.ParseFromArray(packet, static_cast<int>(size)));
      Send(answer.SerializeAsString(), {});
    });
    absl::StatusOr<FdSocket> socket = FdSocket::Connect(directory_, "a program");
    daemon.join();
    return socket;
  }
  FdSocket Welcome() {
    v1::FdFrame welcome;
    welcome.mutable_welcome()->set_token("token");
    absl::StatusOr<FdSocket> socket = ConnectTo(welcome);
    EXPECT_TRUE(socket.ok()) << socket.status();
    return std::move(socket).value();
  }

  void Send(const std::string& packet, const std::vector<int>& descriptors) {
    iovec data = {const_cast<char*>(packet.data()), packet.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
    }
    EXPECT_EQ(sendmsg(peer_.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(packet.size()));
  }

  std::string directory_;
  Descriptor listener_, peer_;
  v1::FdHello hello_;
};

std::string RegionPacket() {
  v1::FdFrame frame;
  frame.mutable_region()->set_region_id(7);
  frame.mutable_region()->set_size_bytes(4096);
  return frame.SerializeAsString();
}

std::string RevokePacket() {
  v1::FdFrame frame;
  frame.mutable_revoke()->set_count(3);
  return frame.SerializeAsString();
}

TEST_F(FdSocketTest, SaysHelloAndKeepsTheWelcome) {
  const FdSocket socket = Welcome();
  EXPECT_EQ(socket.welcome().token(), "token");
  EXPECT_EQ(hello_.protocol_version(), 1u);
  EXPECT_EQ(hello_.program(), "a program");
}

TEST_F(FdSocketTest, ARefusalIsTheDaemonsOwnError) {
  v1::FdFrame refusal;
  refusal.mutable_refused()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  refusal.mutable_refused()->set_message("256 sessions");
  const absl::Status status = ConnectTo(refusal).status();
  EXPECT_EQ(status, absl::ResourceExhaustedError("256 sessions"));
}

TEST_F(FdSocketTest, RegionsComeWithTheirDescriptorClosedOnExec) {
  FdSocket socket = Welcome();
  const Descriptor memory(memfd_create("region", 0));
  ASSERT_EQ(ftruncate(memory.get(), 4096), 0);
  Send(RegionPacket(), {memory.get()});
  const absl::StatusOr<FdSocket::Received> received = socket.Receive();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->frame.region().region_id(), 7u);
  ASSERT_TRUE(received->descriptor.valid());
  EXPECT_EQ(fcntl(received->descriptor.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(FdSocketTest, TheDescriptorsThatSelectKnowsAreLeftToTheProgram) {
  FdSocket socket = Welcome();
  const Descriptor memory(memfd_create("region", 0));
  Send(RegionPacket(), {memory.get()});
  const absl::StatusOr<FdSocket::Received> received = socket.Receive();
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_GE(received->descriptor.get(), 1024);
}

TEST_F(FdSocketTest, TheLimitOfOpenFilesIsNamedWhereItIsReached) {
  FdSocket socket = Welcome();
  const Descriptor memory(memfd_create("region", 0));
  Send(RegionPacket(), {memory.get()});
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // The lowest number that is free is the first that the limit forbids.
  const Descriptor next(memfd_create("next", 0));
  const rlimit full = {static_cast<rlim_t>(next.get()), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
  const absl::Status status = socket.Receive().status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("(ulimit -n)"));
}

TEST_F(FdSocketTest, UnexpectedDescriptorsAreRefusedAndClosed) {
  FdSocket socket = Welcome();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const Descriptor out(ends[0]);
  {
    const Descriptor in(ends[1]);
    Send(RevokePacket(), {in.get()});
  }
  EXPECT_EQ(socket.Receive().status().code(), absl::StatusCode::kInternal);
  char byte;
  // End of file shows that the passed write end is closed in every process.
  EXPECT_EQ(read(out.get(), &byte, 1), 0);
}

TEST_F(FdSocketTest, ARegionWithoutOrWithTwoDescriptorsIsRefused) {
  for (const std::vector<int>& descriptors : {std::vector<int>{}, std::vector<int>{0, 0}}) {
    FdSocket socket = Welcome();
    Send(RegionPacket(), descriptors);
    EXPECT_EQ(socket.Receive().status().code(), absl::StatusCode::kInternal);
  }
}

TEST_F(FdSocketTest, APacketThatIsTooLongIsRefused) {
  FdSocket socket = Welcome();
  Send(std::string(5000, 'x'), {});
  EXPECT_EQ(socket.Receive().status().code(), absl::StatusCode::kInternal);
}

TEST_F(FdSocketTest, TheEndOfTheDaemonIsUnavailable) {
  FdSocket socket = Welcome();
  EXPECT_FALSE(socket.PeerClosed());
  peer_ = Descriptor();
  EXPECT_TRUE(socket.PeerClosed());
  EXPECT_EQ(socket.Receive().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(FdSocketTest, ShutdownEndsAWait) {
  FdSocket socket = Welcome();
  std::thread reader(
      [&] { EXPECT_EQ(socket.Receive().status().code(), absl::StatusCode::kUnavailable); });
  socket.Shutdown();
  reader.join();
}

TEST(FdSocketPathTest, AnUnusablePathIsNamedInTheError) {
  EXPECT_EQ(FdSocket::Connect(std::string(200, 'x'), "").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FdSocket::Connect("/tmp/memtide-nobody", "").status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace memtide::client
