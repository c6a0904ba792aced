#include "daemon/service/convert.h"

#include <gtest/gtest.h>

#include "proto/protocol.h"

namespace memtide {
namespace {

NodeDefaults NodeWithDevice() {
  NodeDefaults node;
  node.fastest = Tier::kDevice;
  return node;
}

v1::FetchRequest SomeFetch() {
  v1::FetchRequest request;
  request.add_chunk_ids(7);
  return request;
}

template <typename Request>
absl::StatusCode CodeOf(const Request& request) {
  return ToEvent(request, NodeWithDevice()).status().code();
}

TEST(ConvertTest, FillsInWhatAFetchLeavesUnsaid) {
  const auto event = ToEvent(SomeFetch(), NodeWithDevice());
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->tier, Tier::kDevice);
  EXPECT_EQ(event->access, Access::kRead);
  EXPECT_TRUE(event->wait);
  EXPECT_EQ(event->deadline, Duration(0));
  EXPECT_EQ(event->chunks, std::vector<ChunkId>{ChunkId(7)});
  EXPECT_EQ(ToEvent(SomeFetch(), NodeDefaults{})->tier, Tier::kHost);
}

TEST(ConvertTest, ADeviceIsNamedByItsNumberOrItsUuid) {
  NodeDefaults node = NodeWithDevice();
  node.device_uuids = {"", "another 16 bytes", "sixteen bytes of"};
  v1::OpenRequest request;
  EXPECT_EQ(ToEvent(request, node)->device, absl::nullopt);
  request.set_device_number(7);
  EXPECT_EQ(ToEvent(request, node)->device, 7u) << "the engine knows which there are";
  request.set_cuda_device_uuid("sixteen bytes of");
  EXPECT_EQ(ToEvent(request, node)->device, 2u);
  request.set_cuda_device_uuid("sixteen bytes on");
  const absl::Status unknown = ToEvent(request, node).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.message().find("none of the node's 3 devices"), absl::string_view::npos);
  for (const char* const wrong : {"", "sixteen bytes of a name"}) {
    request.set_cuda_device_uuid(wrong);
    const absl::Status status = ToEvent(request, node).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("a uuid has 16"), absl::string_view::npos) << status;
  }
}

TEST(ConvertTest, TakesWhatAFetchSays) {
  v1::FetchRequest request = SomeFetch();
  request.set_tier(v1::TIER_HOST);
  request.set_access(v1::ACCESS_WRITE);
  request.set_wait_policy(v1::WAIT_POLICY_NO_WAIT);
  request.mutable_deadline()->set_seconds(2);
  request.mutable_deadline()->set_nanos(5);
  request.add_release_chunk_ids(9);
  const auto event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->tier, Tier::kHost);
  EXPECT_EQ(event->access, Access::kWrite);
  EXPECT_FALSE(event->wait);
  EXPECT_EQ(event->deadline, std::chrono::seconds(2) + std::chrono::nanoseconds(5));
  EXPECT_EQ(event->releases, std::vector<ChunkId>{ChunkId(9)});
}

TEST(ConvertTest, RefusesBatchesThatAreEmptyOrTooLong) {
  EXPECT_EQ(CodeOf(v1::FetchRequest()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(v1::EvictRequest()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(v1::DescribeRequest()), absl::StatusCode::kInvalidArgument);
  v1::FetchRequest request;
  for (int i = 0; i < static_cast<int>(Limits().chunks_per_call); ++i) request.add_chunk_ids(1);
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kOk);
  request.add_chunk_ids(1);
  const absl::Status status = ToEvent(request, NodeWithDevice()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("4097 chunks; at most 4096"), absl::string_view::npos) << status;

  v1::FetchRequest many_releases = SomeFetch();
  for (int i = 0; i <= static_cast<int>(Limits().chunks_per_call); ++i)
    many_releases.add_release_chunk_ids(1);
  EXPECT_EQ(CodeOf(many_releases), absl::StatusCode::kInvalidArgument);
}

TEST(ConvertTest, ReadsWhatWasUsed) {
  v1::ReportRequest request;
  v1::Moment* const moment = request.add_moments();
  moment->set_phase(v1::PHASE_BACKWARD);
  moment->set_name("Linear");
  moment->set_own_device_bytes(7);
  moment->set_ends_iteration(true);
  moment->add_uses()->set_chunk_id(5);
  moment->add_uses()->set_access(v1::ACCESS_WRITE);
  const auto event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok()) << event.status();
  const MomentReport& report = event->moments.at(0);
  EXPECT_EQ(report.phase, Phase::kBackward);
  EXPECT_EQ(report.name, "Linear");
  EXPECT_EQ(report.own_device, Bytes(7));
  EXPECT_TRUE(report.ends_iteration);
  EXPECT_FALSE(report.continues);
  EXPECT_EQ(report.uses.at(0).chunk, ChunkId(5));
  EXPECT_EQ(report.uses.at(1).access, Access::kWrite);
  moment->set_phase(static_cast<v1::Phase>(9));
  EXPECT_EQ(ToEvent(request, NodeWithDevice()).status().code(), absl::StatusCode::kUnimplemented);
}

// Each costs the client two bytes, and would cost the daemon a hundred.
TEST(ConvertTest, CountsReportsBeforeItMakesThem) {
  NodeDefaults node;
  node.limits.moments_per_call = 4;
  node.limits.uses_per_call = 3;
  node.limits.iteration_ends_per_call = 2;
  const auto message = [&node](const auto& request) {
    return std::string(ToEvent(request, node).status().message());
  };
  v1::ReportRequest report;
  for (int i = 0; i < 4; ++i) report.add_moments();
  EXPECT_TRUE(ToEvent(report, node).ok());
  v1::FetchRequest fetch = SomeFetch();
  *fetch.mutable_moments() = report.moments();
  EXPECT_TRUE(ToEvent(fetch, node).ok());
  report.add_moments();
  EXPECT_EQ(message(report), "moments: 5; at most 4 a call");
  fetch.add_moments();
  EXPECT_EQ(message(fetch), "moments: 5; at most 4 a call");
  report.clear_moments();
  for (int i = 0; i < 4; ++i) report.add_moments()->add_uses();
  EXPECT_EQ(message(report), "moments.uses: 4; at most 3 a call");
  report.clear_moments();
  for (int i = 0; i < 3; ++i) report.add_moments()->set_ends_iteration(true);
  EXPECT_EQ(message(report), "moments.ends_iteration: 3; at most 2 a call");
}

TEST(ConvertTest, NamesTheKnownRangeOfAnEnum) {
  v1::FetchRequest request = SomeFetch();
  request.set_tier(static_cast<v1::Tier>(9));
  const absl::Status status = ToEvent(request, NodeWithDevice()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "tier: 9 is not known here; known: 0 to 3");

  v1::FetchRequest access = SomeFetch();
  access.set_access(static_cast<v1::Access>(-1));
  EXPECT_EQ(CodeOf(access), absl::StatusCode::kUnimplemented);
  v1::FetchRequest policy = SomeFetch();
  policy.set_wait_policy(static_cast<v1::WaitPolicy>(3));
  EXPECT_EQ(CodeOf(policy), absl::StatusCode::kUnimplemented);
  v1::AllocateRequest allocate;
  allocate.set_request_id(1);
  allocate.set_count(1);
  allocate.set_kind(static_cast<v1::ChunkKind>(5));
  EXPECT_EQ(CodeOf(allocate), absl::StatusCode::kUnimplemented);
}

TEST(ConvertTest, ZerosAreTheDefault) {
  v1::AllocateRequest allocate;
  allocate.set_request_id(1);
  allocate.set_count(1);
  EXPECT_FALSE(ToEvent(allocate, NodeDefaults{})->undefined);
  allocate.set_undefined(true);
  EXPECT_TRUE(ToEvent(allocate, NodeDefaults{})->undefined);
}

TEST(ConvertTest, OnlyActivationsAreTransient) {
  v1::AllocateRequest allocate;
  allocate.set_request_id(1);
  allocate.set_count(1);
  allocate.set_kind(v1::CHUNK_KIND_GRADIENT);
  EXPECT_FALSE(ToEvent(allocate, NodeDefaults{})->transient);
  EXPECT_FALSE(ToEvent(allocate, NodeDefaults{})->home.has_value());
  allocate.set_kind(v1::CHUNK_KIND_ACTIVATION);
  allocate.set_home_tier(v1::TIER_HOST);
  EXPECT_TRUE(ToEvent(allocate, NodeDefaults{})->transient);
  EXPECT_EQ(ToEvent(allocate, NodeDefaults{})->home, Tier::kHost);
  allocate.set_home_tier(static_cast<v1::Tier>(9));
  EXPECT_EQ(CodeOf(allocate), absl::StatusCode::kUnimplemented);
}

TEST(ConvertTest, RefusesTiersThatACallCannotMean) {
  v1::FetchRequest fetch = SomeFetch();
  fetch.set_tier(v1::TIER_SSD);
  EXPECT_EQ(CodeOf(fetch), absl::StatusCode::kInvalidArgument);
  v1::EvictRequest evict;
  evict.add_chunk_ids(1);
  EXPECT_EQ(CodeOf(evict), absl::StatusCode::kInvalidArgument);
  evict.set_tier(v1::TIER_DEVICE);
  EXPECT_EQ(CodeOf(evict), absl::StatusCode::kInvalidArgument);
  evict.set_tier(v1::TIER_SSD);
  EXPECT_EQ(CodeOf(evict), absl::StatusCode::kOk);
}

TEST(ConvertTest, RefusesDurationsThatCannotBeMeant) {
  const auto code = [](int64_t seconds, int32_t nanos) {
    v1::FetchRequest request = SomeFetch();
    request.mutable_deadline()->set_seconds(seconds);
    request.mutable_deadline()->set_nanos(nanos);
    return CodeOf(request);
  };
  EXPECT_EQ(code(600, 0), absl::StatusCode::kOk);
  EXPECT_EQ(code(600, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(INT64_MAX, 999'999'999), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(INT64_MIN, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(-1, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1, -1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 1'000'000'000), absl::StatusCode::kInvalidArgument);
}

TEST(ConvertTest, RefusesSizesAndNamesThatNoJobCanHave) {
  v1::OpenRequest request;
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kOk);  // Zero: the size of the job that is joined.
  request.set_chunk_size_bytes(MiB(2).count() + 1);
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kInvalidArgument);
  request.set_chunk_size_bytes(GiB(1).count() + MiB(2).count());
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kInvalidArgument);
  request.set_chunk_size_bytes(GiB(1).count());
  request.set_job_name(std::string(kMaxJobNameBytes, 'j'));
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kOk);
  request.set_job_name(std::string(kMaxJobNameBytes + 1, 'j'));
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kInvalidArgument);
}

TEST(ConvertTest, AJobNameHasNoControlCharacters) {
  v1::OpenRequest request;
  for (const char* const name : {"run 7/[b]", "\u00a0\u00e9\u20ac", "\u3080"}) {
    request.set_job_name(name);
    EXPECT_EQ(CodeOf(request), absl::StatusCode::kOk) << name;
  }
  // Escape, newline, delete, and the last of the C1 set, in which U+009B begins a sequence, too.
  for (const char* const name : {"\x1b[2J", "a\nb", "a\x7f", "a\xc2\x9f", "\xc2\x9b[2J"}) {
    request.set_job_name(name);
    EXPECT_EQ(CodeOf(request), absl::StatusCode::kInvalidArgument) << name;
  }
  request.set_job_name("a\x1b");
  EXPECT_EQ(ToEvent(request, NodeWithDevice()).status().message(),
            "job_name: \"a\\033\" has a control character; use printable ones only");
}

TEST(ConvertTest, TakesTheRanksOfATraining) {
  v1::OpenRequest request;
  EXPECT_EQ(ToEvent(request, NodeWithDevice())->ranks, 0u);
  request.set_job_name("training");
  request.set_rank(4095);
  request.set_ranks(4096);
  const auto event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(event->rank, 4095u);
  EXPECT_EQ(event->ranks, 4096u);
}

TEST(ConvertTest, TakesHowManySessionsTrainAlike) {
  v1::OpenRequest request;
  EXPECT_EQ(ToEvent(request, NodeWithDevice())->alike, 1u);
  request.set_alike(4096);
  EXPECT_EQ(ToEvent(request, NodeWithDevice())->alike, 4096u);
  request.set_alike(4097);
  EXPECT_EQ(ToEvent(request, NodeWithDevice()).status().message(), "alike: 4097; at most 4096");
}

TEST(ConvertTest, TakesWhetherAnOfferRepeats) {
  v1::OfferRequest request;
  request.add_chunk_ids(7);
  EXPECT_FALSE(ToEvent(request, NodeWithDevice())->repeats);
  request.set_repeats(true);
  EXPECT_TRUE(ToEvent(request, NodeWithDevice())->repeats);
}

TEST(ConvertTest, RefusesRanksThatNoTrainingCanHave) {
  const auto message = [](uint32_t rank, uint32_t ranks, const char* job) {
    v1::OpenRequest request;
    request.set_rank(rank);
    request.set_ranks(ranks);
    request.set_job_name(job);
    const absl::Status status = ToEvent(request, NodeWithDevice()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << rank << " of " << ranks;
    return std::string(status.message());
  };
  EXPECT_EQ(message(2, 2, "training"), "rank: 2; must be less than ranks, 2");
  EXPECT_EQ(message(1, 0, "training"), "rank: 1, without the number of ranks");
  EXPECT_EQ(message(0, 4097, "training"), "ranks: 4097; at most 4096");
  EXPECT_EQ(message(0, 2, ""), "job_name: empty; 2 ranks need one, to share their job");
}

TEST(ConvertTest, TakesHowDeviceMemoryIsToBeLent) {
  v1::OpenRequest request;
  EXPECT_FALSE(ToEvent(request, NodeWithDevice())->device_memory.has_value());
  request.set_device_memory(v1::MEMORY_KIND_CUDA_IPC);
  EXPECT_EQ(ToEvent(request, NodeWithDevice())->device_memory, MemoryKind::kCudaIpc);
  request.set_device_memory(v1::MEMORY_KIND_CUDA_DESCRIPTOR);
  EXPECT_EQ(ToEvent(request, NodeWithDevice())->device_memory, MemoryKind::kCudaDescriptor);
  request.set_device_memory(v1::MEMORY_KIND_SHARED_MEMORY);
  EXPECT_EQ(ToEvent(request, NodeWithDevice())->device_memory, MemoryKind::kSharedMemory);
  request.set_device_memory(static_cast<v1::MemoryKind>(4));
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kUnimplemented);
  OpenReply reply;
  reply.device_memory = MemoryKind::kCudaDescriptor;
  v1::OpenResponse response;
  ToResponse(reply, &response);
  EXPECT_EQ(response.device_memory(), v1::MEMORY_KIND_CUDA_DESCRIPTOR);
}

TEST(ConvertTest, TakesAResizeAndAnswersIt) {
  v1::ResizeRequest request;
  request.set_device_share_bytes(UINT64_MAX);
  request.mutable_deadline()->set_seconds(600);
  const auto event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->device_share, Bytes(UINT64_MAX));
  EXPECT_EQ(event->deadline, std::chrono::minutes(10));
  request.mutable_deadline()->set_nanos(1);
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kInvalidArgument);
  v1::ResizeResponse response;
  ToResponse(ResizeReply{12, 9}, &response);
  EXPECT_EQ(response.device_slots(), 12u);
  EXPECT_EQ(response.lease_budget(), 9u);
}

TEST(ConvertTest, TakesAsManyRegionsBackAsAJobCanHave) {
  v1::ReturnRegionsRequest request;
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kOk);
  for (uint32_t id = 0; id < Limits().device_regions; ++id) request.add_region_ids(id);
  const auto event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->regions.size(), Limits().device_regions);
  EXPECT_EQ(event->regions[7], RegionId(7));
  request.add_region_ids(1);
  const absl::Status status = ToEvent(request, NodeWithDevice()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("4097 regions; at most 4096"), absl::string_view::npos) << status;
}

TEST(ConvertTest, WantsARequestIdWhereARetryMustBeKnown) {
  v1::AllocateRequest allocate;
  allocate.set_count(1);
  EXPECT_EQ(CodeOf(allocate), absl::StatusCode::kInvalidArgument);
  v1::ReleaseRequest release;
  release.add_chunk_ids(1);
  EXPECT_EQ(CodeOf(release), absl::StatusCode::kInvalidArgument);
  v1::FreeRequest free;
  free.add_chunk_ids(1);
  EXPECT_EQ(CodeOf(free), absl::StatusCode::kInvalidArgument);
  free.set_request_id(1);
  EXPECT_EQ(CodeOf(free), absl::StatusCode::kOk);
  v1::DiscardRequest discard;
  discard.add_chunk_ids(1);
  EXPECT_EQ(CodeOf(discard), absl::StatusCode::kInvalidArgument);
  discard.set_request_id(1);
  EXPECT_EQ(CodeOf(discard), absl::StatusCode::kOk);
}

TEST(ConvertTest, DuplicatesAreNoMoreThanACallMayMake) {
  v1::DuplicateRequest request;
  request.add_chunk_ids(7);
  request.add_chunk_ids(9);
  request.set_copies(3);
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kInvalidArgument) << "it has no request_id";
  request.set_request_id(1);
  const absl::StatusOr<DuplicateCall> call = ToEvent(request, NodeDefaults());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request_id, 1u);
  EXPECT_EQ(call->chunks, (std::vector<ChunkId>{ChunkId(7), ChunkId(9)}));
  EXPECT_EQ(call->copies, 3u);
  request.set_copies(0);
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kInvalidArgument);
  request.set_copies(Limits().chunks_per_call / 2);
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kOk);
  request.set_copies(Limits().chunks_per_call / 2 + 1);
  EXPECT_EQ(CodeOf(request), absl::StatusCode::kInvalidArgument);
  AllocateReply reply;
  reply.chunks = {ChunkId(70), ChunkId(90)};
  v1::DuplicateResponse response;
  ToResponse(reply, &response);
  ASSERT_EQ(response.chunk_ids_size(), 2);
  EXPECT_EQ(response.chunk_ids(1), 90u);
}

TEST(ConvertTest, AnOfferHasChunksAndADeadlineThatTheNodeAllows) {
  v1::OfferRequest offer;
  EXPECT_EQ(CodeOf(offer), absl::StatusCode::kInvalidArgument) << "it names no chunk";
  offer.add_chunk_ids(7);
  EXPECT_EQ(CodeOf(offer), absl::StatusCode::kOk);
  offer.mutable_deadline()->set_seconds(-1);
  EXPECT_EQ(CodeOf(offer), absl::StatusCode::kInvalidArgument);
  OfferReply reply;
  reply.shared = {0, 2};
  reply.leased = {1};
  v1::OfferResponse response;
  ToResponse(reply, &response);
  EXPECT_EQ(response.ShortDebugString(), "shared: 0 shared: 2 leased: 1");
}

}  // namespace
}  // namespace memtide
