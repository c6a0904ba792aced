#include "daemon/service/grpc_server.h"

#include <sys/stat.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/service/testing/grpc_server_harness.h"

namespace memtide {
namespace {

TEST_F(GrpcServerTest, ACallOfASessionBecomesItsEventAndTheReplyItsResponse) {
  FetchReply reply;
  reply.leases.push_back({ChunkId(9), Tier::kDevice, {RegionId(1), MiB(2)}, Version(4)});
  engine_.Answer(absl::OkStatus(), reply);
  v1::FetchResponse response;
  const grpc::Status status = chunks_->Fetch(Context().get(), SomeFetch(), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.leases(0).chunk_id(), 9u);
  const auto event = engine_.Next<FetchCall>();
  EXPECT_EQ(event.session, SessionId(5));
  EXPECT_EQ(event.tier, Tier::kDevice);
}

TEST_F(GrpcServerTest, CountsTheTimeOfFetchesThatDidNotWait) {
  const auto fetch = [this](FetchReply reply) {
    engine_.Answer(absl::OkStatus(), std::move(reply));
    v1::FetchResponse response;
    EXPECT_TRUE(chunks_->Fetch(Context().get(), SomeFetch(), &response).ok());
  };
  FetchReply waited;
  waited.waited = true;
  fetch(waited);
  EXPECT_EQ(counters_.fetch_hits.Sum().count(), 0);
  fetch(FetchReply());
  EXPECT_GT(counters_.fetch_hits.Sum().count(), 0);
}

TEST_F(GrpcServerTest, AnOpenedJobKnowsItsGpuAndItsShareMayChange) {
  OpenReply open;
  open.device_memory = MemoryKind::kCudaDescriptor;
  open.device = 1;
  engine_.Answer(absl::OkStatus(), open);
  v1::OpenResponse opened;
  ASSERT_TRUE(sessions_->Open(Context().get(), v1::OpenRequest(), &opened).ok());
  EXPECT_EQ(opened.cuda_device_uuid(), "sixteen bytes of");
  EXPECT_EQ(opened.device_number(), 1u);
  EXPECT_TRUE(opened.cuda_maps_when_idle());
  EXPECT_EQ(opened.device_memory(), v1::MEMORY_KIND_CUDA_DESCRIPTOR);
  engine_.Next<OpenCall>();
  engine_.Answer(absl::OkStatus(), ResizeReply{12, 9});
  v1::ResizeRequest resize;
  resize.set_device_share_bytes(MiB(24).count());
  v1::ResizeResponse resized;
  ASSERT_TRUE(sessions_->Resize(Context().get(), resize, &resized).ok());
  EXPECT_EQ(resized.device_slots(), 12u);
  EXPECT_EQ(engine_.Next<ResizeCall>().device_share, MiB(24));
  engine_.Answer(absl::OkStatus());
  v1::ReturnRegionsRequest regions;
  regions.add_region_ids(3);
  v1::ReturnRegionsResponse returned;
  ASSERT_TRUE(sessions_->ReturnRegions(Context().get(), regions, &returned).ok());
  EXPECT_EQ(engine_.Next<ReturnRegionsCall>().regions, std::vector<RegionId>{RegionId(3)});
}

TEST_F(GrpcServerTest, SaysTheLimitsInForceAndEnforcesThem) {
  Limits& limits = context_.node.limits;
  limits.moments_per_call = 1;
  limits.uses_per_call = 2;
  limits.iteration_ends_per_call = 3;
  limits.manifest_bytes = 5;
  limits.chunks = 6;
  limits.max_wait = std::chrono::seconds(8);
  engine_.Answer(absl::OkStatus(), OpenReply());
  v1::OpenResponse opened;
  ASSERT_TRUE(sessions_->Open(Context().get(), v1::OpenRequest(), &opened).ok());
  EXPECT_EQ(opened.limits().chunks_per_call(), 7u);
  EXPECT_EQ(opened.limits().moments_per_call(), 1u);
  EXPECT_EQ(opened.limits().uses_per_call(), 2u);
  EXPECT_EQ(opened.limits().iteration_ends_per_call(), 3u);
  EXPECT_EQ(opened.limits().step_manifest_bytes(), 5u);
  EXPECT_EQ(opened.limits().chunks_per_node(), 6u);
  EXPECT_EQ(opened.limits().min_slots(), kMinSlots);
  EXPECT_EQ(opened.limits().max_wait().seconds(), 8);
  engine_.Next<OpenCall>();
  v1::AllocateRequest allocate;
  allocate.set_request_id(1);
  allocate.set_count(8);
  v1::AllocateResponse response;
  const grpc::Status status = chunks_->Allocate(Context().get(), allocate, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "count: 8; must be 1 to 7");
  EXPECT_TRUE(engine_.Idle());
}

TEST_F(GrpcServerTest, WithoutItsTokenACallDoesNotReachTheEngine) {
  v1::FetchResponse response;
  grpc::ClientContext none;
  EXPECT_EQ(chunks_->Fetch(&none, SomeFetch(), &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  token_.back() = static_cast<char>(token_.back() ^ 1);
  EXPECT_EQ(chunks_->Fetch(Context().get(), SomeFetch(), &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(counters_.calls_unauthenticated, 2u);
  EXPECT_TRUE(engine_.Idle());
}

TEST_F(GrpcServerTest, TheEnginesRefusalKeepsCodeAndMessage) {
  engine_.Answer(absl::DataLossError("chunk 9: its writer died"));
  v1::FetchResponse response;
  const grpc::Status status = chunks_->Fetch(Context().get(), SomeFetch(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(status.error_message(), "chunk 9: its writer died");
}

TEST_F(GrpcServerTest, ABadRequestDoesNotReachTheEngine) {
  v1::FetchResponse response;
  EXPECT_EQ(chunks_->Fetch(Context().get(), v1::FetchRequest(), &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(engine_.Idle());
}

TEST_F(GrpcServerTest, TheLateReplyOfACancelledCallIsDropped) {
  const auto context = Context();
  v1::FetchResponse response;
  grpc::Status status;
  std::thread caller([&] { status = chunks_->Fetch(context.get(), SomeFetch(), &response); });
  const auto event = engine_.Next<FetchCall>();
  context->TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  engine_.Answer(absl::OkStatus(), FetchReply{}, event.call);
  loop_.Post(Tick{});
  // The server ends only when each of its calls has ended.
  server_.reset();
}

TEST_F(GrpcServerTest, RefusesMessagesAboveOneMebibyte) {
  v1::FetchRequest request;
  for (int i = 0; i < 200'000; ++i) request.add_chunk_ids(UINT64_MAX);
  v1::FetchResponse response;
  EXPECT_EQ(chunks_->Fetch(Context().get(), request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(engine_.Idle());
}

TEST_F(GrpcServerTest, RefusesMessagesThatNestTooDeeply) {
  // Groups of an unknown field within each other: protobuf keeps them, and reads 100 at most.
  const auto send = [this](int depth) {
    std::string message;
    for (int i = 0; i < depth; ++i) message += "\xa3\x06";
    for (int i = 0; i < depth; ++i) message += "\xa4\x06";
    grpc::ByteBuffer response;
    return CallRaw("/memtide.v1.SessionService/Renew", message, &response);
  };
  engine_.Answer(absl::OkStatus());
  EXPECT_TRUE(send(50).ok());
  engine_.Next<RenewCall>();
  EXPECT_FALSE(send(200).ok());
  EXPECT_FALSE(send(100'000).ok());
  EXPECT_TRUE(engine_.Idle());
}

TEST_F(GrpcServerTest, TakesNoCompressedMessages) {
  const auto context = Context();
  context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::FetchRequest request;
  for (int i = 0; i < 4000; ++i) request.add_chunk_ids(1);
  v1::FetchResponse response;
  EXPECT_EQ(chunks_->Fetch(context.get(), request, &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(engine_.Idle());
}

TEST_F(GrpcServerTest, InspectionNeedsNoTokenAndSaysWhatOnlyTheDaemonKnows) {
  InspectReply reply;
  reply.session_count = 3;
  engine_.Answer(absl::OkStatus(), reply);
  grpc::ClientContext context;
  v1::InspectNodeResponse response;
  ASSERT_TRUE(admin_->InspectNode(&context, {}, &response).ok());
  EXPECT_EQ(response.session_count(), 3u);
  EXPECT_EQ(response.version(), "1.2.3");
  EXPECT_EQ(response.boot_id(), "boot");
  ASSERT_EQ(response.warnings_size(), 1);
  EXPECT_EQ(response.warnings(0), "no huge pages");
  EXPECT_EQ(response.limits().chunks_per_call(), 7u);
  ASSERT_EQ(response.ssd_directories_size(), 1);
  EXPECT_EQ(response.ssd_directories(0).path(), "/fast");
}

TEST_F(GrpcServerTest, MetricsAreOfTheEngineUnlessThereAreSomeOfThisSecond) {
  const auto text = [this] {
    grpc::ClientContext context;
    v1::GetMetricsResponse response;
    EXPECT_TRUE(admin_->GetMetrics(&context, {}, &response).ok());
    return response.text();
  };
  InspectReply reply;
  reply.chunk_count = 7;
  engine_.Answer(absl::OkStatus(), reply);
  EXPECT_EQ(text(), "chunks 7\n");
  EXPECT_FALSE(engine_.Next<InspectCall>().sessions);
  // As if they came a second later at the earliest.
  const Instant future = Now() + std::chrono::hours(1);
  reply.chunk_count = 8;
  metrics_.Update(reply, future);
  EXPECT_EQ(text(), "chunks 8\n");
  EXPECT_TRUE(engine_.Idle());
  const Instant just = future + MetricsCache::kLasts - std::chrono::milliseconds(1);
  EXPECT_EQ(metrics_.Recent(just), "chunks 8\n");
  EXPECT_EQ(metrics_.Recent(future + MetricsCache::kLasts), absl::nullopt);
}

TEST_F(GrpcServerTest, HealthFollowsTheDaemon) {
  EXPECT_EQ(Health(), std::string("\x08\x01"));
  server_->SetNotServing();
  EXPECT_EQ(Health(), std::string("\x08\x02"));
}

TEST_F(GrpcServerTest, OnlyOwnerAndGroupMayConnect) {
  struct stat info;
  ASSERT_EQ(stat((directory_ + "/grpc.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0660u);
}

}  // namespace
}  // namespace memtide
