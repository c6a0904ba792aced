// Requests to events, and replies to responses: pure functions.
//
// A conversion checks form only: counts against the node's limits, enums against the known values,
// durations and sizes against their valid range. The engine checks the meaning. The caller sets
// `call` and `session` of an event. Errors: INVALID_ARGUMENT names field, value and limit;
// UNIMPLEMENTED, for an unknown enum value, names the known range.
#ifndef MEMTIDE_DAEMON_SERVICE_CONVERT_H_
#define MEMTIDE_DAEMON_SERVICE_CONVERT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/host_memory_use.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "memtide/v1/admin.pb.h"
#include "memtide/v1/chunks.pb.h"
#include "memtide/v1/optimizer.pb.h"
#include "memtide/v1/session.pb.h"
#include "memtide/v1/trace.pb.h"
#include "proto/kinds.h"

namespace memtide {

// The node's defaults for fields that a request may omit.
struct NodeDefaults {
  Tier fastest = Tier::kHost;
  Limits limits;
  // By the number of the device, the 16 bytes of the GPU's uuid. Empty: the device is no GPU.
  std::vector<std::string> device_uuids;
};

absl::StatusOr<OpenCall> ToEvent(const v1::OpenRequest& request, const NodeDefaults& node);
absl::StatusOr<RenewCall> ToEvent(const v1::RenewRequest& request, const NodeDefaults& node);
absl::StatusOr<CloseCall> ToEvent(const v1::CloseRequest& request, const NodeDefaults& node);
absl::StatusOr<AllocateCall> ToEvent(const v1::AllocateRequest& request, const NodeDefaults& node);
absl::StatusOr<FetchCall> ToEvent(const v1::FetchRequest& request, const NodeDefaults& node);
absl::StatusOr<ReleaseCall> ToEvent(const v1::ReleaseRequest& request, const NodeDefaults& node);
absl::StatusOr<EvictCall> ToEvent(const v1::EvictRequest& request, const NodeDefaults& node);
absl::StatusOr<PrefetchCall> ToEvent(const v1::PrefetchRequest& request, const NodeDefaults& node);
absl::StatusOr<FreeCall> ToEvent(const v1::FreeRequest& request, const NodeDefaults& node);
absl::StatusOr<DiscardCall> ToEvent(const v1::DiscardRequest& request, const NodeDefaults& node);
absl::StatusOr<OfferCall> ToEvent(const v1::OfferRequest& request, const NodeDefaults& node);
absl::StatusOr<DuplicateCall> ToEvent(const v1::DuplicateRequest& request,
                                      const NodeDefaults& node);
absl::StatusOr<DescribeCall> ToEvent(const v1::DescribeRequest& request, const NodeDefaults& node);
absl::StatusOr<ReportCall> ToEvent(const v1::ReportRequest& request, const NodeDefaults& node);
absl::StatusOr<TraceCall> ToEvent(const v1::GetTraceRequest& request, const NodeDefaults& node);
absl::StatusOr<ResizeCall> ToEvent(const v1::ResizeRequest& request, const NodeDefaults& node);
absl::StatusOr<ReturnRegionsCall> ToEvent(const v1::ReturnRegionsRequest& request,
                                          const NodeDefaults& node);
absl::StatusOr<StepCall> ToEvent(const v1::StepRequest& request, const NodeDefaults& node);
absl::StatusOr<StepCall> ToEvent(const v1::StartPartRequest& request, const NodeDefaults& node);
absl::StatusOr<EndPartCall> ToEvent(const v1::EndPartRequest& request, const NodeDefaults& node);
absl::StatusOr<CommitCall> ToEvent(const v1::CommitRequest& request, const NodeDefaults& node);
absl::StatusOr<EndJobCall> ToEvent(const v1::EndJobRequest& request, const NodeDefaults& node);
absl::StatusOr<DrainCall> ToEvent(const v1::DrainRequest& request, const NodeDefaults& node);
absl::StatusOr<InspectCall> ToEvent(const v1::InspectNodeRequest& request,
                                    const NodeDefaults& node);

v1::Tier ToProto(Tier tier);

void ToProto(const Limits& limits, v1::Limits* proto);
void ToProto(const HostMemoryUse& use, v1::HostMemory* proto);

// Does not set cuda_device_uuid, cuda_maps_when_idle and limits, which the engine does not reply.
void ToResponse(const OpenReply& reply, v1::OpenResponse* response);
void ToResponse(const ResizeReply& reply, v1::ResizeResponse* response);
void ToResponse(const StepReply& reply, v1::StepResponse* response);
void ToResponse(const PartReply& reply, v1::StartPartResponse* response);
void ToResponse(const AllocateReply& reply, v1::AllocateResponse* response);
void ToResponse(const AllocateReply& reply, v1::DuplicateResponse* response);
void ToResponse(const OfferReply& reply, v1::OfferResponse* response);
void ToResponse(const FetchReply& reply, v1::FetchResponse* response);
void ToResponse(const DescribeReply& reply, v1::DescribeResponse* response);
void ToResponse(const TraceReply& reply, v1::Trace* response);
void ToResponse(const EndJobReply& reply, v1::EndJobResponse* response);
// Does not set version, boot_id, warnings and limits, which the engine does not know.
void ToResponse(const InspectReply& reply, v1::InspectNodeResponse* response);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_CONVERT_H_
