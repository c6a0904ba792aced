// Any bytes at grpc.sock: whatever a connection sends, the server goes on and answers others.
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/check.h"
#include "daemon/service/grpc_server.h"
#include "daemon/service/testing/unlisted_channel.h"
#include "memtide/v1/admin.grpc.pb.h"

namespace memtide {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHeader = 9;

class NoEffects : public EffectSink {
 public:
  void CarryOut(Effect effect) override {}
};

// Answers all calls at once.
void AnswerAll(Instant, const Event& event, std::vector<Effect>* effects) {
  std::visit(
      [effects](const auto& call) {
        using Call = std::decay_t<decltype(call)>;
        if constexpr (std::is_same_v<Call, InspectCall>) {
          effects->push_back(Reply{call.call, absl::OkStatus(), InspectReply()});
        } else if constexpr (std::is_same_v<Call, RenewCall>) {
          effects->push_back(Reply{call.call, absl::OkStatus(), {}});
        }
      },
      event);
}

// A server as a daemon has it, over an engine that answers two calls.
class Server {
 public:
  Server() {
    MEMTIDE_CHECK(mkdtemp(directory_.data()) != nullptr);
    context_.loop = &loop_;
    context_.tokens = &tokens_;
    context_.calls = &calls_;
    context_.metrics = &metrics_;
    context_.counters = &counters_;
    context_.quotas = &quotas_;
    auto server = GrpcServer::Start(path(), &context_);
    MEMTIDE_CHECK(server.ok()) << server.status();
    server_ = *std::move(server);
    admin_ = v1::AdminService::NewStub(UnlistedChannel(path()));
  }
  ~Server() {
    loop_.Stop();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  void Receive(const uint8_t* data, size_t size) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path().data(), path().size());
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MEMTIDE_CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    send(fd, data, size, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    // The server reads to the end, and closes. The bytes that it sends are not looked at.
    const timeval patience = {10, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char bytes[4096];
    ssize_t got;
    while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0) {
    }
    MEMTIDE_CHECK(got == 0 || errno != EAGAIN) << "the connection stays open";
    close(fd);
  }
  void CheckServes() {
    grpc::ClientContext context;
    v1::InspectNodeResponse response;
    const grpc::Status status = admin_->InspectNode(&context, {}, &response);
    MEMTIDE_CHECK(status.ok()) << status.error_message();
  }

 private:
  std::string path() const { return directory_ + "/grpc.sock"; }

  std::string directory_ = "/tmp/memtide-fuzz-XXXXXX";
  NoEffects sink_;
  EdgeCounters counters_;
  Loop loop_{AnswerAll, &sink_, &counters_};
  TokenTable tokens_;
  OpenCalls calls_{size_t{8} << 20};
  MetricsCache metrics_{[](const InspectReply&) { return std::string(); }};
  QuotaBook quotas_{{}, /*directory=*/"", Accounts(), /*most=*/9};
  ServiceContext context_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift & 0xff);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift & 0xff);
  return frame + payload;
}

// A frame whose parts are right, mostly.
std::string RandomFrame(std::minstd_rand& random) {
  static const std::string kCall =
      "\x83\x86\x44\x20/memtide.v1.AdminService/Inspect\x41\x01x\x40\x02te\x08trailers\x5f\x10"
      "application/grpc";
  constexpr uint8_t kHeaders = 1;
  const auto type = static_cast<uint8_t>(random() % 11);
  std::string payload(random() % 24, '\0');
  for (char& c : payload) c = static_cast<char>(random());
  if (type == kHeaders && random() % 4 != 0) payload = kCall;
  const uint32_t stream = random() % 3 == 0 ? 0 : 2 * (random() % 6) + random() % 2;
  std::string frame = Frame(type, static_cast<uint8_t>(random() % 8 == 0 ? random() : random() % 6),
                            stream, payload);
  if (random() % 8 == 0) frame[random() % kFrameHeader] = static_cast<char>(random());
  return frame;
}

}  // namespace
}  // namespace memtide

// Adds a frame; sometimes changes bytes instead.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  std::minstd_rand random(seed);
  random.discard(1);
  if (size > 0 && random() % 4 == 0) return LLVMFuzzerMutate(data, size, most);
  std::string more;
  if (size == 0) more = memtide::kPreface + memtide::Frame(4, 0, 0, "");
  for (uint64_t frames = 1 + random() % 4; frames > 0; --frames) {
    more += memtide::RandomFrame(random);
  }
  if (size + more.size() > most) return size;
  std::copy(more.begin(), more.end(), data + size);
  return size + more.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static memtide::Server server;
  server.Receive(data, size);
  static int count = 0;
  if (++count % 16 == 0) server.CheckServes();
  return 0;
}
