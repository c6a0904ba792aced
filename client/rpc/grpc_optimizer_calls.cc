// GrpcDaemonSession: the calls of optimizer steps.
#include <vector>

#include "base/status_macros.h"
#include "client/rpc/grpc_call.h"
#include "client/rpc/grpc_daemon_session.h"
#include "client/rpc/to_proto.h"

namespace memtide::client {

absl::StatusOr<uint64_t> GrpcDaemonSession::Step(const StepPart& part,
                                                 absl::Span<const ChunkId> chunks,
                                                 const std::vector<Moment>& moments) {
  v1::StepRequest request = part.request;
  AddIds(chunks, request.mutable_chunk_ids());
  request.set_reads(part.reads);
  AddMoments(moments, request.mutable_moments());
  v1::StepResponse reply;
  MEMTIDE_RETURN_IF_ERROR(
      WithLossReason(Call(optimizer_stub_.get(), &v1::OptimizerService::Stub::Step, token_,
                          limits_.max_wait + kReplyGrace, request, &reply)));
  return reply.non_finite_gradients();
}

absl::StatusOr<std::vector<Lease>> GrpcDaemonSession::StartPart(
    const OwnPart& part, absl::Span<const ChunkId> chunks, const std::vector<Moment>& moments) {
  v1::StartPartRequest request;
  AddIds(chunks, request.mutable_chunk_ids());
  request.set_reads(part.reads);
  request.set_part_id(part.id);
  AddMoments(moments, request.mutable_moments());
  v1::StartPartResponse reply;
  MEMTIDE_RETURN_IF_ERROR(
      WithLossReason(Call(optimizer_stub_.get(), &v1::OptimizerService::Stub::StartPart, token_,
                          limits_.max_wait + kReplyGrace, request, &reply)));
  if (reply.places_size() != static_cast<int>(chunks.size())) {
    return absl::InternalError("the daemon lent a different number of chunks than requested");
  }
  std::vector<Lease> leases;
  for (int i = 0; i < reply.places_size(); ++i) {
    leases.push_back({chunks[static_cast<size_t>(i)], RegionId(reply.places(i).region_id()),
                      Bytes(reply.places(i).offset_bytes())});
  }
  return leases;
}

absl::Status GrpcDaemonSession::EndPart(uint64_t id, const PartResult& result) {
  v1::EndPartRequest request;
  request.set_part_id(id);
  request.set_computed(result.computed);
  request.set_non_finite_gradients(result.non_finite_gradients);
  v1::EndPartResponse reply;
  return WithLossReason(Call(optimizer_stub_.get(), &v1::OptimizerService::Stub::EndPart, token_,
                             kShortCallTimeout, request, &reply));
}

absl::Status GrpcDaemonSession::Commit(const CommitRequest& commit,
                                       absl::Span<const ChunkId> chunks,
                                       absl::Span<const ChunkId> shadows) {
  v1::CommitRequest request;
  request.set_step(commit.committed.step);
  AddIds(chunks, request.mutable_chunk_ids());
  AddIds(shadows, request.mutable_shadow_chunk_ids());
  request.set_keep_old_content(commit.keep_old_content);
  request.set_step_manifest(commit.committed.manifest);
  v1::CommitResponse reply;
  return WithLossReason(Call(optimizer_stub_.get(), &v1::OptimizerService::Stub::Commit, token_,
                             kShortCallTimeout, request, &reply));
}

}  // namespace memtide::client
