// GrpcDaemonSession: the calls of optimizer steps.
#include <set>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/rpc/grpc_call.h"
#include "client/rpc/grpc_daemon_session.h"
#include "client/rpc/to_proto.h"
#include "proto/digest_bytes.h"

namespace memtide::client {
namespace {

void SetContents(const PartContents& contents, v1::StartPartRequest* request) {
  request->set_work_digest(ToProto(contents.work));
  for (const Digest& read : contents.reads) request->add_read_digests(ToProto(read));
}

// Whether these number different places of a part that it reads: a caller's array holds them.
bool AreReads(const google::protobuf::RepeatedField<uint32_t>& numbers, const OwnPart& part) {
  const std::set<uint32_t> distinct(numbers.begin(), numbers.end());
  return distinct.size() == static_cast<size_t>(numbers.size()) &&
         (distinct.empty() || *distinct.rbegin() < part.reads);
}

absl::StatusOr<PartOutcome> ReadOutcome(const OwnPart& part, const v1::StartPartResponse& reply) {
  PartOutcome outcome;
  outcome.unknown_reads = {reply.unknown_reads().begin(), reply.unknown_reads().end()};
  if (reply.has_difference()) {
    const v1::PartDifference& from = reply.difference();
    outcome.difference = {from.rank(), from.work(), {from.reads().begin(), from.reads().end()}};
  }
  if (reply.made()) outcome.state = PartState::kMade;
  if (!outcome.unknown_reads.empty()) outcome.state = PartState::kNeedsDigests;
  if (!AreReads(reply.unknown_reads(), part) || !AreReads(reply.difference().reads(), part)) {
    return absl::InternalError("the daemon named chunks that the part does not read");
  }
  const bool is_computing = outcome.state == PartState::kComputing;
  if (!is_computing && !part.contents.has_value()) {
    return absl::InternalError("the daemon shared a part that is of this session alone");
  }
  // A part that has begun has all its places; any other has none.
  if (reply.places_size() != (is_computing ? static_cast<int>(part.places.size()) : 0)) {
    return absl::InternalError("the daemon lent a different number of chunks than requested");
  }
  return outcome;
}

}  // namespace

absl::StatusOr<LentPart> GrpcDaemonSession::StartPart(const OwnPart& part,
                                                      absl::Span<const ChunkId> chunks,
                                                      const std::vector<Moment>& moments) {
  v1::StartPartRequest request;
  AddIds(chunks, request.mutable_chunk_ids());
  request.set_reads(part.reads);
  request.set_part_id(part.id);
  if (part.contents.has_value()) SetContents(*part.contents, &request);
  AddMoments(moments, request.mutable_moments());
  MEMTIDE_ASSIGN_OR_RETURN(const v1::StartPartResponse reply,
                           Send(std::move(request), limits_.max_wait + kReplyGrace));
  LentPart lent;
  MEMTIDE_ASSIGN_OR_RETURN(lent.outcome, ReadOutcome(part, reply));
  for (int i = 0; i < reply.places_size(); ++i) {
    lent.leases.push_back({chunks[static_cast<size_t>(i)], RegionId(reply.places(i).region_id()),
                           Bytes(reply.places(i).offset_bytes())});
  }
  return lent;
}

absl::Status GrpcDaemonSession::EndPart(uint64_t id, const PartResult& result) {
  v1::EndPartRequest request;
  request.set_part_id(id);
  request.set_computed(result.computed);
  request.set_non_finite_gradients(result.non_finite_gradients);
  return Send(std::move(request), kShortCallTimeout).status();
}

absl::Status GrpcDaemonSession::Commit(const CommitRequest& commit,
                                       absl::Span<const ChunkId> chunks,
                                       absl::Span<const ChunkId> shadows) {
  v1::CommitRequest request;
  request.set_step(commit.committed.step);
  AddIds(chunks, request.mutable_chunk_ids());
  AddIds(shadows, request.mutable_shadow_chunk_ids());
  request.set_keep_old_content(commit.keep_old_content);
  request.set_with_all_ranks(commit.with_all_ranks);
  request.set_step_manifest(commit.committed.manifest);
  for (const ChunkVersion& each : commit.unwritten) request.add_versions(each.version);
  // Ranks that share contents wait for each other.
  return Send(std::move(request), limits_.max_wait + kReplyGrace).status();
}

}  // namespace memtide::client
