#include "daemon/service/stream_watch.h"

#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "daemon/session/seqpacket.h"

namespace memtide {
namespace {

// A look takes 4 us for each connection.
constexpr int kIntervalMs = 100;
constexpr std::chrono::minutes kBetweenLines{1};
// gRPC numbers servers, too. A test's own channels are in the same process.
constexpr intptr_t kIdsToTry = 64;

// A connection as gRPC describes it, in JSON; empty: there is none of this number.
std::string Describe(intptr_t id) {
  char* const text = grpc_channelz_get_socket(id);
  if (text == nullptr) return "";
  std::string description = text;
  gpr_free(text);
  return description;
}

// A counter, which gRPC writes as a string and leaves out while it is zero.
uint64_t CounterIn(const std::string& description, absl::string_view name) {
  const std::string label = absl::StrCat("\"", name, "\":\"");
  const size_t at = description.find(label);
  if (at == std::string::npos) return 0;
  const size_t begin = at + label.size();
  uint64_t value = 0;
  const absl::string_view rest = description;
  return absl::SimpleAtoi(rest.substr(begin, description.find('"', begin) - begin), &value) ? value
                                                                                            : 0;
}

uint64_t OpenCallsIn(const std::string& description) {
  const uint64_t started = CounterIn(description, "streamsStarted");
  const uint64_t ended =
      CounterIn(description, "streamsSucceeded") + CounterIn(description, "streamsFailed");
  // gRPC reads the counters one after the other, and calls start and end meanwhile.
  return started - std::min(started, ended);
}

}  // namespace

StreamWatch::StreamWatch(StreamLimits limits, EdgeCounters* counters)
    : limits_(limits), counters_(counters), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  MEMTIDE_CHECK(wake_.valid()) << "eventfd: " << std::strerror(errno);
  thread_ = std::thread([this] { Serve(); });
}

StreamWatch::~StreamWatch() {
  const uint64_t one = 1;
  MEMTIDE_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one)) << std::strerror(errno);
  thread_.join();
}

void StreamWatch::Add(int fd) {
  const auto peer = PeerOf(fd);
  const std::string name = absl::StrCat("\"fd:", fd, "\"");
  MutexLock lock(&mutex_);
  for (intptr_t id = last_id_ + 1; id <= last_id_ + kIdsToTry; ++id) {
    if (Describe(id).find(name) == std::string::npos) continue;
    if (peer.ok()) connections_[id] = {fd, peer->uid};
    last_id_ = id;
    return;
  }
  // The client has left again, and gRPC has dropped the connection.
  ++last_id_;
}

void StreamWatch::Serve() {
  for (;;) {
    pollfd wake = {wake_.get(), POLLIN, 0};
    const int count = poll(&wake, 1, kIntervalMs);
    MEMTIDE_CHECK(count >= 0 || errno == EINTR) << "poll: " << std::strerror(errno);
    if (count > 0) return;
    Look();
  }
}

void StreamWatch::Look() {
  struct Counted {
    uint64_t calls = 0;
    intptr_t id = 0;
    Connection connection;
  };
  std::map<uint32_t, std::vector<Counted>> by_uid;
  std::map<intptr_t, Connection> connections;
  {
    MutexLock lock(&mutex_);
    connections = connections_;
  }
  for (const auto& [id, connection] : connections) {
    const std::string description = Describe(id);
    if (!description.empty()) {
      by_uid[connection.uid].push_back({OpenCallsIn(description), id, connection});
      continue;
    }
    MutexLock lock(&mutex_);
    connections_.erase(id);
  }
  for (auto& [uid, of_uid] : by_uid) {
    uint64_t calls = 0;
    for (const Counted& each : of_uid) calls += each.calls;
    std::sort(of_uid.begin(), of_uid.end(),
              [](const Counted& a, const Counted& b) { return a.calls > b.calls; });
    for (const Counted& each : of_uid) {
      if (each.calls <= limits_.per_connection && calls <= limits_.per_uid) break;
      End(each.id, each.connection, each.calls);
      calls -= each.calls;
      MutexLock lock(&mutex_);
      connections_.erase(each.id);
    }
  }
}

void StreamWatch::End(intptr_t id, const Connection& connection, uint64_t calls) {
  // The number may be that of another file by now. The copy cannot change, and it is of this
  // connection if gRPC still has the connection.
  const OwnedFd copy(fcntl(connection.fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid() || Describe(id).empty()) return;
  const auto peer = PeerOf(copy.get());
  if (!peer.ok() || peer->uid != connection.uid) return;
  ++counters_->grpc_connections_refused;
  shutdown(copy.get(), SHUT_RDWR);
  const Instant now = Now();
  if (last_said_.has_value() && now - *last_said_ < kBetweenLines) return;
  last_said_ = now;
  spdlog::warn(
      "a connection of uid {} is closed: it has {} calls without an answer. a connection may "
      "have {}, and a user {}",
      connection.uid, calls, limits_.per_connection, limits_.per_uid);
}

}  // namespace memtide
