#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/service/convert.h"
#include "daemon/service/request_parts.h"
#include "proto/digest_bytes.h"

namespace memtide {
namespace {

absl::StatusOr<Digest> ToDigest(absl::string_view field, absl::string_view bytes) {
  if (!bytes.empty() && bytes.size() != kDigestBytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": a digest of ", bytes.size(),
                                                   " bytes; it has ", kDigestBytes, ", or none"));
  }
  return FromProto(bytes);
}

// REQUIRES: the request names at most chunks_per_call chunks.
absl::StatusOr<absl::optional<PartContents>> ToContents(const v1::StartPartRequest& request) {
  PartContents contents;
  MEMTIDE_ASSIGN_OR_RETURN(contents.work, ToDigest("work_digest", request.work_digest()));
  if (!contents.work.is_set()) {
    if (request.read_digests().empty()) return {absl::nullopt};
    return absl::InvalidArgumentError("work_digest: not given; read_digests need it");
  }
  // `contents.reads` gets a digest for each, also if the request gives none.
  if (request.reads() > static_cast<uint32_t>(request.chunk_ids_size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("reads: ", request.reads(), " of ", request.chunk_ids_size(), " chunks"));
  }
  contents.reads.resize(request.reads());
  if (request.read_digests().empty()) return {std::move(contents)};
  if (static_cast<uint32_t>(request.read_digests_size()) != request.reads()) {
    return absl::InvalidArgumentError(absl::StrCat("read_digests: ", request.read_digests_size(),
                                                   "; must be none, or one for each of ",
                                                   request.reads(), " reads"));
  }
  for (int i = 0; i < request.read_digests_size(); ++i) {
    MEMTIDE_ASSIGN_OR_RETURN(contents.reads[static_cast<size_t>(i)],
                             ToDigest("read_digests", request.read_digests(i)));
  }
  return {std::move(contents)};
}

}  // namespace

absl::StatusOr<StepCall> ToEvent(const v1::StartPartRequest& request, const NodeDefaults& node) {
  StepCall event;
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  event.reads = request.reads();
  event.part = request.part_id();
  MEMTIDE_ASSIGN_OR_RETURN(event.contents, ToContents(request));
  MEMTIDE_ASSIGN_OR_RETURN(event.moments, ToMoments(request.moments(), node.limits));
  MEMTIDE_ASSIGN_OR_RETURN(event.deadline,
                           ToDuration("deadline", request.deadline(), node.limits.max_wait));
  return event;
}

absl::StatusOr<EndPartCall> ToEvent(const v1::EndPartRequest& request, const NodeDefaults&) {
  EndPartCall event;
  event.part = request.part_id();
  event.computed = request.computed();
  event.non_finite_gradients = request.non_finite_gradients();
  return event;
}

absl::StatusOr<CommitCall> ToEvent(const v1::CommitRequest& request, const NodeDefaults& node) {
  CommitCall event;
  event.step = request.step();
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToChunks("chunk_ids", request.chunk_ids(), node.limits));
  MEMTIDE_ASSIGN_OR_RETURN(event.shadows,
                           ToChunks("shadow_chunk_ids", request.shadow_chunk_ids(), node.limits));
  if (request.versions_size() != 0 && request.versions_size() != request.chunk_ids_size()) {
    return absl::InvalidArgumentError(absl::StrCat("versions: ", request.versions_size(), " of ",
                                                   request.chunk_ids_size(), " chunks"));
  }
  for (const uint64_t version : request.versions()) event.versions.emplace_back(version);
  event.keep_old_content = request.keep_old_content();
  event.with_all_ranks = request.with_all_ranks();
  event.manifest = request.step_manifest();
  return event;
}

}  // namespace memtide
