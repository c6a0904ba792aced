// GrpcDaemonSession and the node's inspection against a daemon whose limits are far below the usual
// ones, and which refuses what exceeds them. It answers StartPart as a test says.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/memory/descriptor.h"
#include "client/rpc/grpc_daemon_session.h"
#include "client/rpc/node_inspection.h"
#include "memtide/v1/admin.grpc.pb.h"
#include "memtide/v1/chunks.grpc.pb.h"
#include "memtide/v1/optimizer.grpc.pb.h"
#include "memtide/v1/session.grpc.pb.h"
#include "proto/digest_bytes.h"
#include "proto/protocol.h"

namespace memtide::client {
namespace {

constexpr uint32_t kChunksPerCall = 3;
constexpr uint32_t kChunks = 8;

v1::Limits SmallLimits() {
  v1::Limits limits;
  limits.set_chunks_per_call(kChunksPerCall);
  limits.set_moments_per_call(1);
  limits.set_uses_per_call(1);
  limits.set_iteration_ends_per_call(1);
  limits.set_step_manifest_bytes(1);
  limits.set_chunks_per_node(kChunks);
  limits.set_min_slots(1);
  limits.mutable_max_wait()->set_seconds(5);
  return limits;
}

grpc::Status Refuse(uint32_t chunks) {
  if (chunks >= 1 && chunks <= kChunksPerCall) return grpc::Status::OK;
  return {grpc::StatusCode::INVALID_ARGUMENT, "too many chunks"};
}

class Sessions : public v1::SessionService::Service {
 public:
  grpc::Status Open(grpc::ServerContext* context, const v1::OpenRequest* request,
                    v1::OpenResponse* response) override {
    *response->mutable_limits() = limits;
    return grpc::Status::OK;
  }
  grpc::Status Close(grpc::ServerContext* context, const v1::CloseRequest* request,
                     v1::CloseResponse* response) override {
    return grpc::Status::OK;
  }
  v1::Limits limits = SmallLimits();
};

class Chunks : public v1::ChunkService::Service {
 public:
  grpc::Status Allocate(grpc::ServerContext* context, const v1::AllocateRequest* request,
                        v1::AllocateResponse* response) override {
    for (uint32_t i = 0; i < request->count(); ++i) response->add_chunk_ids(++allocated);
    last_allocated = *request;
    return Refuse(request->count());
  }
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     v1::FetchResponse* response) override {
    if (request->release_chunk_ids_size() > static_cast<int>(kChunksPerCall)) return Refuse(0);
    for (const uint64_t id : request->chunk_ids()) response->add_leases()->set_chunk_id(id);
    longest_wait_s = std::max(longest_wait_s, request->deadline().seconds());
    if (waits_on > 0) {
      --waits_on;
      return {grpc::StatusCode::UNAVAILABLE, "wait on", kCallAgain};
    }
    return Refuse(static_cast<uint32_t>(request->chunk_ids_size()));
  }
  grpc::Status Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                       v1::ReleaseResponse* response) override {
    released += static_cast<uint32_t>(request->chunk_ids_size());
    return Refuse(static_cast<uint32_t>(request->chunk_ids_size()));
  }
  grpc::Status Offer(grpc::ServerContext* context, const v1::OfferRequest* request,
                     v1::OfferResponse* response) override {
    last_offered = *request;
    return grpc::Status::OK;
  }
  grpc::Status Duplicate(grpc::ServerContext* context, const v1::DuplicateRequest* request,
                         v1::DuplicateResponse* response) override {
    for (uint32_t i = 0; i < duplicates; ++i) response->add_chunk_ids(++allocated);
    return grpc::Status::OK;
  }
  uint32_t duplicates = 0;
  v1::AllocateRequest last_allocated;
  v1::OfferRequest last_offered;
  uint32_t allocated = 0, released = 0;
  uint32_t waits_on = 0;  // How many calls are to be made again.
  int64_t longest_wait_s = 0;
};

class Optimizer : public v1::OptimizerService::Service {
 public:
  grpc::Status StartPart(grpc::ServerContext* context, const v1::StartPartRequest* request,
                         v1::StartPartResponse* response) override {
    last_part = *request;
    *response = next_reply;
    return grpc::Status::OK;
  }
  v1::StartPartRequest last_part;
  v1::StartPartResponse next_reply;
};

class Admin : public v1::AdminService::Service {
 public:
  grpc::Status InspectNode(grpc::ServerContext* context, const v1::InspectNodeRequest* request,
                           v1::InspectNodeResponse* response) override {
    *response->mutable_limits() = SmallLimits();
    const uint32_t end = std::min(kChunks, request->first_chunk() + request->max_chunks());
    for (uint32_t id = request->first_chunk(); id < end; ++id) {
      // Another user has the chunks 2 and 3.
      if (id / 2 != 1) response->add_chunks()->set_chunk_id(id);
    }
    if (end < kChunks) response->set_next_chunk(end);
    return request->max_chunks() == 0 ? grpc::Status::OK : Refuse(request->max_chunks());
  }
};

class Budgets : public DaemonSessionEvents {
 public:
  void RegionArrived(RegionId id, Region region) override {}
  void RegionGone(RegionId id, const DeviceShare& share) override {}
  void RevokeRequested(const Revocation& revocation) override {}
  void LeaseBudgetChanged(const LeaseBudget& budget) override { leases.set_value(budget.leases); }
  void Lost(const absl::Status& reason) override {}
  std::promise<uint32_t> leases;
};

class SmallCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    char made[] = "/tmp/memtide-small-XXXXXX";
    ASSERT_NE(mkdtemp(made), nullptr);
    directory_ = made;
    const std::string target = "unix:" + directory_ + "/grpc.sock";
    grpc::ServerBuilder builder;
    builder.AddListeningPort(target, grpc::InsecureServerCredentials());
    builder.RegisterService(&sessions_);
    builder.RegisterService(&chunks_);
    builder.RegisterService(&optimizer_);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, (directory_ + "/fd.sock").c_str(), sizeof(address.sun_path) - 1);
    listener_ = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener_.get(), 1), 0);
    session_ = std::make_unique<GrpcDaemonSession>(DaemonAddress{directory_, "small_calls_test"});
  }
  void TearDown() override {
    session_.reset();
    server_->Shutdown();
    std::filesystem::remove_all(directory_);
  }
  absl::StatusOr<Job> Open() {
    std::thread daemon([this] {
      peer_ = Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      char hello[4096];
      EXPECT_GT(recv(peer_.get(), hello, sizeof(hello), 0), 0);
      v1::FdFrame frame;
      frame.mutable_welcome()->set_token(std::string(32, 't'));
      frame.mutable_welcome()->set_grpc_target("unix:" + directory_ + "/grpc.sock");
      const std::string packet = frame.SerializeAsString();
      EXPECT_GT(send(peer_.get(), packet.data(), packet.size(), MSG_NOSIGNAL), 0);
    });
    v1::OpenRequest request;
    request.set_chunk_size_bytes(MiB(2).count());
    absl::StatusOr<Job> job = session_->Open(request, &events_);
    daemon.join();
    return job;
  }

  std::string directory_;
  Sessions sessions_;
  Chunks chunks_;
  Optimizer optimizer_;
  Admin admin_;
  Budgets events_;
  std::unique_ptr<grpc::Server> server_;
  Descriptor listener_, peer_;
  std::unique_ptr<GrpcDaemonSession> session_;
};

TEST_F(SmallCallsTest, ListsOfChunksAreCutAtTheDaemonsLimit) {
  const absl::StatusOr<Job> job = Open();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->limits.chunks_per_call, kChunksPerCall);
  const auto chunks =
      session_->Allocate(kChunks, ChunkKind::kOther, InitialContent::kZeros, HomeTier::kLowest);
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  EXPECT_EQ(chunks->size(), kChunks);
  FetchOptions fetch;
  fetch.chunks = fetch.releases = *chunks;
  fetch.deadline = std::chrono::hours(1);
  const auto fetched = session_->Fetch(fetch);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->leases.size(), kChunks);
  EXPECT_EQ(chunks_.released, kChunks);
  EXPECT_EQ(chunks_.longest_wait_s, 5);
}

TEST_F(SmallCallsTest, AnAllocationSaysWhatItIsForAndWhereItsHomeIs) {
  ASSERT_TRUE(Open().ok());
  const auto allocate = [this](ChunkKind kind, InitialContent content, HomeTier home) {
    EXPECT_TRUE(session_->Allocate(1, kind, content, home).ok());
    return chunks_.last_allocated;
  };
  v1::AllocateRequest last =
      allocate(ChunkKind::kGradient, InitialContent::kUndefined, HomeTier::kHost);
  EXPECT_EQ(last.kind(), v1::CHUNK_KIND_GRADIENT);
  EXPECT_TRUE(last.undefined());
  EXPECT_EQ(last.home_tier(), v1::TIER_HOST);
  last = allocate(ChunkKind::kParameter, InitialContent::kZeros, HomeTier::kLowest);
  EXPECT_EQ(last.kind(), v1::CHUNK_KIND_PARAMETER);
  EXPECT_FALSE(last.undefined());
  EXPECT_EQ(last.home_tier(), v1::TIER_UNSPECIFIED);
}

TEST_F(SmallCallsTest, AnOfferWaitsAsLongAsTheDaemonLetsIt) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(session_->Offer({ChunkId(1)}).ok());
  EXPECT_EQ(chunks_.last_offered.deadline().seconds(), 5);
  EXPECT_FALSE(chunks_.last_offered.repeats());
  ASSERT_TRUE(session_->OfferWhenWritten({ChunkId(1)}).ok());
  EXPECT_TRUE(chunks_.last_offered.repeats());
}

TEST_F(SmallCallsTest, DuplicatesAreAsManyAsRequestedOrNone) {
  ASSERT_TRUE(Open().ok());
  chunks_.duplicates = 4;
  const auto made = session_->Duplicate({ChunkId(1), ChunkId(2)}, 2);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->size(), 4u);
  EXPECT_EQ(session_->Duplicate({ChunkId(1)}, 2).status().code(), absl::StatusCode::kInternal);
}

TEST_F(SmallCallsTest, ABudgetThatTheDaemonSendsArrives) {
  ASSERT_TRUE(Open().ok());
  v1::FdFrame frame;
  frame.mutable_lease_budget()->set_slots(9);
  frame.mutable_lease_budget()->set_leases(7);
  const std::string packet = frame.SerializeAsString();
  ASSERT_GT(send(peer_.get(), packet.data(), packet.size(), MSG_NOSIGNAL), 0);
  std::future<uint32_t> leases = events_.leases.get_future();
  ASSERT_EQ(leases.wait_for(std::chrono::minutes(1)), std::future_status::ready);
  EXPECT_EQ(leases.get(), 7u);
}

TEST_F(SmallCallsTest, ACallThatHasToWaitOnIsMadeAgain) {
  ASSERT_TRUE(Open().ok());
  chunks_.waits_on = 3;
  FetchOptions fetch;
  fetch.chunks = {ChunkId(1)};
  const auto fetched = session_->Fetch(fetch);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->leases.size(), 1u);
  EXPECT_EQ(chunks_.waits_on, 0u);
}

TEST_F(SmallCallsTest, ADaemonWithoutLimitsIsRefused) {
  sessions_.limits.Clear();
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("chunks_per_call is 0"), absl::string_view::npos) << status;
}

TEST_F(SmallCallsTest, ChunksAreListedInPagesOfTheDaemonsLimit) {
  NodeInspectionOptions options;
  options.socket_dir = directory_;
  options.max_chunks = 5;
  const absl::StatusOr<std::string> json = InspectNodeAsJson(options);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_NE(json->find("\"chunk_id\":\"6\""), std::string::npos) << *json;
  EXPECT_EQ(json->find("\"chunk_id\":\"7\""), std::string::npos) << *json;
}

// A part that reads two chunks and writes one, and says what it computes.
absl::StatusOr<LentPart> StartPart(GrpcDaemonSession* session, const v1::StartPartResponse& reply,
                                   Optimizer* daemon) {
  OwnPart part;
  part.id = 7;
  part.places = {PlaceId(4), PlaceId(5), PlaceId(6)};
  part.reads = 2;
  part.contents = PartContents{{1, 2}, {{}, {3, 4}}};
  daemon->next_reply = reply;
  return session->StartPart(part, {ChunkId(14), ChunkId(15), ChunkId(16)}, {});
}

TEST_F(SmallCallsTest, APartSaysWhatItComputesAndLearnsWhatBecameOfIt) {
  ASSERT_TRUE(Open().ok());
  v1::StartPartResponse reply;
  reply.set_made(true);
  absl::StatusOr<LentPart> lent = StartPart(session_.get(), reply, &optimizer_);
  ASSERT_TRUE(lent.ok()) << lent.status();
  EXPECT_EQ(lent->outcome.state, PartState::kMade);
  EXPECT_EQ(optimizer_.last_part.work_digest(), ToProto({1, 2}));
  ASSERT_EQ(optimizer_.last_part.read_digests_size(), 2);
  EXPECT_EQ(optimizer_.last_part.read_digests(0), "") << "it is not given";
  EXPECT_EQ(optimizer_.last_part.read_digests(1), ToProto({3, 4}));

  reply.Clear();
  reply.add_unknown_reads(1);
  lent = StartPart(session_.get(), reply, &optimizer_);
  ASSERT_TRUE(lent.ok()) << lent.status();
  EXPECT_EQ(lent->outcome.state, PartState::kNeedsDigests);
  EXPECT_EQ(lent->outcome.unknown_reads, std::vector<uint32_t>{1});

  reply.Clear();
  for (int i = 0; i < 3; ++i) reply.add_places()->set_region_id(9);
  reply.mutable_difference()->set_rank(5);
  reply.mutable_difference()->add_reads(0);
  lent = StartPart(session_.get(), reply, &optimizer_);
  ASSERT_TRUE(lent.ok()) << lent.status();
  EXPECT_EQ(lent->outcome.state, PartState::kComputing);
  EXPECT_EQ(lent->leases[2].chunk, ChunkId(16));
  EXPECT_EQ(lent->leases[2].region, RegionId(9));
  EXPECT_EQ(lent->outcome.difference->rank, 5u);
  EXPECT_FALSE(lent->outcome.difference->work);
  EXPECT_EQ(lent->outcome.difference->reads, std::vector<uint32_t>{0});
}

TEST_F(SmallCallsTest, AnswersThatAPartCannotHaveAreErrors) {
  ASSERT_TRUE(Open().ok());
  v1::StartPartResponse made_with_places;
  made_with_places.set_made(true);
  for (int i = 0; i < 3; ++i) made_with_places.add_places();
  v1::StartPartResponse one_place;
  one_place.add_places();
  v1::StartPartResponse written_is_unknown;
  written_is_unknown.add_unknown_reads(2);
  v1::StartPartResponse unknown_twice;
  for (int i = 0; i < 3; ++i) unknown_twice.add_unknown_reads(1);
  v1::StartPartResponse written_differs;
  for (int i = 0; i < 3; ++i) written_differs.add_places();
  written_differs.mutable_difference()->add_reads(2);
  for (const v1::StartPartResponse& reply : {v1::StartPartResponse(), made_with_places, one_place,
                                             written_is_unknown, unknown_twice, written_differs}) {
    EXPECT_EQ(StartPart(session_.get(), reply, &optimizer_).status().code(),
              absl::StatusCode::kInternal)
        << reply.ShortDebugString();
  }
  OwnPart alone;
  alone.places = {PlaceId(4)};
  optimizer_.next_reply.Clear();
  optimizer_.next_reply.set_made(true);
  EXPECT_EQ(session_->StartPart(alone, {ChunkId(14)}, {}).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(optimizer_.last_part.work_digest(), "");
}

}  // namespace
}  // namespace memtide::client
