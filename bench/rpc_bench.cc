// Measures calls to the daemon: a fetch without a transfer against an empty call, and a batch of
// fetches against single ones.
//
//   rpc_bench --socket_dir=DIR --daemon=PID [--quick]
//
// It uses raw stubs without the client library, so that limit and product differ only in the
// daemon's work. Client and daemon share one CPU, because waking another one costs more than the
// call itself.
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "base/bytes.h"
#include "base/check.h"
#include "bench/harness.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "memtide/v1/admin.grpc.pb.h"
#include "memtide/v1/chunks.grpc.pb.h"
#include "memtide/v1/session.grpc.pb.h"

ABSL_FLAG(std::string, socket_dir, "", "where the daemon's sockets are");
ABSL_FLAG(int32_t, daemon, 0, "its process");
ABSL_FLAG(bool, quick, false, "fewer calls");

namespace memtide {
namespace {

constexpr Bytes kChunk = MiB(4);
constexpr int kBatch = 16;
constexpr int kCpu = 0;

using Chunks = std::vector<uint64_t>;

// Owns the session's socket; the session ends with it.
class FdSession {
 public:
  explicit FdSession(const std::string& path) : socket_(socket(AF_UNIX, SOCK_SEQPACKET, 0)) {
    MEMTIDE_CHECK(socket_ >= 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    MEMTIDE_CHECK(path.size() < sizeof(address.sun_path)) << path;
    memcpy(address.sun_path, path.data(), path.size());
    MEMTIDE_CHECK(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
        << path << ": " << strerror(errno);
    v1::FdHello hello;
    hello.set_protocol_version(1);
    hello.set_program("rpc_bench");
    const std::string packet = hello.SerializeAsString();
    MEMTIDE_CHECK(send(socket_, packet.data(), packet.size(), 0) ==
                  static_cast<ssize_t>(packet.size()));
    char answer[4096];
    const ssize_t got = recv(socket_, answer, sizeof(answer), 0);
    v1::FdFrame frame;
    MEMTIDE_CHECK(got > 0 && frame.ParseFromArray(answer, static_cast<int>(got)));
    MEMTIDE_CHECK(frame.has_welcome()) << frame.refused().message();
    welcome_ = frame.welcome();
  }
  ~FdSession() { close(socket_); }
  FdSession(const FdSession&) = delete;
  FdSession& operator=(const FdSession&) = delete;

  const v1::FdWelcome& welcome() const { return welcome_; }

 private:
  const int socket_;
  v1::FdWelcome welcome_;
};

class Daemon {
 public:
  explicit Daemon(const std::string& socket_dir)
      : session_(socket_dir + "/fd.sock"),
        channel_(grpc::CreateChannel(session_.welcome().grpc_target(),
                                     grpc::InsecureChannelCredentials())),
        sessions_(v1::SessionService::NewStub(channel_)),
        chunks_(v1::ChunkService::NewStub(channel_)),
        admin_(v1::AdminService::NewStub(channel_)),
        health_(grpc::health::v1::Health::NewStub(channel_)) {
    v1::OpenRequest open;
    open.set_chunk_size_bytes(kChunk.count());
    v1::OpenResponse opened;
    Call(sessions_.get(), &v1::SessionService::Stub::Open, open, &opened);
  }

  void Check() {
    grpc::health::v1::HealthCheckResponse response;
    Call(health_.get(), &grpc::health::v1::Health::Stub::Check,
         grpc::health::v1::HealthCheckRequest(), &response);
  }
  Chunks Allocate(int count) {
    v1::AllocateRequest request;
    request.set_request_id(++last_request_);
    request.set_count(count);
    v1::AllocateResponse response;
    Call(chunks_.get(), &v1::ChunkService::Stub::Allocate, request, &response);
    return Chunks(response.chunk_ids().begin(), response.chunk_ids().end());
  }
  void Free(const Chunks& chunks) {
    v1::FreeRequest request;
    request.set_request_id(++last_request_);
    request.mutable_chunk_ids()->Add(chunks.begin(), chunks.end());
    v1::FreeResponse response;
    Call(chunks_.get(), &v1::ChunkService::Stub::Free, request, &response);
  }
  void Fetch(const Chunks& chunks, const Chunks& releases) {
    v1::FetchRequest request;
    request.mutable_chunk_ids()->Add(chunks.begin(), chunks.end());
    request.mutable_release_chunk_ids()->Add(releases.begin(), releases.end());
    v1::FetchResponse response;
    Call(chunks_.get(), &v1::ChunkService::Stub::Fetch, request, &response);
    MEMTIDE_CHECK(response.leases_size() == static_cast<int>(chunks.size()));
  }
  uint64_t BytesCopied() {
    v1::InspectNodeResponse response;
    Call(admin_.get(), &v1::AdminService::Stub::InspectNode, v1::InspectNodeRequest(), &response);
    const v1::NodeCounters& counters = response.counters();
    return counters.host_to_device_bytes() + counters.device_to_host_bytes() +
           counters.ssd_read_bytes() + counters.ssd_written_bytes() + counters.zeroed_bytes();
  }

 private:
  template <typename Stub, typename Request, typename Response>
  void Call(Stub* stub,
            grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
            const Request& request, Response* response) {
    grpc::ClientContext context;
    context.AddMetadata("memtide-token-bin", session_.welcome().token());
    const grpc::Status status = (stub->*method)(&context, request, response);
    MEMTIDE_CHECK(status.ok()) << status.error_message();
  }

  const FdSession session_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::SessionService::Stub> sessions_;
  const std::unique_ptr<v1::ChunkService::Stub> chunks_;
  const std::unique_ptr<v1::AdminService::Stub> admin_;
  const std::unique_ptr<grpc::health::v1::Health::Stub> health_;
  uint64_t last_request_ = 0;
};

// Times both calls by turns, and adds their medians.
void CompareCalls(Rounds* rounds, const std::string& figure, int turns,
                  const std::function<void()>& limit, const std::function<void()>& product,
                  const std::function<void()>& tidy_up) {
  std::vector<double> of_limit, of_product;
  for (int turn = 0; turn < turns; ++turn) {
    of_limit.push_back(Microseconds(TimeOf(limit)));
    tidy_up();
    // Both sides are timed by turns, so that a slow phase of the machine meets both.
    of_product.push_back(Microseconds(TimeOf(product)));
    tidy_up();
  }
  rounds->Add(figure, Median(of_limit), Median(of_product));
}

void Measure() {
  Daemon daemon(absl::GetFlag(FLAGS_socket_dir));
  const int turns = absl::GetFlag(FLAGS_quick) ? 400 : 2000;
  // One of the two sets is leased at a time. Every chunk has been in host memory before.
  const Chunks sets[2] = {daemon.Allocate(kBatch), daemon.Allocate(kBatch)};
  daemon.Fetch(sets[0], {});
  daemon.Fetch(sets[1], sets[0]);
  size_t leased = 1;
  const auto fetch_batch = [&] {
    daemon.Fetch(sets[1 - leased], sets[leased]);
    leased = 1 - leased;
  };
  const auto fetch_singly = [&] {
    for (int i = 0; i < kBatch; ++i) daemon.Fetch({sets[1 - leased][i]}, {sets[leased][i]});
    leased = 1 - leased;
  };
  const auto fetch_one = [&] {
    daemon.Fetch({sets[1 - leased][0]}, {sets[leased][0]});
    leased = 1 - leased;
  };
  Chunks made;
  const auto allocate = [&](int count) {
    const Chunks more = daemon.Allocate(count);
    made.insert(made.end(), more.begin(), more.end());
  };
  const auto free_made = [&] {
    if (!made.empty()) daemon.Free(made);
    made.clear();
  };

  RoundsOptions options;
  options.daemon = absl::GetFlag(FLAGS_daemon);
  options.at_most = std::chrono::seconds(absl::GetFlag(FLAGS_quick) ? 5 : 20);
  Rounds rounds(options);
  while (rounds.Next()) {
    const uint64_t copied_before = daemon.BytesCopied();
    CompareCalls(
        &rounds, "rpc.fetch", turns, [&] { daemon.Check(); }, fetch_one, free_made);
    CompareCalls(&rounds, "rpc.batch_fetch", turns / 20, fetch_singly, fetch_batch, free_made);
    rounds.Add("rpc.bytes_copied", static_cast<double>(daemon.BytesCopied() - copied_before));
    CompareCalls(
        &rounds, "rpc.batch_allocate", turns / 20,
        [&] {
          for (int i = 0; i < kBatch; ++i) allocate(1);
        },
        [&] { allocate(kBatch); }, free_made);
  }
  rounds.Print();
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  // Threads that gRPC starts later inherit the CPU.
  for (const pid_t process : {getpid(), absl::GetFlag(FLAGS_daemon)}) {
    memtide::PinProcess(process, memtide::kCpu);
  }
  memtide::Measure();
}
