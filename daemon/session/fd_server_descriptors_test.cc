// FdServer while the process has no descriptors left, by a real RLIMIT_NOFILE.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "daemon/io/owned_fd.h"
#include "daemon/session/fd_server.h"
#include "memtide/v1/session.pb.h"

namespace memtide {
namespace {

// The next frame; an empty one after 30 s, or at the end of the connection.
v1::FdFrame Receive(const OwnedFd& fd) {
  const timeval patience = {30, 0};
  EXPECT_EQ(setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  char packet[4096];
  const ssize_t got = recv(fd.get(), packet, sizeof(packet), 0);
  v1::FdFrame frame;
  EXPECT_TRUE(got > 0 && frame.ParseFromArray(packet, static_cast<int>(got))) << errno;
  return frame;
}

TEST(FdServerDescriptorsTest, RefusesByNameWhileThereAreNoneAndGoesOn) {
  char name[] = "/tmp/memtide-test-XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  FdServerOptions options;
  options.socket_path = std::string(name) + "/fd.sock";
  TokenTable tokens;
  EdgeCounters counters;
  auto server = FdServer::Bind(
      options, &tokens, &counters, [](const Event&) {},
      [](RegionId) -> absl::StatusOr<MemoryExport> { return absl::NotFoundError("none"); });
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Start();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  options.socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const auto connect_to = [&address](const OwnedFd& fd) {
    return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  };
  // Made while there are descriptors.
  std::vector<OwnedFd> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)));
  }
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<OwnedFd> all;
  for (OwnedFd fd(dup(0)); fd.valid(); fd = OwnedFd(dup(0))) all.push_back(std::move(fd));
  EXPECT_EQ(errno, EMFILE);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(connect_to(clients[i]), 0) << std::strerror(errno);
    const v1::FdFrame frame = Receive(clients[i]);
    EXPECT_NE(frame.refused().message().find("LimitNOFILE"), std::string::npos) << i;
  }
  EXPECT_EQ(counters.connections_refused, 3u);
  all.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(connect_to(clients[3]), 0) << std::strerror(errno);
  v1::FdHello hello;
  hello.set_protocol_version(1);
  const std::string packet = hello.SerializeAsString();
  ASSERT_EQ(send(clients[3].get(), packet.data(), packet.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(packet.size()));
  EXPECT_TRUE(Receive(clients[3]).has_welcome());
  server->reset();
  std::filesystem::remove_all(name);
}

}  // namespace
}  // namespace memtide
