#include "daemon/session/fd_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/session/fd_packet.h"
#include "memtide/v1/session.pb.h"

namespace memtide {
namespace {

// The engine's place: keeps events, and lets a test wait for the next.
class Events {
 public:
  void Post(Event event) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
    changed_.SignalAll();
  }
  template <typename Wanted>
  Wanted Next() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    while (events_.empty()) changed_.Wait(&mutex_);
    const Wanted event = std::get<Wanted>(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
};

// A client's end of the socket. Blocking.
class Client {
 public:
  explicit Client(const std::string& path) : fd_(socket(AF_UNIX, SOCK_SEQPACKET, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Client() { Close(); }
  Client(const Client&) = delete;

  bool connected() const { return connected_; }
  int fd() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // False: the server has closed the connection already.
  bool TrySend(absl::string_view packet) {
    const ssize_t sent = send(fd_, packet.data(), packet.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(sent == static_cast<ssize_t>(packet.size()) || errno == EPIPE ||
                errno == ECONNRESET)
        << errno;
    return sent >= 0;
  }
  void Send(absl::string_view packet) { EXPECT_TRUE(TrySend(packet)); }
  static std::string Hello() {
    v1::FdHello hello;
    hello.set_protocol_version(1);
    return hello.SerializeAsString();
  }
  void SayHello() { Send(Hello()); }
  // The next frame, and its descriptor or -1; an empty frame at the end of the connection.
  v1::FdFrame Receive(int* passed_fd = nullptr) {
    char packet[kMaxPacketBytes];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {packet, sizeof(packet)};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    if (passed_fd != nullptr) *passed_fd = -1;
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && passed_fd) {
      std::memcpy(passed_fd, CMSG_DATA(header), sizeof(int));
    }
    v1::FdFrame frame;
    EXPECT_TRUE(got <= 0 || frame.ParseFromArray(packet, static_cast<int>(got)));
    return frame;
  }

 private:
  int fd_;
  bool connected_ = false;
};

class FdServerTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/memtide-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    options_.socket_path = directory_ + "/fd.sock";
    options_.boot_id = "boot";
    options_.grpc_target = "unix:there";
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  void StartServer() {
    auto server = FdServer::Bind(
        options_, &tokens_, &counters_, [this](Event event) { events_.Post(std::move(event)); },
        [this](RegionId region) -> absl::StatusOr<MemoryExport> {
          if (lacking_ > 0 && lacking_-- > 0) return absl::ResourceExhaustedError("EMFILE");
          if (region != RegionId(1)) return absl::NotFoundError("no such region");
          return MemoryExport{MemoryKind::kSharedMemory, MiB(2),
                              memfd_create("region", MFD_CLOEXEC), ""};
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->Start();
  }
  SessionId Greet(Client* client) {
    client->SayHello();
    return events_.Next<ClientConnected>().session;
  }
  static size_t OpenDescriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
      ++count;
    }
    return count;
  }

  std::string directory_;
  FdServerOptions options_;
  TokenTable tokens_;
  EdgeCounters counters_;
  Events events_;
  std::atomic<int> lacking_{0};  // The next `lacking_` exports fail.
  std::unique_ptr<FdServer> server_;
};

TEST_F(FdServerTest, WelcomesAClientWithATokenOfItsOwn) {
  StartServer();
  Client client(options_.socket_path);
  client.SayHello();
  const auto connected = events_.Next<ClientConnected>();
  EXPECT_EQ(connected.uid, getuid());
  EXPECT_EQ(connected.pid, getpid());
  std::vector<gid_t> groups(NGROUPS_MAX);
  const int count = getgroups(NGROUPS_MAX, groups.data());
  ASSERT_GE(count, 0);
  std::set<uint32_t> expected(groups.begin(), groups.begin() + count);
  expected.insert(getegid());
  EXPECT_EQ(connected.groups, std::vector<uint32_t>(expected.begin(), expected.end()));
  const v1::FdFrame frame = client.Receive();
  EXPECT_EQ(frame.welcome().boot_id(), "boot");
  EXPECT_EQ(frame.welcome().grpc_target(), "unix:there");
  const auto identity = tokens_.Find(frame.welcome().token());
  ASSERT_TRUE(identity.has_value());
  EXPECT_EQ(identity->session, connected.session);
}

TEST_F(FdServerTest, EndsTheSessionAndItsTokenWithTheConnection) {
  StartServer();
  Client client(options_.socket_path);
  const SessionId session = Greet(&client);
  const std::string token = client.Receive().welcome().token();
  client.Close();
  EXPECT_EQ(events_.Next<ClientGone>().session, session);
  EXPECT_FALSE(tokens_.Find(token).has_value());
}

TEST_F(FdServerTest, PassesRegionsThatGoAndRevocations) {
  StartServer();
  Client client(options_.socket_path);
  const SessionId session = Greet(&client);
  client.Receive();
  server_->SendRegion(session, RegionId(2));  // Gone before it was sent: skipped.
  server_->SendRegion(session, RegionId(1));
  server_->SendRegionGone({session, RegionId(1), 5, 4});
  server_->SendLeaseBudget({session, 4, 3, 5});
  server_->SendRevoke({session, 7, {ChunkId(3)}});
  int fd;
  const v1::FdFrame region = client.Receive(&fd);
  EXPECT_EQ(region.region().region_id(), 1u);
  EXPECT_EQ(region.region().size_bytes(), MiB(2).count());
  ASSERT_GE(fd, 0);
  close(fd);
  const v1::FdFrame gone = client.Receive();
  EXPECT_EQ(gone.region_gone().region_id(), 1u);
  EXPECT_EQ(gone.region_gone().device_slots(), 5u);
  EXPECT_EQ(gone.region_gone().lease_budget(), 4u);
  EXPECT_EQ(client.Receive().lease_budget().leases(), 3u);
  const v1::FdFrame revoke = client.Receive();
  EXPECT_EQ(revoke.revoke().count(), 7u);
  ASSERT_EQ(revoke.revoke().chunk_ids_size(), 1);
  EXPECT_EQ(revoke.revoke().chunk_ids(0), 3u);
}

TEST_F(FdServerTest, ARegionWaitsWhileThereAreNoDescriptors) {
  StartServer();
  Client client(options_.socket_path);
  const SessionId session = Greet(&client);
  client.Receive();
  lacking_ = 3;
  server_->SendRegion(session, RegionId(1));
  server_->SendLeaseBudget({session, 4, 3, 5});
  int fd;
  EXPECT_EQ(client.Receive(&fd).region().region_id(), 1u);
  ASSERT_GE(fd, 0);
  close(fd);
  EXPECT_EQ(client.Receive().lease_budget().leases(), 3u) << "in their order";
  EXPECT_EQ(counters_.connections_refused, 0u);
}

TEST_F(FdServerTest, TellsARefusedSessionWhy) {
  StartServer();
  Client client(options_.socket_path);
  const SessionId session = Greet(&client);
  client.Receive();
  server_->Close(session, absl::ResourceExhaustedError("sessions: 256 already"));
  EXPECT_EQ(client.Receive().refused().message(), "sessions: 256 already");
  EXPECT_EQ(client.Receive().frame_case(), v1::FdFrame::FRAME_NOT_SET);
  EXPECT_EQ(events_.Next<ClientGone>().session, session);
  server_->SendRevoke({session, 1, {}});  // It has no connection: nothing happens.
}

TEST_F(FdServerTest, EndsASessionThatAskedForItWithoutARefusal) {
  StartServer();
  Client client(options_.socket_path);
  const SessionId session = Greet(&client);
  client.Receive();
  server_->Close(session, absl::OkStatus());
  EXPECT_EQ(client.Receive().frame_case(), v1::FdFrame::FRAME_NOT_SET);
  EXPECT_EQ(events_.Next<ClientGone>().session, session);
}

TEST_F(FdServerTest, SaysWhenAKilledProcessIsQuiet) {
  options_.watch_processes = true;
  StartServer();
  const pid_t child = fork();
  if (child == 0) {
    const Client client(options_.socket_path);
    send(client.fd(), Client::Hello().data(), Client::Hello().size(), MSG_NOSIGNAL);
    for (;;) pause();
  }
  const SessionId session = events_.Next<ClientConnected>().session;
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(events_.Next<ClientGone>().session, session);
  const auto quiet = events_.Next<ClientQuiet>();
  EXPECT_EQ(quiet.session, session);
  EXPECT_FALSE(quiet.process_lives);
}

TEST_F(FdServerTest, WatchesNoProcessThatClosedItsSession) {
  options_.watch_processes = true;
  options_.max_watched_per_uid = 1;  // The first of two is quiet at once.
  StartServer();
  Client closed(options_.socket_path), first(options_.socket_path), second(options_.socket_path);
  const SessionId of_closed = Greet(&closed), of_first = Greet(&first), of_second = Greet(&second);
  server_->Close(of_closed, absl::OkStatus());
  EXPECT_EQ(events_.Next<ClientGone>().session, of_closed);
  first.Close();
  EXPECT_EQ(events_.Next<ClientGone>().session, of_first);
  second.Close();
  EXPECT_EQ(events_.Next<ClientGone>().session, of_second);
  EXPECT_EQ(events_.Next<ClientQuiet>().session, of_first);
}

TEST_F(FdServerTest, ClosesWhoSaysNothingInTime) {
  options_.hello_within = std::chrono::milliseconds(20);
  StartServer();
  Client client(options_.socket_path);
  EXPECT_EQ(client.Receive().refused().code(), 4);
  EXPECT_EQ(client.Receive().frame_case(), v1::FdFrame::FRAME_NOT_SET);
}

TEST_F(FdServerTest, RefusesMalformedSecondAndLongPackets) {
  StartServer();
  Client malformed(options_.socket_path);
  malformed.Send("\xff\xff");
  EXPECT_EQ(malformed.Receive().refused().code(), 3);
  Client too_long(options_.socket_path);
  too_long.Send(std::string(kMaxPacketBytes + 1, 'x'));
  EXPECT_EQ(too_long.Receive().refused().code(), 3);
  Client twice(options_.socket_path);
  Greet(&twice);
  twice.Receive();
  twice.SayHello();
  EXPECT_EQ(twice.Receive().refused().code(), 3);
  EXPECT_EQ(counters_.connections_refused, 3u);
}

TEST_F(FdServerTest, TakesNoDescriptorsFromClients) {
  StartServer();
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    Client client(options_.socket_path);
    int fds[4] = {0, 0, 0, 0};
    char byte = 'x';
    iovec part = {&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(fds));
    std::memcpy(CMSG_DATA(header), fds, sizeof(fds));
    ASSERT_EQ(sendmsg(client.fd(), &message, 0), 1);
    EXPECT_EQ(client.Receive().refused().code(), 3);
    EXPECT_EQ(client.Receive().frame_case(), v1::FdFrame::FRAME_NOT_SET);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(FdServerTest, RefusesConnectionsAboveItsLimits) {
  options_.max_connections = 3;
  options_.max_greeting_per_uid = 2;
  StartServer();
  Client silent_one(options_.socket_path), silent_two(options_.socket_path);
  Client third(options_.socket_path);
  const v1::FdFrame greeting = third.Receive();
  EXPECT_EQ(greeting.refused().code(), 8);
  EXPECT_NE(greeting.refused().message().find("max_greeting_per_uid"), std::string::npos);
  Greet(&silent_one);
  Greet(&silent_two);
  Client fourth(options_.socket_path), fifth(options_.socket_path);
  EXPECT_NE(fifth.Receive().refused().message().find("max_connections"), std::string::npos);
}

TEST_F(FdServerTest, ClosesASessionThatDoesNotRead) {
  options_.max_queued_frames = 8;
  StartServer();
  Client client(options_.socket_path);
  const SessionId session = Greet(&client);
  for (int i = 0; i < 2000; ++i) {
    server_->SendRevoke({session, 1, std::vector<ChunkId>(kMaxRevokedChunks, ChunkId(UINT64_MAX))});
  }
  EXPECT_EQ(events_.Next<ClientGone>().session, session);
}

TEST_F(FdServerTest, EndsEverySessionWhenDestroyed) {
  StartServer();
  Client client(options_.socket_path);
  const SessionId session = Greet(&client);
  server_.reset();
  EXPECT_EQ(events_.Next<ClientGone>().session, session);
}

TEST_F(FdServerTest, LastsThroughAFloodOfHalfDoneHandshakes) {
  StartServer();
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 1000; ++i) {
    Client client(options_.socket_path);
    ASSERT_TRUE(client.connected()) << i;
    // The server may have refused this one already, for there are too many.
    if (i % 3 == 0) client.TrySend("\x08");
  }
  Client client(options_.socket_path);
  // The server takes connections in order: it has seen the end of all others when it answers.
  for (v1::FdFrame frame; !frame.has_welcome();) {
    Client last(options_.socket_path);
    if (last.TrySend(Client::Hello())) frame = last.Receive();
  }
  client.Close();
  server_.reset();
  EXPECT_LT(OpenDescriptors(), before);
}

}  // namespace
}  // namespace memtide
