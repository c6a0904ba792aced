#include "daemon/session/fd_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/session/fd_packet.h"
#include "daemon/session/seqpacket.h"

namespace memtide {
namespace {

// While descriptors are short: soon enough for a client, and no load.
constexpr int kRetryMs = 100;

// Rounded down, the last part of a millisecond would be a busy loop.
int CeilMs(Duration time) {
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(time).count());
}

}  // namespace

struct FdServer::Connection {
  int fd = -1;
  Peer peer;
  // Set by a valid hello.
  absl::optional<SessionId> session;
  Token token;
  std::deque<Frame> outbox;
  // epoll also watches for room to write.
  bool awaits_room = false;
  OwnedFd process;       // A pidfd, where processes are watched.
  bool orderly = false;  // The client closed the session itself.
  bool is_cut = false;   // The server ends the connection, and the process may live.
};

absl::StatusOr<std::unique_ptr<FdServer>> FdServer::Bind(FdServerOptions options,
                                                         TokenTable* tokens, EdgeCounters* counters,
                                                         Post post, ExportRegion export_region) {
  std::unique_ptr<FdServer> server(new FdServer(std::move(options), tokens, counters,
                                                std::move(post), std::move(export_region)));
  MEMTIDE_RETURN_IF_ERROR(server->Listen());
  return server;
}

void FdServer::Start() {
  MEMTIDE_CHECK(!thread_.joinable()) << "started twice";
  thread_ = std::thread([this] { Serve(); });
}

FdServer::FdServer(FdServerOptions options, TokenTable* tokens, EdgeCounters* counters, Post post,
                   ExportRegion export_region)
    : options_(std::move(options)),
      tokens_(tokens),
      counters_(counters),
      post_(std::move(post)),
      export_region_(std::move(export_region)),
      quiet_watch_(options_.max_watched_per_uid) {}

FdServer::~FdServer() {
  if (thread_.joinable()) {
    {
      MutexLock lock(&mutex_);
      stop_ = true;
    }
    const uint64_t one = 1;
    MEMTIDE_CHECK(write(wake_fd_, &one, sizeof(one)) == sizeof(one)) << std::strerror(errno);
    thread_.join();
  }
  // Only the server's thread uses connections_ until it has ended.
  while (!connections_.empty()) Remove(connections_.begin()->second.get());
  for (const int fd : {listen_fd_, epoll_fd_, wake_fd_, spare_fd_}) {
    if (fd >= 0) close(fd);
  }
}

absl::Status FdServer::Listen() {
  MEMTIDE_ASSIGN_OR_RETURN(listen_fd_, ListenUnix(options_.socket_path, SOCK_SEQPACKET));
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (const int fd : {listen_fd_, wake_fd_}) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
      return absl::InternalError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

void FdServer::SendRegion(SessionId session, RegionId region) {
  Queue({session, RegionFrame{region}});
}

void FdServer::SendRegionGone(const memtide::SendRegionGone& gone) {
  Queue({gone.session, EncodeRegionGone(gone.region, gone.device_slots, gone.lease_budget)});
}

void FdServer::SendLeaseBudget(const memtide::SendLeaseBudget& budget) {
  Queue({budget.session, EncodeLeaseBudget(budget)});
}

void FdServer::SendRevoke(const Revoke& revoke) {
  Queue({revoke.session, EncodeRevoke(revoke.count, revoke.chunks)});
}

void FdServer::Close(SessionId session, absl::Status reason) {
  Queue({session, std::move(reason)});
}

void FdServer::Queue(Command command) {
  MutexLock lock(&mutex_);
  commands_.push_back(std::move(command));
  // The write adds to the eventfd's counter and cannot block. If the counter is full, the thread is
  // already about to wake.
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void FdServer::Serve() {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int count = epoll_wait(epoll_fd_, events.data(), events.size(), NextTimeout());
    MEMTIDE_CHECK(count >= 0 || errno == EINTR) << "epoll_wait: " << std::strerror(errno);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listen_fd_) {
        AcceptAll();
      } else if (fd == wake_fd_) {
        // The read resets the counter, which epoll would otherwise report again and again.
        uint64_t wakes;
        [[maybe_unused]] const ssize_t got = read(wake_fd_, &wakes, sizeof(wakes));
      } else if (const auto it = connections_.find(fd); it != connections_.end()) {
        // A new connection may have taken the descriptor of one that was closed in this round; it
        // is then polled once without need.
        Connection* const connection = it->second.get();
        if ((events[i].events & EPOLLOUT) != 0) Flush(connection);
        // Flush may have removed the connection. Errors and hang-ups need no branch: Read finds the
        // end.
        if (connections_.count(fd) != 0) Read(connections_[fd].get());
      }
    }
    FlushLacking();
    RunCommands();
    PostQuiet();
    MutexLock lock(&mutex_);
    if (stop_) return;
  }
}

int FdServer::NextTimeout() {
  int timeout_ms = CloseSilentOnes();
  const auto limit = [&timeout_ms](int ms) {
    timeout_ms = timeout_ms < 0 ? ms : std::min(timeout_ms, ms);
  };
  // No event says that the process has descriptors again.
  if (!lacking_.empty()) limit(kRetryMs);
  const absl::optional<Duration> quiet = quiet_watch_.next(Now());
  if (quiet.has_value()) limit(CeilMs(*quiet));
  return timeout_ms;
}

void FdServer::PostQuiet() {
  for (const ClientQuiet& quiet : quiet_watch_.Take(Now())) {
    post_(quiet);
  }
}

void FdServer::AcceptAll() {
  for (;;) {
    // Another thread may have taken the descriptor before the spare one was opened again.
    if (spare_fd_ < 0) spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && spare_fd_ >= 0) {
      // A connection that stays in the queue keeps epoll awake, so it is accepted with the spare
      // descriptor, and refused.
      close(spare_fd_);
      fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) {
        ++counters_->connections_refused;
        [[maybe_unused]] const auto sent =
            SendPacket(fd,
                       EncodeRefused(absl::ResourceExhaustedError(
                           "the daemon has no file descriptors left; raise its LimitNOFILE")),
                       -1);
        close(fd);
      }
      spare_fd_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
      continue;
    }
    // ECONNABORTED is about one peer that has left; others may wait behind it.
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) return;
    Admit(fd);
  }
}

absl::Status FdServer::CheckLimits(uint32_t uid) const {
  if (connections_.size() >= options_.max_connections) {
    return absl::ResourceExhaustedError(absl::StrCat("max_connections: the node has ",
                                                     options_.max_connections,
                                                     " connections already; end one"));
  }
  const auto it = greeting_per_uid_.find(uid);
  // Without this limit, one user's connections that send nothing could take all places.
  if (it != greeting_per_uid_.end() && it->second >= options_.max_greeting_per_uid) {
    return absl::ResourceExhaustedError(absl::StrCat("max_greeting_per_uid: uid ", uid, " has ",
                                                     it->second,
                                                     " connections that have not sent an FdHello"));
  }
  return absl::OkStatus();
}

void FdServer::Admit(int fd) {
  auto connection = std::make_unique<Connection>();
  connection->fd = fd;
  const auto peer = PeerOf(fd);
  const absl::Status status = peer.ok() ? CheckLimits(peer->uid) : peer.status();
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (!status.ok() || epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    const absl::Status reason =
        status.ok() ? absl::ResourceExhaustedError("the kernel refuses to watch the socket")
                    : status;
    ++counters_->connections_refused;
    [[maybe_unused]] const auto sent = SendPacket(fd, EncodeRefused(reason), -1);
    close(fd);
    return;
  }
  connection->peer = *peer;
  ++greeting_per_uid_[peer->uid];
  greeting_.emplace_back(Now() + options_.hello_within, fd);
  connections_.emplace(fd, std::move(connection));
}

int FdServer::CloseSilentOnes() {
  const Instant now = Now();
  // All connections have the same time, so their deadlines are in the order of their arrival.
  while (!greeting_.empty() && greeting_.front().first <= now) {
    Refuse(connections_.at(greeting_.front().second).get(),
           absl::DeadlineExceededError("the client sent no FdHello in time"));
  }
  if (greeting_.empty()) return -1;
  return CeilMs(greeting_.front().first - now);
}

void FdServer::Read(Connection* connection) {
  // Read takes one packet for each event: epoll is level-triggered and reports the rest, so no peer
  // keeps the thread.
  std::string packet;
  const absl::StatusOr<ReadResult> result = ReadPacket(connection->fd, &packet);
  if (!result.ok()) return Refuse(connection, result.status());
  if (*result == ReadResult::kEnd) return Remove(connection);
  if (*result == ReadResult::kNothing) return;
  const absl::Status greeted =
      connection->session
          ? absl::InvalidArgumentError("a client may send one FdHello and nothing else")
          : Greet(connection, packet);
  if (!greeted.ok()) Refuse(connection, greeted);
}

absl::Status FdServer::Greet(Connection* connection, absl::string_view packet) {
  MEMTIDE_RETURN_IF_ERROR(DecodeHello(packet).status());
  const SessionId session(next_session_++);
  MEMTIDE_ASSIGN_OR_RETURN(connection->token, tokens_->Mint({session, connection->peer.uid}));
  greeting_.erase(std::find_if(greeting_.begin(), greeting_.end(),
                               [&](const auto& entry) { return entry.second == connection->fd; }));
  if (--greeting_per_uid_[connection->peer.uid] == 0) greeting_per_uid_.erase(connection->peer.uid);
  connection->session = session;
  if (options_.watch_processes) {
    connection->process = ProcessOf(connection->fd, connection->peer);
  }
  sessions_.emplace(session, connection);
  post_(ClientConnected{session, connection->peer.uid, connection->peer.pid,
                        GroupsOf(connection->fd)});
  // The engine may have refused the session at once: then no welcome goes out before the refusal.
  RunCommands();
  if (Connection* const still_here = FindSession(session)) {
    Append(still_here, EncodeWelcome({still_here->token, options_.boot_id, options_.grpc_target}));
  }
  return absl::OkStatus();
}

void FdServer::RunCommands() {
  // The commands run without the lock: sending is a system call, and Flush asks the Mover.
  std::vector<Command> commands;
  {
    MutexLock lock(&mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    if (Connection* const connection = FindSession(command.session)) {
      Append(connection, std::move(command.frame));
    }
  }
}

void FdServer::Append(Connection* connection, Frame frame) {
  if (const auto* reason = std::get_if<absl::Status>(&frame)) return End(connection, *reason);
  if (connection->outbox.size() >= options_.max_queued_frames) {
    return Refuse(connection, absl::ResourceExhaustedError(absl::StrCat(
                                  "max_queued_frames: the client has not read ",
                                  options_.max_queued_frames, " frames of its fd socket")));
  }
  connection->outbox.push_back(std::move(frame));
  // While the connection awaits room, epoll reports when Flush can go on.
  if (!connection->awaits_room) Flush(connection);
}

void FdServer::FlushLacking() {
  // Flush puts a connection that still lacks a descriptor back into lacking_.
  for (const int fd : std::exchange(lacking_, {})) {
    if (const auto it = connections_.find(fd); it != connections_.end()) Flush(it->second.get());
  }
}

void FdServer::Flush(Connection* connection) {
  lacking_.erase(connection->fd);
  while (!connection->outbox.empty()) {
    const Frame& frame = connection->outbox.front();
    absl::StatusOr<bool> sent = true;
    if (const auto* packet = std::get_if<std::string>(&frame)) {
      sent = SendPacket(connection->fd, *packet, -1);
    } else if (const auto* wanted = std::get_if<RegionFrame>(&frame)) {
      const absl::StatusOr<MemoryExport> memory = export_region_(wanted->region);
      if (memory.ok()) {
        sent = SendPacket(connection->fd, EncodeRegion(wanted->region, *memory), memory->fd);
        // A packet in flight has a reference of its own.
        if (memory->fd >= 0) close(memory->fd);
      } else if (absl::IsResourceExhausted(memory.status())) {
        // The daemon lacks descriptors, through no fault of this client: its region is sent later.
        lacking_.insert(connection->fd);
        break;
      } else if (!absl::IsNotFound(memory.status())) {
        // NOT_FOUND is no error: the region was dropped while its frame waited, so the frame is
        // dropped, too.
        return Refuse(connection, memory.status());
      }
    }
    connection->is_cut = !sent.ok() && !absl::IsUnavailable(sent.status());
    if (!sent.ok()) return Remove(connection);
    if (!*sent) break;
    connection->outbox.pop_front();
  }
  // A socket has room nearly always, so epoll watches for it only while a frame waits for room.
  const bool awaits_room = !connection->outbox.empty() && lacking_.count(connection->fd) == 0;
  if (awaits_room == connection->awaits_room) return;
  epoll_event event = {};
  event.events = awaits_room ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.fd = connection->fd;
  MEMTIDE_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, connection->fd, &event) == 0)
      << std::strerror(errno);
  connection->awaits_room = awaits_room;
}

void FdServer::Refuse(Connection* connection, const absl::Status& reason) {
  ++counters_->connections_refused;
  End(connection, reason);
}

void FdServer::End(Connection* connection, const absl::Status& reason) {
  // With an OK reason the client itself closes the session. The refusal is best effort: a peer
  // whose buffer is full only sees the end of the connection.
  if (!reason.ok()) {
    [[maybe_unused]] const auto sent = SendPacket(connection->fd, EncodeRefused(reason), -1);
  }
  connection->orderly = reason.ok();
  connection->is_cut = !reason.ok();
  Remove(connection);
}

void FdServer::Remove(Connection* connection) {
  const int fd = connection->fd;
  const absl::optional<SessionId> session = connection->session;
  const bool is_cut = connection->is_cut;
  if (session) {
    // The token goes first, so that no call of an ended session is accepted.
    tokens_->Revoke(connection->token);
    sessions_.erase(*session);
  } else {
    greeting_.erase(std::find_if(greeting_.begin(), greeting_.end(),
                                 [fd](const auto& entry) { return entry.second == fd; }));
    const auto it = greeting_per_uid_.find(connection->peer.uid);
    if (--it->second == 0) greeting_per_uid_.erase(it);
  }
  if (session && options_.watch_processes && !connection->orderly) {
    quiet_watch_.Add({*session, connection->peer.uid, std::move(connection->process)}, Now());
  }
  connections_.erase(fd);
  close(fd);
  if (session) post_(ClientGone{*session, is_cut});
}

FdServer::Connection* FdServer::FindSession(SessionId session) {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second;
}

}  // namespace memtide
