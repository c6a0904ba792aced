#include "daemon/service/convert.h"

#include <gtest/gtest.h>

#include "proto/protocol.h"

namespace memtide {
namespace {

using absl::StatusCode;

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
StatusCode CodeOf(const Request& request) {
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
  EXPECT_EQ(CodeOf(v1::FetchRequest()), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(v1::EvictRequest()), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(v1::PrefetchRequest()), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(v1::DescribeRequest()), StatusCode::kInvalidArgument);
  v1::FetchRequest request;
  for (int i = 0; i < static_cast<int>(Limits().chunks_per_call); ++i) request.add_chunk_ids(1);
  EXPECT_EQ(CodeOf(request), StatusCode::kOk);
  request.add_chunk_ids(1);
  const absl::Status status = ToEvent(request, NodeWithDevice()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("4097 chunks; at most 4096"), absl::string_view::npos) << status;

  v1::FetchRequest many_releases = SomeFetch();
  for (int i = 0; i <= static_cast<int>(Limits().chunks_per_call); ++i)
    many_releases.add_release_chunk_ids(1);
  EXPECT_EQ(CodeOf(many_releases), StatusCode::kInvalidArgument);
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
  EXPECT_EQ(ToEvent(request, NodeWithDevice()).status().code(), StatusCode::kUnimplemented);
}

TEST(ConvertTest, NamesTheKnownRangeOfAnEnum) {
  v1::FetchRequest request = SomeFetch();
  request.set_tier(static_cast<v1::Tier>(9));
  const absl::Status status = ToEvent(request, NodeWithDevice()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "tier: 9 is not known here; known: 0 to 3");

  v1::FetchRequest access = SomeFetch();
  access.set_access(static_cast<v1::Access>(-1));
  EXPECT_EQ(CodeOf(access), StatusCode::kUnimplemented);
  v1::FetchRequest policy = SomeFetch();
  policy.set_wait_policy(static_cast<v1::WaitPolicy>(3));
  EXPECT_EQ(CodeOf(policy), StatusCode::kUnimplemented);
  v1::AllocateRequest allocate;
  allocate.set_request_id(1);
  allocate.set_count(1);
  allocate.set_kind(static_cast<v1::ChunkKind>(5));
  EXPECT_EQ(CodeOf(allocate), StatusCode::kUnimplemented);
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
  EXPECT_EQ(CodeOf(allocate), StatusCode::kUnimplemented);
}

TEST(ConvertTest, RefusesTiersThatACallCannotMean) {
  v1::FetchRequest fetch = SomeFetch();
  fetch.set_tier(v1::TIER_SSD);
  EXPECT_EQ(CodeOf(fetch), StatusCode::kInvalidArgument);
  v1::PrefetchRequest prefetch;
  prefetch.add_chunk_ids(1);
  prefetch.set_tier(v1::TIER_SSD);
  EXPECT_EQ(CodeOf(prefetch), StatusCode::kInvalidArgument);
  v1::EvictRequest evict;
  evict.add_chunk_ids(1);
  EXPECT_EQ(CodeOf(evict), StatusCode::kInvalidArgument);
  evict.set_tier(v1::TIER_DEVICE);
  EXPECT_EQ(CodeOf(evict), StatusCode::kInvalidArgument);
  evict.set_tier(v1::TIER_SSD);
  EXPECT_EQ(CodeOf(evict), StatusCode::kOk);
}

TEST(ConvertTest, RefusesDurationsThatCannotBeMeant) {
  const auto code = [](int64_t seconds, int32_t nanos) {
    v1::FetchRequest request = SomeFetch();
    request.mutable_deadline()->set_seconds(seconds);
    request.mutable_deadline()->set_nanos(nanos);
    return CodeOf(request);
  };
  EXPECT_EQ(code(600, 0), StatusCode::kOk);
  EXPECT_EQ(code(600, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(INT64_MAX, 999'999'999), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(INT64_MIN, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(-1, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(1, -1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 1'000'000'000), StatusCode::kInvalidArgument);
}

TEST(ConvertTest, RefusesSizesAndNamesThatNoJobCanHave) {
  v1::OpenRequest request;
  EXPECT_EQ(CodeOf(request), StatusCode::kOk);  // Zero: the size of the job that is joined.
  request.set_chunk_size_bytes(MiB(2).count() + 1);
  EXPECT_EQ(CodeOf(request), StatusCode::kInvalidArgument);
  request.set_chunk_size_bytes(GiB(1).count() + MiB(2).count());
  EXPECT_EQ(CodeOf(request), StatusCode::kInvalidArgument);
  request.set_chunk_size_bytes(GiB(1).count());
  request.set_job_name(std::string(kMaxJobNameBytes, 'j'));
  EXPECT_EQ(CodeOf(request), StatusCode::kOk);
  request.set_job_name(std::string(kMaxJobNameBytes + 1, 'j'));
  EXPECT_EQ(CodeOf(request), StatusCode::kInvalidArgument);
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
  EXPECT_EQ(CodeOf(request), StatusCode::kUnimplemented);
  OpenReply reply;
  reply.device_memory = MemoryKind::kCudaDescriptor;
  v1::OpenResponse response;
  ToResponse(reply, &response);
  EXPECT_EQ(response.device_memory(), v1::MEMORY_KIND_CUDA_DESCRIPTOR);
}

TEST(ConvertTest, TakesAStep) {
  v1::StepRequest request;
  EXPECT_EQ(CodeOf(request), StatusCode::kInvalidArgument) << "it names no chunk";
  for (uint64_t id = 1; id <= 7; ++id) request.add_chunk_ids(id);
  request.set_reads(4);
  request.set_step(3);
  request.set_state_format(v1::NUMBER_FORMAT_BFLOAT16);
  v1::StepPiece& piece = *request.add_pieces();
  EXPECT_EQ(CodeOf(request), StatusCode::kInvalidArgument) << "it has no rule";
  request.mutable_adam()->set_lr(0.5);
  request.mutable_adam()->set_decoupled_weight_decay(true);
  piece.set_elements(64);
  piece.mutable_parameter()->set_chunk(1);
  piece.mutable_parameter()->set_offset_bytes(128);
  piece.add_states()->set_chunk(2);
  piece.add_new_states()->set_chunk(5);
  const auto event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(event->chunks.size(), 7u);
  EXPECT_EQ(event->reads, 4u);
  const optimizer::Work& work = *event->work;
  EXPECT_EQ(std::get<optimizer::AdamOptions>(work.rule).lr, 0.5);
  EXPECT_EQ(std::get<optimizer::AdamOptions>(work.rule).decay, optimizer::WeightDecay::kDecoupled);
  EXPECT_EQ(work.step, 3u);
  EXPECT_EQ(work.gradient_factor, 1);
  EXPECT_EQ(work.state_format, optimizer::Format::kBfloat16);
  ASSERT_EQ(work.pieces.size(), 1u);
  EXPECT_EQ(work.pieces[0].parameter.offset, 128u);
  EXPECT_EQ(work.pieces[0].states[0]->chunk, 2u);
  EXPECT_FALSE(work.pieces[0].states[1].has_value());
  EXPECT_FALSE(work.pieces[0].new_rounded.has_value());
  EXPECT_FALSE(work.rounding_seed.has_value());
  for (int i = 0; i < 3; ++i) piece.add_states();
  EXPECT_EQ(CodeOf(request), StatusCode::kInvalidArgument) << "no rule keeps four states";
  piece.clear_states();
  request.set_gradient_format(static_cast<v1::NumberFormat>(4));
  EXPECT_EQ(CodeOf(request), StatusCode::kUnimplemented);
}

TEST(ConvertTest, TakesAStepThatRounds) {
  v1::StepRequest request;
  request.add_chunk_ids(1);
  request.set_step(1);
  request.mutable_lion();
  v1::StepPiece& piece = *request.add_pieces();
  piece.mutable_new_rounded()->set_offset_bytes(64);
  piece.set_first_element(uint64_t{1} << 40);
  auto event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(event->work->rounded_format, optimizer::Format::kBfloat16);
  EXPECT_EQ(event->work->pieces[0].new_rounded->offset, 64u);
  EXPECT_EQ(event->work->pieces[0].first_element, uint64_t{1} << 40);
  request.set_rounded_format(v1::NUMBER_FORMAT_FLOAT16);
  request.set_rounding_seed(7);
  event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(event->work->rounded_format, optimizer::Format::kFloat16);
  EXPECT_EQ(event->work->rounding_seed, 7u);
  request.set_rounded_format(static_cast<v1::NumberFormat>(4));
  EXPECT_EQ(CodeOf(request), StatusCode::kUnimplemented);
}

TEST(ConvertTest, TakesAStepOfEachRule) {
  v1::StepRequest request;
  request.add_chunk_ids(1);
  request.set_step(1);
  request.add_pieces();
  request.mutable_sgd()->set_momentum(0.9);
  EXPECT_EQ(optimizer::StatesOf(ToEvent(request, NodeWithDevice())->work->rule), 1u);
  request.mutable_sgd()->set_momentum(0);
  EXPECT_EQ(optimizer::StatesOf(ToEvent(request, NodeWithDevice())->work->rule), 0u);
  request.mutable_adam()->set_amsgrad(true);
  EXPECT_EQ(optimizer::StatesOf(ToEvent(request, NodeWithDevice())->work->rule), 3u);
  request.mutable_adagrad()->set_lr_decay(2);
  EXPECT_EQ(
      std::get<optimizer::AdagradOptions>(ToEvent(request, NodeWithDevice())->work->rule).lr_decay,
      2);
  request.mutable_lion()->set_beta2(0.5);
  EXPECT_EQ(std::get<optimizer::LionOptions>(ToEvent(request, NodeWithDevice())->work->rule).beta2,
            0.5);
}

TEST(ConvertTest, TakesAPartOfTheSession) {
  v1::StartPartRequest request;
  EXPECT_EQ(CodeOf(request), StatusCode::kInvalidArgument) << "it names no chunk";
  request.add_chunk_ids(3);
  request.add_chunk_ids(4);
  request.set_reads(1);
  request.set_part_id(9);
  request.mutable_deadline()->set_seconds(-1);
  EXPECT_EQ(CodeOf(request), StatusCode::kInvalidArgument);
  request.mutable_deadline()->set_seconds(2);
  const auto event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(event->chunks, (std::vector<ChunkId>{ChunkId(3), ChunkId(4)}));
  EXPECT_EQ(event->reads, 1u);
  EXPECT_EQ(event->part, 9u);
  EXPECT_EQ(event->deadline, std::chrono::seconds(2));
  EXPECT_EQ(event->work, nullptr);
  v1::StartPartResponse response;
  ToResponse(PartReply{{{RegionId(5), MiB(2)}, {RegionId(6), MiB(4)}}}, &response);
  ASSERT_EQ(response.places_size(), 2);
  EXPECT_EQ(response.places(1).region_id(), 6u);
  EXPECT_EQ(response.places(1).offset_bytes(), MiB(4).count());
  v1::EndPartRequest end;
  end.set_part_id(9);
  end.set_computed(true);
  end.set_non_finite_gradients(7);
  const auto ended = ToEvent(end, NodeWithDevice());
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->part, 9u);
  EXPECT_TRUE(ended->computed);
  EXPECT_EQ(ended->non_finite_gradients, 7u);
}

TEST(ConvertTest, ConvertsACommit) {
  v1::CommitRequest request;
  request.set_step(2);
  request.add_chunk_ids(7);
  request.add_shadow_chunk_ids(8);
  request.set_keep_old_content(true);
  request.set_step_manifest(std::string("a\0b", 3));
  const auto event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->step, 2u);
  EXPECT_EQ(event->chunks[0], ChunkId(7));
  EXPECT_EQ(event->shadows[0], ChunkId(8));
  EXPECT_TRUE(event->keep_old_content);
  EXPECT_EQ(event->manifest.size(), 3u);
  OpenReply opened;
  opened.committed_step = 2;
  opened.manifest = event->manifest;
  v1::OpenResponse response;
  ToResponse(opened, &response);
  EXPECT_EQ(response.committed_step(), 2u);
  EXPECT_EQ(response.step_manifest(), event->manifest);
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
  EXPECT_EQ(CodeOf(request), StatusCode::kInvalidArgument);
  v1::ResizeResponse response;
  ToResponse(ResizeReply{12, 9}, &response);
  EXPECT_EQ(response.device_slots(), 12u);
  EXPECT_EQ(response.lease_budget(), 9u);
}

TEST(ConvertTest, TakesAsManyRegionsBackAsAJobCanHave) {
  v1::ReturnRegionsRequest request;
  EXPECT_EQ(CodeOf(request), StatusCode::kOk);
  for (uint32_t id = 0; id < Limits().device_regions; ++id) request.add_region_ids(id);
  const auto event = ToEvent(request, NodeWithDevice());
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->regions.size(), Limits().device_regions);
  EXPECT_EQ(event->regions[7], RegionId(7));
  request.add_region_ids(1);
  const absl::Status status = ToEvent(request, NodeWithDevice()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("4097 regions; at most 4096"), absl::string_view::npos) << status;
}

TEST(ConvertTest, WantsARequestIdWhereARetryMustBeKnown) {
  v1::AllocateRequest allocate;
  allocate.set_count(1);
  EXPECT_EQ(CodeOf(allocate), StatusCode::kInvalidArgument);
  v1::ReleaseRequest release;
  release.add_chunk_ids(1);
  EXPECT_EQ(CodeOf(release), StatusCode::kInvalidArgument);
  v1::FreeRequest free;
  free.add_chunk_ids(1);
  EXPECT_EQ(CodeOf(free), StatusCode::kInvalidArgument);
  free.set_request_id(1);
  EXPECT_EQ(CodeOf(free), StatusCode::kOk);
  v1::DiscardRequest discard;
  discard.add_chunk_ids(1);
  EXPECT_EQ(CodeOf(discard), StatusCode::kInvalidArgument);
  discard.set_request_id(1);
  EXPECT_EQ(CodeOf(discard), StatusCode::kOk);
}

TEST(ConvertTest, ReturnsLeasesInTheirOrder) {
  FetchReply reply;
  reply.leases.push_back(
      {ChunkId(4), Tier::kDevice, {RegionId(2), MiB(64)}, Version(3), Access::kWrite});
  reply.leases.push_back({ChunkId(1), Tier::kHost, {RegionId(1), MiB(0)}, Version(9)});
  v1::FetchResponse response;
  ToResponse(reply, &response);
  ASSERT_EQ(response.leases_size(), 2);
  EXPECT_EQ(response.leases(0).chunk_id(), 4u);
  EXPECT_EQ(response.leases(0).tier(), v1::TIER_DEVICE);
  EXPECT_EQ(response.leases(0).region_id(), 2u);
  EXPECT_EQ(response.leases(0).offset_bytes(), MiB(64).count());
  EXPECT_EQ(response.leases(0).version(), 3u);
  EXPECT_EQ(response.leases(1).chunk_id(), 1u);
}

TEST(ConvertTest, TheLargestRepliesStayBelowTheMessageCap) {
  InspectReply reply;
  ChunkInfo chunk;
  chunk.chunk = ChunkId(UINT64_MAX);
  chunk.job = JobId(UINT64_MAX);
  chunk.version = Version(UINT64_MAX);
  chunk.kind = ChunkKind::kActivation;
  chunk.on_device = chunk.on_host = chunk.on_ssd = chunk.moving = chunk.torn = true;
  chunk.leases = UINT32_MAX;
  reply.chunks.assign(Limits().chunks_per_call, chunk);
  SessionInfo session;
  session.job_name = std::string(kMaxJobNameBytes, 'j');
  session.open = true;
  session.session = SessionId(UINT64_MAX);
  session.device_share = session.host_share = session.chunk_size = Bytes(UINT64_MAX);
  session.kinds.assign(kChunkKinds, {ChunkKind::kActivation, Bytes(UINT64_MAX), Bytes(UINT64_MAX),
                                     Bytes(UINT64_MAX), Bytes(UINT64_MAX)});
  reply.sessions.assign(Limits{}.sessions, session);
  v1::InspectNodeResponse response;
  ToResponse(reply, &response);
  EXPECT_LT(response.ByteSizeLong(), size_t{1} << 20);
}

}  // namespace
}  // namespace memtide
