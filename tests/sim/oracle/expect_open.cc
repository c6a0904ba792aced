// PermittedToOpen(): the status codes that an OpenCall may be answered with.
#include <algorithm>
#include <vector>

#include "tests/sim/oracle/expect.h"

namespace memtide::sim {
namespace {

using Code = absl::StatusCode;

constexpr size_t kLongestJobName = 128;

uint32_t PoolSlots(const State& state, Tier tier) {
  return tier == Tier::kDevice ? state.config.device_slots
         : tier == Tier::kHost ? state.config.host_slots
                               : state.config.ssd_slots;
}

Bytes Share(const OpenCall& call, Tier tier) {
  return tier == Tier::kDevice ? call.device_share
         : tier == Tier::kHost ? call.host_share
                               : call.ssd_share;
}

void AddShareErrors(const State& state, const OpenCall& call, Codes* errors, bool* doubtful) {
  for (const Tier tier : kAllTiers) {
    if (PoolSlots(state, tier) == 0) {
      if (!Share(call, tier).IsZero()) *doubtful = true;
      continue;
    }
    const Bytes free = state.Free(state.PoolFor(call, tier));
    if (call.chunk_size.IsZero()) continue;  // Refused for that.
    if (RoundDown(Share(call, tier), call.chunk_size) > free) {
      errors->insert(Code::kResourceExhausted);
    }
    if (Share(call, tier) > free) *doubtful = true;
    const uint32_t slots = ExpectedSlots(state, call, tier);
    if (slots == 0) errors->insert(Code::kResourceExhausted);
    if (slots < kLeastSlots) *doubtful = true;
    const bool by_slot = tier == Tier::kDevice && state.config.slot_regions &&
                         call.device_memory != MemoryKind::kCudaIpc;
    if (by_slot && slots > state.config.limits.device_regions) {
      errors->insert(Code::kResourceExhausted);
    }
  }
}

// Whether jobs that end have memory still: an Open may wait for it.
bool MemoryComes(const State& state) {
  return std::any_of(state.pools.begin(), state.pools.end(),
                     [](const PoolUsage& pool) { return !pool.scrubbing.IsZero(); });
}

}  // namespace

const JobState* JobToJoin(const State& state, const OpenCall& call) {
  const SessionState* session = state.FindSession(call.session);
  if (session == nullptr || call.job_name.empty()) return nullptr;
  for (const auto& [id, job] : state.jobs) {
    if (job.uid == session->uid && job.name == call.job_name) return &job;
  }
  return nullptr;
}

std::vector<const OpenCall*> OpeningTwins(const State& state, const OpenCall& call) {
  std::vector<const OpenCall*> twins;
  const SessionState* session = state.FindSession(call.session);
  if (session == nullptr || call.job_name.empty()) return twins;
  for (const auto& [id, waiting] : state.calls) {
    const auto* open = std::get_if<OpenCall>(&waiting.event);
    if (open != nullptr && open->job_name == call.job_name && open->call != call.call &&
        state.FindSession(open->session) != nullptr &&
        state.FindSession(open->session)->uid == session->uid) {
      twins.push_back(open);
    }
  }
  return twins;
}

uint32_t ExpectedSlots(const State& state, const OpenCall& call, Tier tier) {
  if (PoolSlots(state, tier) == 0) return 0;
  const Bytes free = state.Free(state.PoolFor(call, tier));
  const Bytes share = Share(call, tier).IsZero() ? free : Share(call, tier);
  return static_cast<uint32_t>(
      std::min<uint64_t>(share / call.chunk_size, state.config.limits.chunks));
}

Codes PermittedToOpen(const State& state, const OpenCall& call) {
  const SessionState* session = state.FindSession(call.session);
  if (session == nullptr || session->phase == Phase::kEnding || session->phase == Phase::kEnded) {
    return {Code::kUnauthenticated, Code::kFailedPrecondition};
  }
  Codes errors;
  if (session->phase != Phase::kConnected) errors.insert(Code::kFailedPrecondition);
  if (call.job_name.size() > kLongestJobName) errors.insert(Code::kInvalidArgument);
  const uint32_t devices = state.config.device_slots == 0 ? 0 : state.config.devices;
  if (call.device.has_value() && *call.device >= devices) errors.insert(Code::kInvalidArgument);
  if (state.draining) errors.insert(Code::kUnavailable);
  const JobState* join = JobToJoin(state, call);
  const std::vector<const OpenCall*> twins = OpeningTwins(state, call);
  const bool bad_size = call.chunk_size.IsZero() || call.chunk_size > kMaxChunkSize ||
                        !call.chunk_size.IsMultipleOf(kChunkAlignment);
  if (bad_size && !(call.chunk_size.IsZero() && (join != nullptr || !twins.empty()))) {
    errors.insert(Code::kInvalidArgument);
  }
  bool doubtful =
      call.time_to_live < Duration(0) || call.time_to_live > state.config.limits.max_time_to_live;
  if (call.time_to_live > Duration(0) && call.job_name.empty()) {
    errors.insert(Code::kInvalidArgument);
  }
  const auto differs = [](Bytes requested, Bytes has) {
    return !requested.IsZero() && requested != has;
  };
  const auto asks_otherwise = [&](const OpenCall& first) {
    return differs(call.chunk_size, first.chunk_size) ||
           differs(call.device_share, first.device_share) ||
           differs(call.host_share, first.host_share) || differs(call.ssd_share, first.ssd_share);
  };
  if (join != nullptr) {
    // "Other sizes" may be judged by what was asked or by what was lent.
    if (asks_otherwise(join->opened_by)) doubtful = true;
    if (join->slots[0] != 0 && call.device.value_or(join->device) != join->device) {
      errors.insert(Code::kFailedPrecondition);
    }
  } else if (!twins.empty()) {
    // Any of them may make the job, on any device where it names none.
    for (const OpenCall* const twin : twins) {
      if (asks_otherwise(*twin) || call.device != twin->device) doubtful = true;
    }
  } else {
    AddShareErrors(state, call, &errors, &doubtful);
    if (state.config.slot_regions && call.device_memory == MemoryKind::kSharedMemory) {
      errors.insert(Code::kFailedPrecondition);
    }
  }
  Codes codes = OkOr(errors);
  if (errors == Codes{Code::kResourceExhausted} && MemoryComes(state)) codes.insert(Code::kOk);
  // Others may cede what it wants, or have claimed what is free.
  if (state.config.elastic && (errors.empty() || errors == Codes{Code::kResourceExhausted})) {
    codes.insert({Code::kOk, Code::kResourceExhausted});
    // While it waits, another one may make the job, on another device.
    if (!call.job_name.empty() && call.device) codes.insert(Code::kFailedPrecondition);
  }
  // The other one may wait for memory, of jobs that end or that cede it: then there is nothing to
  // be joined yet.
  const bool may_wait =
      join == nullptr && !twins.empty() && (MemoryComes(state) || state.config.elastic);
  if (may_wait && call.chunk_size.IsZero()) codes.insert(Code::kInvalidArgument);
  // A job that has lingered long enough may have ended.
  const bool may_be_gone = join != nullptr && join->IsLate(state.now);
  if ((may_wait || may_be_gone) && state.config.slot_regions &&
      call.device_memory == MemoryKind::kSharedMemory) {
    codes.insert(Code::kFailedPrecondition);
  }
  // It waits until the job's regions are replaced. Meanwhile the job may end, and another be made.
  const auto is_exposed = [&](RegionId region) { return state.exposed.count(region) != 0; };
  if (codes.count(Code::kOk) != 0 && join != nullptr &&
      std::any_of(join->regions.begin(), join->regions.end(), is_exposed)) {
    codes.insert({Code::kUnavailable, Code::kInvalidArgument, Code::kFailedPrecondition,
                  Code::kResourceExhausted});
  }
  if (doubtful) {
    codes.insert({Code::kInvalidArgument, Code::kFailedPrecondition, Code::kResourceExhausted});
  }
  return codes;
}

}  // namespace memtide::sim
