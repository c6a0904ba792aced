// GrpcServerTest: a GrpcServer before a scripted engine, and a client of it.
#ifndef MEMTIDE_DAEMON_SERVICE_TESTING_GRPC_SERVER_HARNESS_H_
#define MEMTIDE_DAEMON_SERVICE_TESTING_GRPC_SERVER_HARNESS_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "daemon/service/grpc_server.h"
#include "daemon/service/testing/unlisted_channel.h"
#include "memtide/v1/admin.grpc.pb.h"
#include "memtide/v1/chunks.grpc.pb.h"
#include "memtide/v1/session.grpc.pb.h"

namespace memtide {

class NoEffects : public EffectSink {
 public:
  void CarryOut(Effect effect) override { ADD_FAILURE() << "effect " << effect.index(); }
};

// The engine's place: keeps what it was asked, and answers as a test has said.
class ScriptedEngine {
 public:
  void Handle(const Event& event, std::vector<Effect>* effects) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    // The loop makes ticks when it likes. They take only replies to calls that are named.
    const bool is_tick = std::holds_alternative<Tick>(event);
    if (is_tick && (replies_.empty() || replies_.front().call == CallId())) return;
    if (!is_tick) events_.push_back(event);
    changed_.SignalAll();
    Reply reply;
    if (!replies_.empty()) {
      reply = std::move(replies_.front());
      replies_.pop_front();
    } else if (to_all_.has_value()) {
      reply.value = *to_all_;
    } else {
      return;
    }
    std::visit([&reply](const auto& call) { SetCall(call, &reply, 0); }, event);
    effects->push_back(std::move(reply));
  }
  // To the next event; to `call` where that is not a call itself.
  void Answer(absl::Status status, decltype(Reply::value) value = {}, CallId call = {})
      ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    replies_.push_back({call, std::move(status), std::move(value)});
  }
  // To each event from now on that has no answer of its own, which is then a call.
  void AnswerAll(decltype(Reply::value) value) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    to_all_ = std::move(value);
  }
  size_t CountEvents() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return events_.size();
  }
  template <typename Wanted>
  Wanted Next() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    while (events_.empty()) changed_.Wait(&mutex_);
    const Wanted event = std::get<Wanted>(events_.front());
    events_.pop_front();
    return event;
  }
  bool Idle() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    return events_.empty();
  }

 private:
  // Preferred for events that are calls; the other takes the rest.
  template <typename Call>
  static auto SetCall(const Call& call, Reply* reply, int preferred)
      -> decltype(call.call, void()) {
    reply->call = call.call;
  }
  template <typename Other>
  static void SetCall(const Other& event, Reply* reply, long preferred) {}

  Mutex mutex_;
  CondVar changed_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  std::deque<Reply> replies_ ABSL_GUARDED_BY(mutex_);
  absl::optional<decltype(Reply::value)> to_all_ ABSL_GUARDED_BY(mutex_);
};

class GrpcServerTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/memtide-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    context_.loop = &loop_;
    context_.tokens = &tokens_;
    context_.calls = &calls_;
    context_.metrics = &metrics_;
    context_.counters = &counters_;
    context_.node.fastest = Tier::kDevice;
    context_.node.limits.chunks_per_call = 7;
    context_.daemon_uid = 7;
    context_.admin_group = 70;
    context_.quotas = &quotas_;
    context_.version = "1.2.3";
    context_.boot_id = "boot";
    context_.node.device_uuids = {"another 16 bytes", "sixteen bytes of"};
    context_.cuda_maps_when_idle = {false, true};
    context_.warnings = {"no huge pages"};
    context_.ssd_directories.resize(1);
    context_.ssd_directories[0].set_path("/fast");
    auto server = GrpcServer::Start(directory_ + "/grpc.sock", &context_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    token_ = TokenFor(geteuid());
    channel_ = UnlistedChannel(directory_ + "/grpc.sock");
    sessions_ = v1::SessionService::NewStub(channel_);
    chunks_ = v1::ChunkService::NewStub(channel_);
    admin_ = v1::AdminService::NewStub(channel_);
  }
  void TearDown() override {
    loop_.Stop();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::unique_ptr<grpc::ClientContext> Context() const {
    auto context = std::make_unique<grpc::ClientContext>();
    context->AddMetadata("memtide-token-bin", token_);
    return context;
  }
  // A token of session 5 that was given to a process of `uid`.
  std::string TokenFor(uint32_t uid) {
    const Token token = tokens_.Mint({SessionId(5), uid}).value();
    return std::string(token.data(), token.size());
  }
  static v1::FetchRequest SomeFetch() {
    v1::FetchRequest request;
    request.add_chunk_ids(9);
    return request;
  }
  // A call whose message is any bytes.
  grpc::Status CallRaw(const std::string& method, const std::string& message,
                       grpc::ByteBuffer* response) const {
    grpc::GenericStub stub(channel_);
    const auto context = Context();
    grpc::CompletionQueue queue;
    const grpc::Slice slice(message);
    auto call = stub.PrepareUnaryCall(context.get(), method, grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(response, &status, nullptr);
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    return status;
  }
  // health.proto, by hand: 1 in field 1 is SERVING, 2 is NOT_SERVING.
  std::string Health() const {
    grpc::ByteBuffer response;
    const grpc::Status status = CallRaw("/grpc.health.v1.Health/Check", "", &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    grpc::Slice slice;
    EXPECT_TRUE(response.DumpToSingleSlice(&slice).ok());
    return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }

  std::string directory_, token_;
  ScriptedEngine engine_;
  NoEffects sink_;
  EdgeCounters counters_;
  Loop loop_{[this](Instant now, const Event& event, std::vector<Effect>* effects) {
               engine_.Handle(event, effects);
             },
             &sink_, &counters_};
  TokenTable tokens_;
  OpenCalls calls_{size_t{8} << 20};
  MetricsCache metrics_{
      [](const InspectReply& node) { return absl::StrCat("chunks ", node.chunk_count, "\n"); }};
  QuotaBook quotas_{{}, /*directory=*/"", Accounts(), /*most=*/9};
  ServiceContext context_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::ChunkService::Stub> chunks_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_TESTING_GRPC_SERVER_HARNESS_H_
