// Traces in the protocol's words. Times count from the first moment.
#include <algorithm>
#include <chrono>

#include "daemon/service/convert.h"

namespace memtide {
namespace {

v1::MoveReason ToProto(MoveReason reason) {
  switch (reason) {
    case MoveReason::kDemand:
      return v1::MOVE_REASON_DEMAND;
    case MoveReason::kPrefetch:
      return v1::MOVE_REASON_PREFETCH;
    case MoveReason::kVictim:
      return v1::MOVE_REASON_EVICT;
    case MoveReason::kWriteBack:
      return v1::MOVE_REASON_WRITE_BACK;
    case MoveReason::kRequest:
      return v1::MOVE_REASON_REQUEST;
  }
  return v1::MOVE_REASON_UNSPECIFIED;
}

// A move without a source writes zeros, and one without a destination drops a copy.
v1::Tier TierToProto(absl::optional<Tier> tier) {
  return tier.has_value() ? ToProto(*tier) : v1::TIER_UNSPECIFIED;
}

}  // namespace

void ToResponse(const TraceReply& reply, v1::Trace* response) {
  response->set_job_id(reply.job.value());
  response->set_chunk_size_bytes(reply.chunk_size.count());
  response->set_device_slots(reply.device_slots);
  response->set_host_slots(reply.host_slots);
  response->set_ssd_slots(reply.ssd_slots);
  if (!reply.moments.empty()) {
    // tidy(wall-clock): compared with the other now, as it may have been set since the moment.
    const Duration wall = std::chrono::system_clock::now().time_since_epoch();
    response->set_first_moment_unix_ns((wall - (Now() - reply.start)).count());
  }
  for (const TracedChunk& chunk : reply.chunks) {
    v1::TracedChunk* const proto = response->add_chunks();
    proto->set_number(chunk.number);
    proto->set_chunk_id(chunk.chunk.value());
    proto->set_kind(ToProto(chunk.kind));
    // 0 may be a prediction, so `predicted` says whether there is one.
    proto->set_next_use_in_moments(chunk.next_use_in_moments.value_or(0));
    proto->set_predicted(chunk.next_use_in_moments.has_value());
  }
  for (const TracedMoment& moment : reply.moments) {
    v1::TracedMoment* const proto = response->add_moments();
    proto->set_phase(ToProto(moment.phase));
    proto->set_name(moment.name);
    proto->set_own_device_bytes(moment.own_device.count());
    proto->set_own_host_bytes(moment.own_host.count());
    proto->set_time_ns(moment.time.count());
    for (const uint32_t use : moment.uses) proto->add_uses(use);
  }
  for (const uint32_t end : reply.iteration_ends) response->add_iteration_ends(end);
  for (const TracedMove& move : reply.moves) {
    v1::TracedMove* const proto = response->add_moves();
    proto->set_chunk(move.chunk);
    proto->set_from(TierToProto(move.from));
    proto->set_to(TierToProto(move.to));
    proto->set_reason(ToProto(move.reason));
    proto->set_start_ns((move.start - reply.start).count());
    proto->set_duration_ns(move.duration.count());
    // Moments are counted from one.
    const uint64_t moment = move.moment - std::min(move.moment, reply.first_moment + 1);
    proto->set_moment(static_cast<uint32_t>(moment));
    proto->set_next_use_in_moments(move.next_use_in_moments.value_or(0));
    proto->set_predicted(move.next_use_in_moments.has_value());
    proto->set_nearer(move.nearer);
  }
  for (const TracedStall& stall : reply.stalls) {
    v1::TracedStall* const proto = response->add_stalls();
    proto->set_start_ns((stall.start - reply.start).count());
    proto->set_duration_ns(stall.duration.count());
    proto->set_waited_for(TierToProto(stall.waited_for));
    proto->set_chunks(stall.chunks);
  }
}

}  // namespace memtide
