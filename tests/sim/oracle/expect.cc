#include "tests/sim/oracle/expect.h"

#include <algorithm>

namespace memtide::sim {
namespace {

using Code = absl::StatusCode;

// The errors of naming these chunks, whatever is to be done with them.
void AddBatchErrors(const State& state, SessionId session, const std::vector<ChunkId>& chunks,
                    Codes* errors) {
  if (chunks.empty()) errors->insert(Code::kInvalidArgument);
  if (chunks.size() > state.config.limits.chunks_per_call) {
    errors->insert({Code::kInvalidArgument, Code::kResourceExhausted});
  }
  if (std::set<ChunkId>(chunks.begin(), chunks.end()).size() != chunks.size()) {
    errors->insert(Code::kInvalidArgument);
  }
  for (const ChunkId chunk : chunks) {
    if (!state.Owns(session, chunk)) errors->insert(Code::kNotFound);
  }
}

struct Expect {
  const State& state;

  Codes operator()(const OpenCall& call) const { return PermittedToOpen(state, call); }

  Codes operator()(const RenewCall& call) const {
    Codes codes;
    return NotOpen(state, call.session, &codes) ? codes : Codes{Code::kOk};
  }
  Codes operator()(const CloseCall& call) const {
    const SessionState* session = state.FindSession(call.session);
    // Closing what was never open is harmless or a mistake; neither is promised.
    if (session == nullptr || session->phase != Phase::kOpen) {
      return {Code::kOk, Code::kFailedPrecondition, Code::kUnauthenticated};
    }
    return {Code::kOk};
  }

  Codes operator()(const AllocateCall& call) const {
    Codes errors;
    if (NotOpen(state, call.session, &errors)) return errors;
    const JobState& job = *state.JobOf(call.session);
    const JobId id = state.FindSession(call.session)->job;
    if (call.request_id == 0) errors.insert(Code::kInvalidArgument);
    if (call.count == 0) errors.insert(Code::kInvalidArgument);
    if (call.count > state.config.limits.chunks_per_call) {
      errors.insert({Code::kInvalidArgument, Code::kResourceExhausted});
    }
    const Tier home = call.home.value_or(state.HomeTier());
    const bool above = home == Tier::kHost && state.HasHostHomes() && home != state.HomeTier();
    if (home != state.HomeTier() && !(above && call.transient)) {
      errors.insert(Code::kInvalidArgument);
    }
    const auto at_home = std::count_if(
        state.chunks.begin(), state.chunks.end(),
        [&](const auto& chunk) { return chunk.second.job == id && !chunk.second.host_home; });
    if ((!above && at_home + uint64_t{call.count} > job.max_chunks) ||
        state.chunks.size() + uint64_t{call.count} > state.config.limits.chunks) {
      errors.insert(Code::kResourceExhausted);
    }
    if (state.draining) errors.insert(Code::kUnavailable);
    Codes codes = OkOr(errors);
    // Allocations that wait are served first, and until then other chunks can be freed.
    if (state.AllocationsWait()) codes.insert(Code::kOk);
    const bool exhausted =
        state.AllocationsWait() || state.makes_failed != 0 || job.IsElastic() || above;
    if (exhausted) codes.insert(Code::kResourceExhausted);
    return codes;
  }

  Codes operator()(const FetchCall& call) const {
    Codes errors;
    if (NotOpen(state, call.session, &errors)) return errors;
    AddBatchErrors(state, call.session, call.chunks, &errors);
    const uint32_t slots = state.JobOf(call.session)->slots[static_cast<size_t>(call.tier)];
    if (call.tier == Tier::kSsd || slots == 0) errors.insert(Code::kInvalidArgument);
    if (TooMany(call.moments)) errors.insert(Code::kInvalidArgument);
    if (call.chunks.size() > slots) errors.insert(Code::kResourceExhausted);
    // Where chunks pass through host memory, one host slot may be kept for that.
    const bool last_slot = call.tier == Tier::kHost && call.chunks.size() == slots &&
                           state.config.device_slots != 0 && state.config.ssd_slots != 0;
    const auto& leases = state.FindSession(call.session)->leases;
    bool other_tier = false, torn = false, excluded = false;
    for (const ChunkId chunk : call.chunks) {
      if (!state.Owns(call.session, chunk)) continue;
      const bool released =
          std::find(call.releases.begin(), call.releases.end(), chunk) != call.releases.end();
      const auto held = leases.find(chunk);
      if (held != leases.end() && !released && held->second.tier != call.tier) other_tier = true;
      // A waiting fetch of its own may hold it already, which only the engine knows.
      if (state.WaitedFor(chunk, call.session)) other_tier = true;
      if (MayBeTorn(state.chunks.at(chunk))) torn = true;
      // A chunk that waiting fetches want may be promised to them, which only the engine knows.
      if (state.LeasedByOther(call.session, chunk, false) || state.WaitedFor(chunk)) {
        excluded = true;
      }
    }
    Codes codes = OkOr(errors);
    if (!errors.empty()) return codes;
    if (other_tier) codes.insert(Code::kFailedPrecondition);
    // A chunk whose home is host memory has its slot, and chunks pass through one.
    const uint32_t homes =
        call.tier == Tier::kHost ? state.JobOf(call.session)->most_host_homes : 0;
    const bool beside_homes = homes != 0 && call.chunks.size() + homes + 1 > slots;
    // Beyond its claim, what it can lease depends on what others need.
    const JobState& job = *state.JobOf(call.session);
    const bool unclaimed =
        (call.tier == Tier::kHost && job.IsElastic() &&
         call.chunks.size() >= std::min(kLeastClaim, slots * 3 / 4)) ||
        (call.tier == Tier::kDevice && job.HasElasticDevice() && call.chunks.size() > kLeastSlots);
    if (last_slot || beside_homes || unclaimed || state.makes_failed != 0)
      codes.insert(Code::kResourceExhausted);
    if (torn && call.access == Access::kRead) codes.insert(Code::kDataLoss);
    if (!call.wait) codes.insert(Code::kUnavailable);
    if (!call.wait && excluded) codes.insert(Code::kAborted);
    if (state.WaitingCalls(call.session) >= state.config.limits.waiting_calls_per_session) {
      codes.insert(Code::kResourceExhausted);
    }
    if (call.deadline < Duration(0) || call.deadline > state.config.limits.max_wait ||
        call.releases.size() > state.config.limits.chunks_per_call) {
      codes.insert(Code::kInvalidArgument);
    }
    return codes;
  }

  Codes operator()(const StepCall& call) const { return PermittedToStep(state, call); }
  Codes operator()(const EndPartCall& call) const { return PermittedToEndPart(state, call); }
  Codes operator()(const CommitCall& call) const { return PermittedToCommit(state, call); }

  Codes operator()(const ReleaseCall& call) const {
    Codes errors;
    if (NotOpen(state, call.session, &errors)) return errors;
    if (call.request_id == 0) errors.insert(Code::kInvalidArgument);
    AddBatchErrors(state, call.session, call.chunks, &errors);
    const auto& leases = state.FindSession(call.session)->leases;
    for (const ChunkId chunk : call.chunks) {
      if (leases.count(chunk) == 0) errors.insert(Code::kFailedPrecondition);
    }
    return OkOr(errors);
  }

  // By others than the session: its steps and parts are such.
  bool InUse(SessionId session, ChunkId chunk) const {
    return state.LeasedByOther(session, chunk, false) || state.IsStepped(chunk, false);
  }

  Codes operator()(const EvictCall& call) const {
    Codes errors;
    if (NotOpen(state, call.session, &errors)) return errors;
    AddBatchErrors(state, call.session, call.chunks, &errors);
    const uint32_t slots = state.JobOf(call.session)->slots[static_cast<size_t>(call.tier)];
    if (call.tier == Tier::kDevice || slots == 0) errors.insert(Code::kInvalidArgument);
    bool waited_for = false;
    for (const ChunkId chunk : call.chunks) {
      if (!state.Owns(call.session, chunk)) continue;
      if (InUse(call.session, chunk)) errors.insert(Code::kFailedPrecondition);
      if (state.WaitedFor(chunk)) waited_for = true;
    }
    Codes codes = OkOr(errors);
    // Part of a waiting batch may be leased already, which only the engine knows; or be leased as
    // soon as this session's leases have ended.
    if (waited_for) codes.insert({Code::kFailedPrecondition, Code::kAborted});
    if (state.WaitingCalls(call.session) >= state.config.limits.waiting_calls_per_session) {
      codes.insert(Code::kResourceExhausted);
    }
    return codes;
  }

  Codes operator()(const FreeCall& call) const {
    Codes errors;
    if (NotOpen(state, call.session, &errors)) return errors;
    if (call.request_id == 0) errors.insert(Code::kInvalidArgument);
    AddBatchErrors(state, call.session, call.chunks, &errors);
    bool waited_for = false;
    for (const ChunkId chunk : call.chunks) {
      if (!state.Owns(call.session, chunk)) continue;
      if (InUse(call.session, chunk)) errors.insert(Code::kFailedPrecondition);
      if (state.WaitedForByOther(call.session, chunk)) waited_for = true;
    }
    Codes codes = OkOr(errors);
    if (waited_for) codes.insert(Code::kFailedPrecondition);
    return codes;
  }

  Codes operator()(const DiscardCall& call) const {
    Codes errors;
    if (NotOpen(state, call.session, &errors)) return errors;
    if (call.request_id == 0) errors.insert(Code::kInvalidArgument);
    AddBatchErrors(state, call.session, call.chunks, &errors);
    bool waited_for = false;
    for (const ChunkId chunk : call.chunks) {
      if (!state.Owns(call.session, chunk)) continue;
      if (InUse(call.session, chunk)) errors.insert(Code::kFailedPrecondition);
      if (state.WaitedFor(chunk)) waited_for = true;
    }
    Codes codes = OkOr(errors);
    if (waited_for) codes.insert(Code::kFailedPrecondition);
    return codes;
  }

  Codes operator()(const ReportCall& call) const {
    Codes errors;
    if (NotOpen(state, call.session, &errors)) return errors;
    if (TooMany(call.moments)) errors.insert(Code::kInvalidArgument);
    return OkOr(errors);
  }

  bool TooMany(const std::vector<MomentReport>& moments) const {
    const Limits& limits = state.config.limits;
    size_t uses = 0, ends = 0;
    for (const MomentReport& moment : moments) {
      uses += moment.uses.size();
      ends += moment.ends_iteration;
    }
    return moments.size() > limits.moments_per_call || uses > limits.uses_per_call ||
           ends > limits.iteration_ends_per_call;
  }

  Codes operator()(const DescribeCall& call) const {
    Codes errors;
    if (NotOpen(state, call.session, &errors)) return errors;
    AddBatchErrors(state, call.session, call.chunks, &errors);
    return OkOr(errors);
  }

  Codes operator()(const ResizeCall& call) const {
    Codes errors;
    if (NotOpen(state, call.session, &errors)) return errors;
    const JobState& job = *state.JobOf(call.session);
    if (job.slots[0] == 0 || job.device_memory != MemoryKind::kCudaDescriptor ||
        state.HomeTier() == Tier::kDevice) {
      return {Code::kFailedPrecondition};
    }
    const Limits& limits = state.config.limits;
    const uint64_t slots = call.device_share / job.chunk_size;
    if (slots < kLeastSlots) errors.insert(Code::kInvalidArgument);
    if (call.deadline < Duration(0) || call.deadline > limits.max_wait) {
      errors.insert(Code::kInvalidArgument);
    }
    if (state.draining) errors.insert(Code::kUnavailable);
    bool doubtful = false;
    if (slots + job.leaving.size() > limits.device_regions) errors.insert(Code::kResourceExhausted);
    // Some may be the job's, and never have been seen.
    if (slots + job.leaving.size() + state.dropping.size() > limits.device_regions) doubtful = true;
    const Bytes free = state.Free({Tier::kDevice, job.device});
    // The limit of an elastic share says nothing of what is free.
    if (!job.HasElasticDevice() && slots > job.slots[0] &&
        slots - job.slots[0] > free / job.chunk_size) {
      // A share that shrank may keep the slots that it has not given back yet.
      if (job.shrunk != 0) {
        doubtful = true;
      } else {
        errors.insert(Code::kResourceExhausted);
      }
    }
    Codes codes = OkOr(errors);
    if (doubtful) codes.insert(Code::kResourceExhausted);
    return codes;
  }

  Codes operator()(const ReturnRegionsCall& call) const {
    Codes errors;
    if (NotOpen(state, call.session, &errors)) return errors;
    if (call.regions.size() > state.config.limits.device_regions) {
      errors.insert(Code::kInvalidArgument);
    }
    return OkOr(errors);
  }

  template <typename Other>
  Codes operator()(const Other&) const {
    return {Code::kOk};
  }
};

}  // namespace

bool NotOpen(const State& state, SessionId session, Codes* codes) {
  if (state.IsOpen(session)) return false;
  *codes = {Code::kFailedPrecondition};
  const SessionState* found = state.FindSession(session);
  if (found == nullptr || found->phase == Phase::kEnding || found->phase == Phase::kEnded) {
    codes->insert(Code::kUnauthenticated);
  }
  return true;
}

Codes PermittedCodes(const State& state, const Event& event) {
  return std::visit(Expect{state}, event);
}

bool AnsweredAtOnce(const State& state, const Event& event, const Codes& permitted) {
  // Allocations are served in order.
  if (std::holds_alternative<AllocateCall>(event) && state.AllocationsWait()) return false;
  if (permitted.count(Code::kOk) == 0) return true;
  if (const auto* fetch = std::get_if<FetchCall>(&event)) return !fetch->wait;
  if (const auto* resize = std::get_if<ResizeCall>(&event)) {
    const JobState& job = *state.JobOf(resize->session);
    return job.shrunk == 0 && !job.HasElasticDevice() &&
           resize->device_share / job.chunk_size >= job.slots[0];
  }
  return !std::holds_alternative<OpenCall>(event) && !std::holds_alternative<EvictCall>(event) &&
         !std::holds_alternative<StepCall>(event) && !std::holds_alternative<AllocateCall>(event) &&
         !std::holds_alternative<DrainCall>(event);
}

bool GivesBack(const Event& event) {
  return std::holds_alternative<FetchCall>(event) || std::holds_alternative<EvictCall>(event);
}

}  // namespace memtide::sim
