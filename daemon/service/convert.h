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
#include "proto/verbs.h"

namespace memtide {

// The node's defaults for fields that a request may omit.
struct NodeDefaults {
  Tier fastest = Tier::kHost;
  Limits limits;
  // By the number of the device, the 16 bytes of the GPU's uuid. Empty: the device is no GPU.
  std::vector<std::string> device_uuids;
};

#define MEMTIDE_TO_EVENT(Method, Event, Reply) \
  absl::StatusOr<Event> ToEvent(const v1::Method##Request& request, const NodeDefaults& node);
MEMTIDE_VERBS(MEMTIDE_TO_EVENT)
#undef MEMTIDE_TO_EVENT
absl::StatusOr<TraceCall> ToEvent(const v1::GetTraceRequest& request, const NodeDefaults& node);
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
void ToResponse(const PartReply& reply, v1::StartPartResponse* response);
void ToResponse(const AllocateReply& reply, v1::AllocateResponse* response);
void ToResponse(const AllocateReply& reply, v1::DuplicateResponse* response);
void ToResponse(const OfferReply& reply, v1::OfferResponse* response);
void ToResponse(const FetchReply& reply, v1::FetchResponse* response);
void ToResponse(const ReportReply& reply, v1::ReportResponse* response);
void ToResponse(const DescribeReply& reply, v1::DescribeResponse* response);
void ToResponse(const TraceReply& reply, v1::Trace* response);
void ToResponse(const EndJobReply& reply, v1::EndJobResponse* response);
// Does not set version, boot_id, warnings and limits, which the engine does not know.
void ToResponse(const InspectReply& reply, v1::InspectNodeResponse* response);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_CONVERT_H_
