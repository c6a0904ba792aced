// Sessions of the load test that misbehave, and one that measures. They speak the protocol without
// the client library, until SIGTERM, and say little (session_report.h).
//
// Arguments: SOCKET_DIR UID GID SEED KIND. The kinds are the rows of kKinds at the end.
#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "tests/integration/daemon_process.h"
#include "tests/load/session_report.h"

namespace memtide {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kChunks = 8;

// Calls that wait for their replies at the same time, up to a number. Beyond it, Begin waits.
class Outstanding {
 public:
  explicit Outstanding(int most) : most_(most) {}
  ~Outstanding() { AwaitFewerThan(1); }

  // `send` gets what the callback API calls at the end.
  template <typename Request, typename Response>
  void Begin(std::unique_ptr<grpc::ClientContext> context, const Request& request,
             Response response,
             const std::function<void(grpc::ClientContext*, const Request*, Response*,
                                      std::function<void(grpc::Status)>)>& send) {
    struct Call {
      std::unique_ptr<grpc::ClientContext> context;
      Request request;
      Response response;
    };
    AwaitFewerThan(most_);
    auto call = std::make_shared<Call>(Call{std::move(context), request, std::move(response)});
    {
      MutexLock lock(&mutex_);
      ++now_;
    }
    send(call->context.get(), &call->request, &call->response, [this, call](const grpc::Status&) {
      MutexLock lock(&mutex_);
      --now_;
      changed_.SignalAll();
    });
  }

 private:
  void AwaitFewerThan(int count) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    while (now_ >= count) changed_.Wait(&mutex_);
  }

  const int most_;
  Mutex mutex_;
  CondVar changed_;
  int now_ ABSL_GUARDED_BY(mutex_) = 0;
};

void EndIfRefused(const grpc::Status& status) {
  if (status.ok()) return;
  SessionReport().Say("error open " + std::to_string(status.error_code()) + " " +
                      status.error_message());
  _exit(4);
}

// A session with a job, and its chunks. Ends the process if it is refused.
class Tenant {
 public:
  Tenant(const std::string& socket_dir, const std::string& job_name, uint32_t chunks)
      : session_(socket_dir) {
    if (!session_.welcome()) EndIfRefused(grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused"));
    v1::OpenRequest request;
    request.set_job_name(job_name);
    request.set_chunk_size_bytes(2 * kMiB);
    request.set_host_share_bytes(2 * kMiB * kChunks);
    request.set_ssd_share_bytes(2 * kMiB * kChunks);
    v1::OpenResponse opened;
    EndIfRefused(session_.sessions().Open(session_.Context().get(), request, &opened));
    job_ = opened.job_id();
    v1::AllocateRequest allocate;
    allocate.set_request_id(1);
    allocate.set_count(chunks);
    v1::AllocateResponse allocated;
    if (chunks == 0) return;
    EndIfRefused(session_.chunks().Allocate(session_.Context().get(), allocate, &allocated));
    ids_.assign(allocated.chunk_ids().begin(), allocated.chunk_ids().end());
  }

  v1::FetchRequest FetchOf(const std::vector<uint64_t>& ids, v1::Access access) const {
    v1::FetchRequest request;
    for (const uint64_t id : ids) request.add_chunk_ids(id);
    request.set_access(access);
    request.mutable_deadline()->set_seconds(5);
    return request;
  }
  grpc::Status Fetch(const std::vector<uint64_t>& ids, v1::Access access) {
    v1::FetchResponse response;
    return session_.chunks().Fetch(session_.Context().get(), FetchOf(ids, access), &response);
  }
  grpc::Status Renew() {
    v1::RenewResponse response;
    return session_.sessions().Renew(session_.Context().get(), v1::RenewRequest(), &response);
  }

  Session& session() { return session_; }
  const std::vector<uint64_t>& ids() const { return ids_; }
  uint64_t job() const { return job_; }

 private:
  Session session_;
  uint64_t job_ = 0;
  std::vector<uint64_t> ids_;
};

struct Arguments {
  std::string socket_dir;
  uint64_t seed = 0;
};

// Not hostile: fetches a resident chunk again and again, as quickly as a training does.
void Probe(const Arguments& arguments) {
  Tenant tenant(arguments.socket_dir, "", 1);
  SessionReport report;
  report.Say("opened");
  uint64_t request_id = 10;
  auto renewed = std::chrono::steady_clock::now();
  while (!MustEnd()) {
    std::string message;
    const auto said = [&] { return message; };
    const auto timed = [&](const char* name, const std::function<grpc::Status()>& call) {
      return report.Timed(
          name,
          [&] {
            const grpc::Status status = call();
            message = status.error_message();
            return static_cast<int>(status.error_code());
          },
          said);
    };
    const int code = timed("fetch", [&] { return tenant.Fetch(tenant.ids(), v1::ACCESS_READ); });
    if (code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::UNAUTHENTICATED) {
      _exit(3);
    }
    timed("release", [&] {
      v1::ReleaseRequest release;
      release.set_request_id(++request_id);
      release.add_chunk_ids(tenant.ids()[0]);
      v1::ReleaseResponse released;
      return tenant.session().chunks().Release(tenant.session().Context().get(), release,
                                               &released);
    });
    if (std::chrono::steady_clock::now() - renewed > seconds(1)) {
      timed("renew", [&] { return tenant.Renew(); });
      renewed = std::chrono::steady_clock::now();
    }
    Pause(milliseconds(4));
  }
}

void FloodRenewals(const Arguments& arguments) {
  Tenant tenant(arguments.socket_dir, "", 1);
  Outstanding calls(200);
  while (!MustEnd()) {
    calls.Begin<v1::RenewRequest, v1::RenewResponse>(
        tenant.session().Context(), {}, {},
        [&](auto* context, auto* request, auto* response, auto done) {
          tenant.session().sessions().async()->Renew(context, request, response, done);
        });
  }
}

// Fetches that wait for a lease which another session of the job keeps.
void FloodWaitingFetches(const Arguments& arguments) {
  Tenant keeper(arguments.socket_dir, "kept" + std::to_string(arguments.seed), kChunks - 1);
  Tenant flooder(arguments.socket_dir, "kept" + std::to_string(arguments.seed), 0);
  EndIfRefused(keeper.Fetch({keeper.ids()[0]}, v1::ACCESS_WRITE));
  const v1::FetchRequest fetch = flooder.FetchOf(keeper.ids(), v1::ACCESS_WRITE);
  Outstanding calls(300);
  while (!MustEnd()) {
    for (int i = 0; i < 100 && !MustEnd(); ++i) {
      calls.Begin<v1::FetchRequest, v1::FetchResponse>(
          flooder.session().Context(), fetch, {},
          [&](auto* context, auto* request, auto* response, auto done) {
            flooder.session().chunks().async()->Fetch(context, request, response, done);
          });
    }
    if (!keeper.Renew().ok() || !flooder.Renew().ok()) _exit(3);
  }
}

// Asks for large replies, and stops for longer than the daemon waits for anybody.
void LeaveRepliesUnread(const Arguments& arguments) {
  const pid_t asker = getpid();
  const pid_t waker = fork();
  if (waker == 0) {
    // It ends with the asker, whose end makes another process its parent.
    while (getppid() == asker) {
      Pause(milliseconds(3000));
      kill(asker, SIGCONT);
    }
    _exit(0);
  }
  v1::InspectNodeRequest request;
  request.set_sessions(true);
  request.set_max_chunks(4096);
  while (!MustEnd()) {
    Session session(arguments.socket_dir);
    Outstanding calls(200);
    for (int i = 0; i < 200; ++i) {
      calls.Begin<v1::InspectNodeRequest, v1::InspectNodeResponse>(
          session.Context(), request, {},
          [&](auto* context, auto* question, auto* response, auto done) {
            session.admin().async()->InspectNode(context, question, response, done);
          });
    }
    raise(SIGSTOP);
  }
  kill(waker, SIGKILL);
}

int Connect(const std::string& path, int type) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
  const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  // A connection for which the daemon's queue has no room fails at once.
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

// Opens connections, says nothing or nonsense, and closes them late.
void FloodConnections(const Arguments& arguments) {
  std::mt19937_64 random(arguments.seed);
  std::vector<int> open;
  while (!MustEnd()) {
    for (int i = 0; i < 100; ++i) {
      const bool is_fd = random() % 2 == 0;
      const int fd = Connect(arguments.socket_dir + (is_fd ? "/fd.sock" : "/grpc.sock"),
                             is_fd ? SOCK_SEQPACKET : SOCK_STREAM);
      if (fd < 0) continue;
      char bytes[64];
      for (char& byte : bytes) byte = static_cast<char>(random());
      if (random() % 2 == 0) (void)!send(fd, bytes, random() % sizeof(bytes), MSG_NOSIGNAL);
      open.push_back(fd);
    }
    Pause(milliseconds(200));
    if (open.size() < 600) continue;
    for (const int fd : open) close(fd);
    open.clear();
  }
}

void FloodTraces(const Arguments& arguments) {
  Tenant tenant(arguments.socket_dir, "", kChunks);
  Outstanding calls(64);
  v1::GetTraceRequest trace;
  trace.set_job_id(tenant.job());
  auto renewed = std::chrono::steady_clock::now();
  while (!MustEnd()) {
    calls.Begin<v1::GetTraceRequest, v1::Trace>(
        tenant.session().Context(), trace, {},
        [&](auto* context, auto* request, auto* response, auto done) {
          tenant.session().admin().async()->GetTrace(context, request, response, done);
        });
    if (std::chrono::steady_clock::now() - renewed < seconds(1)) continue;
    tenant.Renew();
    renewed = std::chrono::steady_clock::now();
  }
}

// Calls with random bytes, and with ids that are those of others, or of no chunk.
void SendMalformed(const Arguments& arguments) {
  Tenant tenant(arguments.socket_dir, "", kChunks);
  grpc::GenericStub generic(tenant.session().channel());
  std::mt19937_64 random(arguments.seed);
  const std::vector<std::string> methods = {
      "/memtide.v1.ChunkService/Fetch",         "/memtide.v1.ChunkService/Free",
      "/memtide.v1.ChunkService/Evict",         "/memtide.v1.SessionService/Open",
      "/memtide.v1.OptimizerService/StartPart", "/memtide.v1.OptimizerService/Commit",
      "/memtide.v1.OptimizerService/EndPart",   "/memtide.v1.SessionService/ReturnRegions"};
  while (!MustEnd()) {
    std::string bytes(random() % 512, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const grpc::Slice slice(bytes);
    const auto context = tenant.session().Context();
    grpc::CompletionQueue queue;
    const auto call = generic.PrepareUnaryCall(context.get(), methods[random() % methods.size()],
                                               grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    v1::FreeRequest foreign;
    foreign.set_request_id(random());
    foreign.add_chunk_ids((uint64_t{1} << 32) + random() % 1024);
    v1::FreeResponse freed;
    tenant.session().chunks().Free(tenant.session().Context().get(), foreign, &freed);
    if (!tenant.Renew().ok()) _exit(3);
  }
}

// Keeps all the leases that it can get, moves its chunks as often as it can, and answers no
// revocation.
void Hog(const Arguments& arguments) {
  Tenant tenant(arguments.socket_dir, "", kChunks);
  Outstanding calls(32);
  const v1::FetchRequest fetch = tenant.FetchOf(tenant.ids(), v1::ACCESS_WRITE);
  v1::EvictRequest evict;
  for (const uint64_t id : tenant.ids()) evict.add_chunk_ids(id);
  evict.set_tier(v1::TIER_SSD);
  while (!MustEnd()) {
    calls.Begin<v1::FetchRequest, v1::FetchResponse>(
        tenant.session().Context(), fetch, {},
        [&](auto* context, auto* request, auto* response, auto done) {
          tenant.session().chunks().async()->Fetch(context, request, response, done);
        });
    calls.Begin<v1::EvictRequest, v1::EvictResponse>(
        tenant.session().Context(), evict, {},
        [&](auto* context, auto* request, auto* response, auto done) {
          tenant.session().chunks().async()->Evict(context, request, response, done);
        });
    if (!tenant.Renew().ok()) _exit(3);
    Pause(milliseconds(20));
  }
}

// Opens and closes jobs, and keeps the descriptors of their memory for a while.
void KeepMemory(const Arguments& arguments) {
  std::vector<int> descriptors;
  while (!MustEnd()) {
    {
      Tenant tenant(arguments.socket_dir, "", kChunks);
      EndIfRefused(tenant.Fetch({tenant.ids()[0]}, v1::ACCESS_WRITE));
      int descriptor = -1;
      tenant.session().Receive(&descriptor);
      if (descriptor >= 0) descriptors.push_back(descriptor);
    }
    Pause(milliseconds(100));
    if (descriptors.size() < 10) continue;
    for (const int fd : descriptors) close(fd);
    descriptors.clear();
  }
}

struct Kind {
  const char* name;
  void (*run)(const Arguments&);
};
constexpr Kind kKinds[] = {{"probe", Probe},
                           {"renewals", FloodRenewals},
                           {"fetches", FloodWaitingFetches},
                           {"unread", LeaveRepliesUnread},
                           {"connections", FloodConnections},
                           {"traces", FloodTraces},
                           {"malformed", SendMalformed},
                           {"hog", Hog},
                           {"keeper", KeepMemory}};

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const auto number = [argv](int i) { return strtoull(argv[i], nullptr, 10); };
  memtide::HandleTermination();
  if (!memtide::BecomeUser(static_cast<uint32_t>(number(2)), static_cast<uint32_t>(number(3)))) {
    return 2;
  }
  for (const memtide::Kind& kind : memtide::kKinds) {
    if (std::string(argv[5]) != kind.name) continue;
    kind.run({argv[1], number(4)});
    return 0;
  }
  return 2;
}
