#include "daemon/session/stream_acceptor.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/session/seqpacket.h"

namespace memtide {
namespace {

// While descriptors are short: soon enough for a client, and no load.
constexpr int kAcceptAgainMs = 100;
// The bound of one AcceptSome, so that a flood of connections cannot keep Serve from ending.
constexpr int kAcceptsInARow = 128;
constexpr std::chrono::minutes kBetweenComplaints{1};

// Half of the descriptors that the process may have; prlimit(1) may change that at any time.
uint64_t HalfOfDescriptors() {
  rlimit files;
  MEMTIDE_CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0) << std::strerror(errno);
  return files.rlim_cur / 2;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamAcceptor>> StreamAcceptor::Bind(StreamAcceptorOptions options,
                                                                     EdgeCounters* counters) {
  MEMTIDE_ASSIGN_OR_RETURN(const int listening, ListenUnix(options.socket_path, SOCK_STREAM));
  OwnedFd owned(listening);
  OwnedFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return absl::InternalError(absl::StrCat("eventfd: ", std::strerror(errno)));
  return std::unique_ptr<StreamAcceptor>(
      new StreamAcceptor(std::move(options), std::move(owned), std::move(wake), counters));
}

StreamAcceptor::StreamAcceptor(StreamAcceptorOptions options, OwnedFd listening, OwnedFd wake,
                               EdgeCounters* counters)
    : options_(std::move(options)),
      listening_(std::move(listening)),
      wake_(std::move(wake)),
      counters_(counters) {}

void StreamAcceptor::Start(std::function<void(int fd)> hand_over) {
  MEMTIDE_CHECK(!thread_.joinable()) << "started twice";
  hand_over_ = std::move(hand_over);
  thread_ = std::thread([this] { Serve(); });
}

StreamAcceptor::~StreamAcceptor() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  MEMTIDE_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one)) << std::strerror(errno);
  thread_.join();
}

void StreamAcceptor::Serve() {
  bool descriptors_are_short = false;
  for (;;) {
    // While accept4 fails for lack of descriptors, the socket stays readable, and polling it would
    // be a busy loop.
    std::array<pollfd, 2> watched = {};
    watched[0] = {descriptors_are_short ? -1 : listening_.get(), POLLIN, 0};
    watched[1] = {wake_.get(), POLLIN, 0};
    const int count = poll(watched.data(), watched.size(),
                           descriptors_are_short ? kAcceptAgainMs : /*for ever*/ -1);
    MEMTIDE_CHECK(count >= 0 || errno == EINTR) << "poll: " << std::strerror(errno);
    if (count > 0 && watched[1].revents != 0) return;
    descriptors_are_short = !AcceptSome();
  }
}

bool StreamAcceptor::AcceptSome() {
  for (int i = 0; i < kAcceptsInARow; ++i) {
    OwnedFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK) return true;
      // ECONNABORTED is about one peer that has left; others may wait behind it.
      if (error == EINTR || error == ECONNABORTED) continue;
      Complain(&delayed_,
               absl::StrCat("connections wait, as accept4 fails with ", strerrorname_np(error),
                            ": raise the daemon's LimitNOFILE, or end sessions"));
      return false;
    }
    const absl::Status admitted = Admit(std::move(fd));
    if (admitted.ok()) continue;
    ++counters_->grpc_connections_refused;
    Complain(&refused_, absl::StrCat("a connection is refused: ", admitted.message()));
  }
  return true;
}

absl::Status StreamAcceptor::Admit(OwnedFd fd) {
  MEMTIDE_ASSIGN_OR_RETURN(const Peer peer, PeerOf(fd.get()));
  absl::Status room = CheckLimits(peer.uid);
  if (!room.ok()) {
    // ForgetClosed makes a system call for each connection, so it runs only where a limit seems
    // reached.
    ForgetClosed();
    room = CheckLimits(peer.uid);
  }
  MEMTIDE_RETURN_IF_ERROR(room);
  struct stat status;
  if (fstat(fd.get(), &status) != 0) {
    return absl::InternalError(absl::StrCat("fstat: ", std::strerror(errno)));
  }
  // The kernel gives a number out again only after the descriptor that had it was closed.
  if (const auto before = connections_.find(fd.get()); before != connections_.end()) {
    Forget(before);
  }
  connections_[fd.get()] = {peer.uid, status.st_dev, status.st_ino};
  ++per_uid_[peer.uid];
  hand_over_(fd.Release());
  return absl::OkStatus();
}

absl::Status StreamAcceptor::CheckLimits(uint32_t uid) {
  const uint64_t most = std::min<uint64_t>(options_.max_connections, HalfOfDescriptors());
  if (connections_.size() >= most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("max_connections: there are ", most,
                     " already, or as many as half of LimitNOFILE; end programs that use memtide"));
  }
  // A quarter of the connections stays for other users.
  const uint64_t most_per_uid = std::min<uint64_t>(options_.max_per_uid, most / 4 * 3);
  const auto of_uid = per_uid_.find(uid);
  if (of_uid == per_uid_.end() || of_uid->second < most_per_uid) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("max_per_uid: uid ", uid, " has ", most_per_uid,
                                                   " already; end programs of this user"));
}

void StreamAcceptor::ForgetClosed() {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto connection = it++;
    struct stat status;
    // gRPC does not say when it closes a descriptor. The kernel may have given its number to
    // another file since, which has another inode.
    const bool is_open = fstat(connection->first, &status) == 0 &&
                         status.st_dev == connection->second.device &&
                         status.st_ino == connection->second.inode;
    if (!is_open) Forget(connection);
  }
}

void StreamAcceptor::Forget(std::map<int, Connection>::iterator connection) {
  const auto of_uid = per_uid_.find(connection->second.uid);
  if (--of_uid->second == 0) per_uid_.erase(of_uid);
  connections_.erase(connection);
}

void StreamAcceptor::Complain(Complaint* complaint, const std::string& what) {
  const Instant now = Now();
  if (complaint->last.has_value() && now - *complaint->last < kBetweenComplaints) {
    ++complaint->unsaid;
    return;
  }
  spdlog::warn("{}: {} ({} more since the last such line)", options_.socket_path, what,
               std::exchange(complaint->unsaid, 0));
  complaint->last = now;
}

}  // namespace memtide
