// Bytes that gRPC would hand us, as each kind of request: whatever they are, an event that keeps
// the promises of convert.h comes out, or an error that gRPC can carry.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/check.h"
#include "bazel/message_mutator.h"
#include "daemon/service/convert.h"
#include "proto/protocol.h"

namespace memtide {
namespace {

template <typename Request>
auto Convert(const uint8_t* data, size_t size) {
  Request request;
  NodeDefaults node;
  using Event = decltype(ToEvent(request, node));
  if (!request.ParseFromArray(data, static_cast<int>(size))) {
    return Event(absl::InvalidArgumentError("not a message"));
  }
  Event event = ToEvent(request, node);
  MEMTIDE_CHECK(event.ok() || event.status().code() == absl::StatusCode::kInvalidArgument ||
                event.status().code() == absl::StatusCode::kUnimplemented)
      << event.status();
  return event;
}

template <typename Request>
void CheckBatch(const uint8_t* data, size_t size) {
  const auto event = Convert<Request>(data, size);
  if (!event.ok()) return;
  MEMTIDE_CHECK(!event->chunks.empty() && event->chunks.size() <= Limits().chunks_per_call);
}

std::unique_ptr<google::protobuf::Message> Request(uint8_t number) {
  const google::protobuf::Message* const requests[] = {&v1::InspectNodeRequest::default_instance(),
                                                       &v1::DrainRequest::default_instance(),
                                                       &v1::EndJobRequest::default_instance(),
#define MEMTIDE_REQUEST(Method, Event, Reply) &v1::Method##Request::default_instance(),
                                                       MEMTIDE_VERBS(MEMTIDE_REQUEST)
#undef MEMTIDE_REQUEST
  };
  return std::unique_ptr<google::protobuf::Message>(
      requests[number % (sizeof(requests) / sizeof(requests[0]))]->New());
}

}  // namespace
}  // namespace memtide

// The first byte chooses the request that the mutator makes. All of them read the others' bytes,
// too.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  if (size == 0) data[size++] = static_cast<uint8_t>(seed);
  const std::unique_ptr<google::protobuf::Message> request = memtide::Request(data[0]);
  return 1 + memtide::MutateMessage(request.get(), data + 1, size - 1, most - 1, seed / 256);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace memtide;  // NOLINT(google-build-using-namespace): one function.
  if (size > 0) {
    ++data;
    --size;
  }
  CheckBatch<v1::ReleaseRequest>(data, size);
  CheckBatch<v1::EvictRequest>(data, size);
  CheckBatch<v1::FreeRequest>(data, size);
  CheckBatch<v1::DiscardRequest>(data, size);
  CheckBatch<v1::OfferRequest>(data, size);
  CheckBatch<v1::DuplicateRequest>(data, size);
  if (const auto duplicate = Convert<v1::DuplicateRequest>(data, size); duplicate.ok()) {
    MEMTIDE_CHECK(duplicate->copies > 0);
    MEMTIDE_CHECK(duplicate->chunks.size() * duplicate->copies <= Limits().chunks_per_call);
  }
  CheckBatch<v1::DescribeRequest>(data, size);
  CheckBatch<v1::FetchRequest>(data, size);
  if (const auto fetch = Convert<v1::FetchRequest>(data, size); fetch.ok()) {
    MEMTIDE_CHECK(fetch->tier != Tier::kSsd);
    MEMTIDE_CHECK(fetch->deadline >= Duration(0) && fetch->deadline <= Limits{}.max_wait);
    MEMTIDE_CHECK(fetch->releases.size() <= Limits().chunks_per_call);
  }
  if (const auto report = Convert<v1::ReportRequest>(data, size); report.ok()) {
    for (const MomentReport& moment : report->moments) MEMTIDE_CHECK(moment.phase <= Phase::kStep);
  }
  if (const auto open = Convert<v1::OpenRequest>(data, size); open.ok()) {
    MEMTIDE_CHECK(open->chunk_size.IsMultipleOf(MiB(2)) && open->chunk_size <= GiB(1));
    MEMTIDE_CHECK(open->job_name.size() <= kMaxJobNameBytes);
    MEMTIDE_CHECK(open->time_to_live >= Duration(0));
    MEMTIDE_CHECK(open->ranks <= kMaxRanks);
    MEMTIDE_CHECK(open->ranks == 0 ? open->rank == 0 : open->rank < open->ranks);
    MEMTIDE_CHECK(open->ranks == 0 || !open->job_name.empty());
  }
  CheckBatch<v1::StartPartRequest>(data, size);
  if (const auto part = Convert<v1::StartPartRequest>(data, size); part.ok()) {
    MEMTIDE_CHECK(part->work == nullptr);
    MEMTIDE_CHECK(part->deadline >= Duration(0) && part->deadline <= Limits{}.max_wait);
    if (part->contents) {
      MEMTIDE_CHECK(part->contents->work.is_set());
      MEMTIDE_CHECK(part->contents->reads.size() == part->reads &&
                    part->reads <= part->chunks.size());
    }
  }
  Convert<v1::EndPartRequest>(data, size).status().IgnoreError();
  if (const auto commit = Convert<v1::CommitRequest>(data, size); commit.ok()) {
    MEMTIDE_CHECK(commit->chunks.size() <= Limits().chunks_per_call &&
                  commit->shadows.size() <= Limits().chunks_per_call);
  }
  if (const auto resize = Convert<v1::ResizeRequest>(data, size); resize.ok()) {
    MEMTIDE_CHECK(resize->deadline >= Duration(0) && resize->deadline <= Limits{}.max_wait);
  }
  if (const auto regions = Convert<v1::ReturnRegionsRequest>(data, size); regions.ok()) {
    MEMTIDE_CHECK(regions->regions.size() <= Limits{}.device_regions);
  }
  if (const auto allocate = Convert<v1::AllocateRequest>(data, size); allocate.ok()) {
    MEMTIDE_CHECK(allocate->count > 0 && allocate->count <= Limits().chunks_per_call);
    MEMTIDE_CHECK(allocate->request_id != 0);
  }
  if (const auto inspect = Convert<v1::InspectNodeRequest>(data, size); inspect.ok()) {
    MEMTIDE_CHECK(inspect->max_chunks <= Limits().chunks_per_call);
  }
  Convert<v1::DrainRequest>(data, size).status().IgnoreError();
  Convert<v1::EndJobRequest>(data, size).status().IgnoreError();
  return 0;
}
