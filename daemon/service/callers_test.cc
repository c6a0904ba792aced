// Tests what the services make of the user that calls, and of a client that does not read.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/service/testing/grpc_server_harness.h"
#include "daemon/service/testing/unlisted_channel.h"

namespace memtide {
namespace {

using grpc::StatusCode;

constexpr uint32_t kNobody = 65534;
constexpr size_t kReplyBytes = 256 << 10;
// InspectNodeRequest.sessions.
constexpr char kWithSessions[] = "\x08\x01";

class CallersTest : public GrpcServerTest {
 protected:
  void SetUp() override {
    GrpcServerTest::SetUp();
    ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
    ASSERT_EQ(chmod((directory_ + "/grpc.sock").c_str(), 0666), 0);
  }
  int Connect() const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    (directory_ + "/grpc.sock").copy(address.sun_path, sizeof(address.sun_path) - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0)
        << std::strerror(errno);
    return fd;
  }
  // A channel of a process of `uid`, which is a member of `group`.
  std::shared_ptr<grpc::Channel> ChannelAs(uint32_t uid, gid_t group = kNobody) const {
    // The system calls, other than the functions, are for this thread only.
    const auto become = [](uid_t effective, gid_t member) {
      EXPECT_EQ(syscall(SYS_setgroups, 1, &member), 0) << std::strerror(errno);
      EXPECT_EQ(syscall(SYS_setresuid, -1, effective, -1), 0) << std::strerror(errno);
    };
    become(uid, group);
    const int fd = Connect();
    EXPECT_EQ(syscall(SYS_setresuid, -1, 0, -1), 0) << std::strerror(errno);
    become(0, 0);
    EXPECT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return UnlistedChannelFromFd(fd);
  }
  std::unique_ptr<grpc::ClientContext> ContextWith(const std::string& token) const {
    auto context = std::make_unique<grpc::ClientContext>();
    context->AddMetadata("memtide-token-bin", token);
    return context;
  }
  StatusCode FetchAs(uint32_t uid, const std::string& token) const {
    v1::FetchResponse response;
    return v1::ChunkService::NewStub(ChannelAs(uid))
        ->Fetch(ContextWith(token).get(), SomeFetch(), &response)
        .error_code();
  }
};

// Waits until it is true, for 20 s at most.
bool Eventually(const std::function<bool()>& is_true) {
  const Instant due = Now() + std::chrono::seconds(20);
  while (!is_true() && Now() < due) std::this_thread::yield();
  return is_true();
}

// A connection that sends calls without a token and never gives the server room for a reply
// (RFC 9113: the initial window of streams is 0).
class NeverReads {
 public:
  explicit NeverReads(int fd) : fd_(fd) {
    const std::string settings("\0\x4\0\0\0\0", 6);
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, 0, settings));
  }
  ~NeverReads() { close(fd_); }
  NeverReads(const NeverReads&) = delete;
  NeverReads& operator=(const NeverReads&) = delete;

  // False: the connection has ended.
  bool Call(const std::string& method, const std::string& message = "") {
    stream_ += 2;
    std::string headers;
    Add(":method", "POST", &headers);
    Add(":scheme", "http", &headers);
    Add(":path", "/memtide.v1." + method, &headers);
    Add(":authority", "localhost", &headers);
    Add("content-type", "application/grpc", &headers);
    Add("te", "trailers", &headers);
    const std::string prefix = std::string(4, '\0') + static_cast<char>(message.size());
    return Send(Frame(1, 4, stream_, headers) + Frame(0, 1, stream_, prefix + message));
  }
  bool IsClosed() const {
    pollfd watched = {fd_, POLLRDHUP, 0};
    return poll(&watched, 1, 0) == 1;
  }

 private:
  static std::string Frame(char type, char flags, uint32_t stream, const std::string& payload) {
    std::string frame;
    for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift);
    frame += {type, flags};
    for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
    return frame + payload;
  }
  // A literal field that is not indexed (RFC 7541, 6.2.2).
  static void Add(const std::string& name, const std::string& value, std::string* headers) {
    *headers += '\0';
    *headers += static_cast<char>(name.size());
    *headers += name;
    *headers += static_cast<char>(value.size());
    *headers += value;
  }
  bool Send(const std::string& bytes) const {
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }

  const int fd_;
  uint32_t stream_ = static_cast<uint32_t>(-1);
};

TEST_F(CallersTest, ATokenCountsOnlyFromTheUserThatItWasGivenTo) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  engine_.AnswerAll(FetchReply());
  const std::string of_root = TokenFor(0), of_nobody = TokenFor(kNobody);
  EXPECT_EQ(FetchAs(0, of_root), StatusCode::OK);
  EXPECT_EQ(FetchAs(kNobody, of_nobody), StatusCode::OK);
  EXPECT_EQ(engine_.CountEvents(), 2u);
  EXPECT_EQ(FetchAs(kNobody, of_root), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(FetchAs(0, of_nobody), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(engine_.CountEvents(), 2u);
  EXPECT_EQ(counters_.calls_unauthenticated, 2u);
}

TEST_F(CallersTest, AUserSeesItsOwnJobsAndOperatorsAll) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be several users";
  const std::pair<uint32_t, absl::optional<uint32_t>> viewers[] = {
      {kNobody, kNobody}, {0, absl::nullopt}, {context_.daemon_uid, absl::nullopt}};
  for (const auto& [uid, viewer] : viewers) {
    const auto admin = v1::AdminService::NewStub(ChannelAs(uid));
    engine_.Answer(absl::OkStatus(), InspectReply());
    v1::InspectNodeResponse node;
    ASSERT_TRUE(admin->InspectNode(ContextWith("").get(), {}, &node).ok()) << uid;
    EXPECT_EQ(engine_.Next<InspectCall>().viewer, viewer) << uid;
    engine_.Answer(absl::OkStatus(), TraceReply());
    v1::Trace trace;
    ASSERT_TRUE(admin->GetTrace(ContextWith("").get(), {}, &trace).ok()) << uid;
    EXPECT_EQ(engine_.Next<TraceCall>().viewer, viewer) << uid;
  }
}

// The kernel says who calls: no token makes an administrator.
TEST_F(CallersTest, OnlyAdministratorsDrainAndSetQuotas) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be several users";
  const std::string of_root = TokenFor(0);
  v1::SetQuotaRequest quota;
  quota.mutable_quota()->set_subject("user:5");
  quota.mutable_quota()->set_jobs(3);
  v1::ClearQuotaRequest clear;
  clear.set_subject("user:5");
  const auto codes = [&](uint32_t uid, gid_t group) {
    const auto admin = v1::AdminService::NewStub(ChannelAs(uid, group));
    v1::DrainResponse drained;
    v1::SetQuotaResponse set;
    v1::ClearQuotaResponse cleared;
    return std::vector<StatusCode>{
        admin->Drain(ContextWith(of_root).get(), {}, &drained).error_code(),
        admin->SetQuota(ContextWith(of_root).get(), quota, &set).error_code(),
        admin->ClearQuota(ContextWith(of_root).get(), clear, &cleared).error_code()};
  };
  const std::vector<StatusCode> refused(3, StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(codes(kNobody, kNobody), refused);
  EXPECT_EQ(codes(kNobody, *context_.admin_group + 1), refused);
  EXPECT_TRUE(engine_.Idle());
  EXPECT_TRUE(quotas_.All().empty());
  engine_.AnswerAll(std::monostate());
  const std::vector<StatusCode> done(3, StatusCode::OK);
  EXPECT_EQ(codes(0, kNobody), done);
  EXPECT_EQ(codes(context_.daemon_uid, kNobody), done);
  EXPECT_EQ(codes(kNobody, *context_.admin_group), done);
}

TEST_F(CallersTest, AMemberOfTheAdminGroupSeesAndEndsAllJobsAndAUserItsOwn) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be several users";
  v1::EndJobRequest request;
  request.set_job_id(3);
  const std::pair<gid_t, absl::optional<uint32_t>> viewers[] = {
      {kNobody, kNobody}, {*context_.admin_group, absl::nullopt}};
  for (const auto& [group, viewer] : viewers) {
    const auto admin = v1::AdminService::NewStub(ChannelAs(kNobody, group));
    EndJobReply reply;
    reply.job.name = "three";
    engine_.Answer(absl::OkStatus(), reply);
    v1::EndJobResponse ended;
    ASSERT_TRUE(admin->EndJob(ContextWith("").get(), request, &ended).ok());
    EXPECT_EQ(ended.job().name(), "three");
    const EndJobCall call = engine_.Next<EndJobCall>();
    EXPECT_EQ(call.viewer, viewer);
    EXPECT_EQ(call.job, JobId(3));
    engine_.Answer(absl::OkStatus(), InspectReply());
    v1::InspectNodeResponse node;
    ASSERT_TRUE(admin->InspectNode(ContextWith("").get(), {}, &node).ok());
    const InspectCall inspect = engine_.Next<InspectCall>();
    EXPECT_EQ(inspect.viewer, viewer);
    EXPECT_EQ(inspect.caller->uid, kNobody);
    engine_.Answer(absl::OkStatus(), TraceReply());
    v1::Trace trace;
    ASSERT_TRUE(admin->GetTrace(ContextWith("").get(), {}, &trace).ok());
    EXPECT_EQ(engine_.Next<TraceCall>().viewer, kNobody) << "what others train is not theirs";
  }
}

TEST_F(CallersTest, TheEngineIsToldAllQuotasThatHold) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_subject("user:5");
  request.mutable_quota()->set_host_bytes(9);
  context_.daemon_uid = geteuid();
  engine_.Answer(absl::OkStatus());
  v1::SetQuotaResponse response;
  ASSERT_TRUE(admin_->SetQuota(Context().get(), request, &response).ok());
  EXPECT_EQ(response.quota().host_bytes(), 9u);
  EXPECT_FALSE(response.outlives_daemon());
  const SetQuotasCall call = engine_.Next<SetQuotasCall>();
  ASSERT_EQ(call.quotas.size(), 1u);
  EXPECT_EQ(call.quotas[0].id, 5u);
  request.mutable_quota()->set_subject("5");
  EXPECT_EQ(admin_->SetQuota(Context().get(), request, &response).error_code(),
            StatusCode::INVALID_ARGUMENT);
  v1::DrainRequest unknown;
  unknown.set_mode(static_cast<v1::DrainMode>(9));
  v1::DrainResponse drained;
  EXPECT_EQ(admin_->Drain(Context().get(), unknown, &drained).error_code(),
            StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(engine_.Idle());
}

TEST_F(CallersTest, TheNodeSendsTwoTracesAtATime) {
  TraceReply reply;
  reply.moments.resize(1);
  reply.moments[0].name = std::string(kReplyBytes, 'm');
  engine_.AnswerAll(reply);
  v1::Trace trace;
  {
    NeverReads client(Connect());
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(client.Call("AdminService/GetTrace"));
    ASSERT_TRUE(Eventually([this] { return engine_.CountEvents() == 2; }));
    const grpc::Status status = admin_->GetTrace(Context().get(), {}, &trace);
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(status.error_message().rfind("max_traces: ", 0), 0u) << status.error_message();
    EXPECT_EQ(engine_.CountEvents(), 2u);
  }
  EXPECT_TRUE(Eventually([&] { return admin_->GetTrace(Context().get(), {}, &trace).ok(); }))
      << "the client has left, and its traces with it";
}

TEST_F(CallersTest, RepliesThatAreNotReadAreBounded) {
  InspectReply reply;
  reply.sessions.resize(1);
  reply.sessions[0].open = true;
  reply.sessions[0].job_name = std::string(kReplyBytes, 'j');
  engine_.AnswerAll(reply);
  NeverReads client(Connect());
  constexpr uint64_t kCalls = 64;
  const auto list = [&client] { return client.Call("AdminService/InspectNode", kWithSessions); };
  for (uint64_t i = 0; i < kCalls; ++i) ASSERT_TRUE(list());
  ASSERT_TRUE(
      Eventually([this] { return engine_.CountEvents() + counters_.calls_unread == kCalls; }));
  // One user has half of 8 MiB, of which a listing takes one until its size is known.
  EXPECT_LE(engine_.CountEvents() * kReplyBytes, size_t{4} << 20);
  EXPECT_GE(engine_.CountEvents(), 3u);
  EXPECT_FALSE(client.IsClosed());
  // Refusals are not read, either.
  for (int i = 0; i < 900 && list(); ++i) {
  }
  EXPECT_TRUE(Eventually([&] { return client.IsClosed(); }));
  v1::InspectNodeRequest request;
  request.set_sessions(true);
  v1::InspectNodeResponse node;
  EXPECT_TRUE(Eventually([&] { return admin_->InspectNode(Context().get(), request, &node).ok(); }))
      << "what the connection had is free";
}

TEST_F(CallersTest, AUserWithTooManyCallsKeepsItsSessionsAndOthersAreServed) {
  OpenCalls::Charge unread;
  ASSERT_TRUE(calls_.Begin({geteuid(), -1}, 0, &unread).ok());
  unread.SetReply(size_t{5} << 20);
  v1::FetchResponse response;
  const grpc::Status status = chunks_->Fetch(Context().get(), SomeFetch(), &response);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("replies that it does not read"), std::string::npos);
  EXPECT_EQ(counters_.calls_unread, 1u);
  EXPECT_TRUE(engine_.Idle());
  engine_.AnswerAll(std::monostate());
  v1::RenewResponse renewed;
  EXPECT_TRUE(sessions_->Renew(Context().get(), {}, &renewed).ok());
  v1::ReleaseRequest release;
  release.set_request_id(1);
  release.add_chunk_ids(1);
  v1::ReleaseResponse released;
  EXPECT_TRUE(chunks_->Release(Context().get(), release, &released).ok());
  if (geteuid() != 0) return;
  engine_.AnswerAll(FetchReply());
  EXPECT_EQ(FetchAs(kNobody, TokenFor(kNobody)), StatusCode::OK);
}

}  // namespace
}  // namespace memtide
