#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "daemon/service/convert.h"
#include "daemon/service/request_parts.h"
#include "proto/protocol.h"

namespace memtide {
namespace {

// nullopt for `unspecified`: the request must name a tier.
absl::StatusOr<Tier> ToTier(v1::Tier tier, absl::optional<Tier> unspecified) {
  MEMTIDE_RETURN_IF_ERROR(CheckKnown("tier", tier));
  switch (tier) {
    case v1::TIER_DEVICE:
      return Tier::kDevice;
    case v1::TIER_HOST:
      return Tier::kHost;
    case v1::TIER_SSD:
      return Tier::kSsd;
    default:
      if (unspecified) return *unspecified;
      return absl::InvalidArgumentError("tier: must be given");
  }
}

// nullopt: the node chooses the kind.
absl::StatusOr<absl::optional<MemoryKind>> ToMemoryKind(v1::MemoryKind kind) {
  MEMTIDE_RETURN_IF_ERROR(CheckKnown("device_memory", kind));
  if (kind == v1::MEMORY_KIND_UNSPECIFIED) return {absl::nullopt};
  return {FromProto(kind)};
}

constexpr size_t kCudaUuidBytes = 16;

// Zero is what a client sends that does not set the field; its retries could not be distinguished
// from new requests.
absl::Status CheckRequestId(uint64_t request_id) {
  if (request_id != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "request_id: zero; choose a new number for each new request, so that a retry is known");
}

// nullopt: the engine chooses the device. It also knows which numbers there are.
absl::StatusOr<absl::optional<uint32_t>> ToDevice(const v1::OpenRequest& request,
                                                  const NodeDefaults& node) {
  if (request.has_device_number()) return {request.device_number()};
  if (!request.has_cuda_device_uuid()) return {absl::nullopt};
  const std::string& uuid = request.cuda_device_uuid();
  if (uuid.size() != kCudaUuidBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda_device_uuid: ", uuid.size(), " bytes; a uuid has ", kCudaUuidBytes));
  }
  const std::vector<std::string>& known = node.device_uuids;
  const auto found = std::find(known.begin(), known.end(), uuid);
  if (found != known.end()) return {static_cast<uint32_t>(found - known.begin())};
  return absl::InvalidArgumentError(absl::StrCat(
      "cuda_device_uuid: ", absl::BytesToHexString(uuid), ", which is none of the node's ",
      known.size(), " devices; see memtided --list-gpus, and choose GPUs by --device"));
}

// Whether `text`, in UTF-8, has a control character: U+0000 to U+001F, or U+007F to U+009F.
bool HasControlCharacter(absl::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7F) return true;
    if (byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) {
      return true;
    }
  }
  return false;
}

// Job names are printed on terminals of other users.
absl::Status CheckName(absl::string_view field, const std::string& name) {
  if (name.size() > kMaxJobNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", name.size(), " bytes; at most ", kMaxJobNameBytes));
  }
  if (HasControlCharacter(name)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": \"", absl::CEscape(name),
                                                   "\" has a control character; use printable "
                                                   "ones only"));
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const v1::OpenRequest& request) {
  if (request.ranks() > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks: ", request.ranks(), "; at most ", kMaxRanks));
  }
  if (request.group_ranks() > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_ranks: ", request.group_ranks(), "; at most ", kMaxRanks));
  }
  if (request.alike() > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("alike: ", request.alike(), "; at most ", kMaxRanks));
  }
  if (request.ranks() == 0) {
    if (request.rank() == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("rank: ", request.rank(), ", without the number of ranks"));
  }
  if (request.rank() >= request.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: ", request.rank(), "; must be less than ranks, ", request.ranks()));
  }
  // The ranks are sessions of one job, and only a job with a name has several.
  if (request.job_name().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("job_name: empty; ", request.ranks(), " ranks need one, to share their job"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpenCall> ToEvent(const v1::OpenRequest& request, const NodeDefaults& node) {
  OpenCall event;
  MEMTIDE_RETURN_IF_ERROR(CheckName("job_name", request.job_name()));
  MEMTIDE_RETURN_IF_ERROR(CheckName("group", request.group()));
  event.job_name = request.job_name();
  MEMTIDE_RETURN_IF_ERROR(CheckRanks(request));
  event.rank = request.rank();
  event.ranks = request.ranks();
  event.alike = std::max(1u, request.alike());
  event.group = request.group();
  event.group_rank = request.group_rank();
  event.group_ranks = request.group_ranks();
  event.chunk_size = Bytes(request.chunk_size_bytes());
  // A size of 0 passes: it joins an existing job with that job's chunk size.
  if (!event.chunk_size.IsMultipleOf(kChunkAlignment) || event.chunk_size > kMaxChunkSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_size_bytes: ", request.chunk_size_bytes(), "; must be a multiple of ",
                     FormatBytes(kChunkAlignment), ", at most ", FormatBytes(kMaxChunkSize)));
  }
  MEMTIDE_ASSIGN_OR_RETURN(event.device, ToDevice(request, node));
  event.device_share = Bytes(request.device_share_bytes());
  event.host_share = Bytes(request.host_share_bytes());
  event.ssd_share = Bytes(request.ssd_share_bytes());
  event.elastic = request.elastic();
  MEMTIDE_ASSIGN_OR_RETURN(event.time_to_live, ToDuration("time_to_live", request.time_to_live(),
                                                          node.limits.max_time_to_live));
  MEMTIDE_ASSIGN_OR_RETURN(event.device_memory, ToMemoryKind(request.device_memory()));
  event.durable_every = request.durable_every();
  return event;
}

absl::StatusOr<RenewCall> ToEvent(const v1::RenewRequest& request, const NodeDefaults& node) {
  return RenewCall{};
}

absl::StatusOr<CloseCall> ToEvent(const v1::CloseRequest& request, const NodeDefaults& node) {
  return CloseCall{};
}

absl::StatusOr<ResizeCall> ToEvent(const v1::ResizeRequest& request, const NodeDefaults& node) {
  ResizeCall event;
  event.device_share = Bytes(request.device_share_bytes());
  MEMTIDE_ASSIGN_OR_RETURN(event.deadline,
                           ToDuration("deadline", request.deadline(), node.limits.max_wait));
  return event;
}

absl::StatusOr<ReturnRegionsCall> ToEvent(const v1::ReturnRegionsRequest& request,
                                          const NodeDefaults& node) {
  // No job has more regions that can be returned (decision 9).
  const int most = static_cast<int>(node.limits.device_regions);
  if (request.region_ids_size() > most) {
    return absl::InvalidArgumentError(absl::StrCat("region_ids: ", request.region_ids_size(),
                                                   " regions; at most ", most,
                                                   " a call. Split the batch"));
  }
  ReturnRegionsCall event;
  event.regions.reserve(static_cast<size_t>(request.region_ids_size()));
  for (const uint32_t id : request.region_ids()) event.regions.emplace_back(id);
  return event;
}

absl::StatusOr<AllocateCall> ToEvent(const v1::AllocateRequest& request, const NodeDefaults& node) {
  MEMTIDE_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  if (request.count() == 0 || request.count() > node.limits.chunks_per_call) {
    return absl::InvalidArgumentError(
        absl::StrCat("count: ", request.count(), "; must be 1 to ", node.limits.chunks_per_call));
  }
  AllocateCall event;
  event.request_id = request.request_id();
  event.count = request.count();
  MEMTIDE_RETURN_IF_ERROR(CheckKnown("kind", request.kind()));
  event.kind = FromProto(request.kind());
  event.undefined = request.undefined();
  // Activations are of no use to a later process.
  event.transient = event.kind == ChunkKind::kActivation;
  if (request.home_tier() != v1::TIER_UNSPECIFIED) {
    MEMTIDE_ASSIGN_OR_RETURN(event.home, ToTier(request.home_tier(), absl::nullopt));
  }
  return event;
}

absl::StatusOr<FetchCall> ToEvent(const v1::FetchRequest& request, const NodeDefaults& node) {
  FetchCall event;
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  MEMTIDE_ASSIGN_OR_RETURN(event.releases,
                           ToChunks("release_chunk_ids", request.release_chunk_ids(), node.limits));
  MEMTIDE_ASSIGN_OR_RETURN(event.tier, ToTier(request.tier(), node.fastest));
  if (event.tier == Tier::kSsd) {
    return absl::InvalidArgumentError("tier: a chunk cannot be leased on SSD; fetch it to host");
  }
  MEMTIDE_RETURN_IF_ERROR(CheckKnown("access", request.access()));
  event.access = FromProto(request.access());
  MEMTIDE_RETURN_IF_ERROR(CheckKnown("wait_policy", request.wait_policy()));
  // A fetch waits unless the client forbids it.
  event.wait = request.wait_policy() != v1::WAIT_POLICY_NO_WAIT;
  MEMTIDE_ASSIGN_OR_RETURN(event.moments, ToMoments(request.moments(), node.limits));
  MEMTIDE_ASSIGN_OR_RETURN(event.deadline,
                           ToDuration("deadline", request.deadline(), node.limits.max_wait));
  return event;
}

absl::StatusOr<ReleaseCall> ToEvent(const v1::ReleaseRequest& request, const NodeDefaults& node) {
  MEMTIDE_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  ReleaseCall event;
  event.request_id = request.request_id();
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  return event;
}

absl::StatusOr<EvictCall> ToEvent(const v1::EvictRequest& request, const NodeDefaults& node) {
  EvictCall event;
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  // An eviction has no default tier, because a chunk costs more to bring back from SSD than from
  // host memory.
  MEMTIDE_ASSIGN_OR_RETURN(event.tier, ToTier(request.tier(), absl::nullopt));
  if (event.tier == Tier::kDevice) {
    return absl::InvalidArgumentError("tier: chunks are evicted to host or SSD, not to the device");
  }
  return event;
}

absl::StatusOr<FreeCall> ToEvent(const v1::FreeRequest& request, const NodeDefaults& node) {
  MEMTIDE_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  FreeCall event;
  event.request_id = request.request_id();
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  return event;
}

absl::StatusOr<DiscardCall> ToEvent(const v1::DiscardRequest& request, const NodeDefaults& node) {
  MEMTIDE_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  DiscardCall event;
  event.request_id = request.request_id();
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  return event;
}

absl::StatusOr<OfferCall> ToEvent(const v1::OfferRequest& request, const NodeDefaults& node) {
  OfferCall event;
  event.repeats = request.repeats();
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  MEMTIDE_ASSIGN_OR_RETURN(event.deadline,
                           ToDuration("deadline", request.deadline(), node.limits.max_wait));
  return event;
}

absl::StatusOr<DuplicateCall> ToEvent(const v1::DuplicateRequest& request,
                                      const NodeDefaults& node) {
  MEMTIDE_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  DuplicateCall event;
  event.request_id = request.request_id();
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  const uint32_t most = node.limits.chunks_per_call / static_cast<uint32_t>(event.chunks.size());
  if (request.copies() == 0 || request.copies() > most) {
    return absl::InvalidArgumentError(absl::StrCat("copies: ", request.copies(), " of ",
                                                   event.chunks.size(), " chunks; between 1 and ",
                                                   most));
  }
  event.copies = request.copies();
  MEMTIDE_ASSIGN_OR_RETURN(event.deadline,
                           ToDuration("deadline", request.deadline(), node.limits.max_wait));
  return event;
}

absl::StatusOr<DescribeCall> ToEvent(const v1::DescribeRequest& request, const NodeDefaults& node) {
  DescribeCall event;
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  return event;
}

absl::StatusOr<ReportCall> ToEvent(const v1::ReportRequest& request, const NodeDefaults& node) {
  ReportCall event;
  MEMTIDE_ASSIGN_OR_RETURN(event.moments, ToMoments(request.moments(), node.limits));
  return event;
}

absl::StatusOr<TraceCall> ToEvent(const v1::GetTraceRequest& request, const NodeDefaults& node) {
  TraceCall event;
  event.job = JobId(request.job_id());
  return event;
}

absl::StatusOr<EndJobCall> ToEvent(const v1::EndJobRequest& request, const NodeDefaults& node) {
  EndJobCall event;
  event.job = JobId(request.job_id());
  return event;
}

absl::StatusOr<DrainCall> ToEvent(const v1::DrainRequest& request, const NodeDefaults& node) {
  MEMTIDE_RETURN_IF_ERROR(CheckKnown("mode", request.mode()));
  DrainCall event;
  event.mode = request.mode() == v1::DRAIN_MODE_SESSIONS ? DrainMode::kSessions
               : request.mode() == v1::DRAIN_MODE_END    ? DrainMode::kEnd
                                                         : DrainMode::kAll;
  return event;
}

absl::StatusOr<InspectCall> ToEvent(const v1::InspectNodeRequest& request,
                                    const NodeDefaults& node) {
  // A larger page could exceed the largest message.
  if (request.max_chunks() > node.limits.chunks_per_call) {
    return absl::InvalidArgumentError(absl::StrCat("max_chunks: ", request.max_chunks(),
                                                   "; at most ", node.limits.chunks_per_call,
                                                   ". Page through with first_chunk"));
  }
  InspectCall event;
  event.sessions = request.sessions();
  event.jobs = request.jobs();
  event.first_chunk = request.first_chunk();
  event.max_chunks = request.max_chunks();
  return event;
}

}  // namespace memtide
