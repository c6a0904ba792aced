// The status codes that calls about steps may be answered with.
#include <algorithm>

#include "tests/sim/oracle/expect.h"

namespace memtide::sim {
namespace {

using Code = absl::StatusCode;

// The numbers of parts that wait or run differ.
bool MayBeginPart(const State& state, const StepCall& call) {
  return call.part != 0 && !state.HasPart({call.session, call.part});
}

}  // namespace

Codes PermittedToStep(const State& state, const StepCall& call) {
  FetchCall fetch;  // It is one, by a holder of its own.
  fetch.session = call.session;
  fetch.tier = Tier::kHost;
  fetch.access = Access::kWrite;
  fetch.chunks = call.chunks;
  fetch.deadline = call.deadline;
  Codes codes = PermittedCodes(state, fetch);
  const size_t reads = std::min<size_t>(call.reads, call.chunks.size());
  for (size_t at = 0; at < reads && codes.count(Code::kOk) != 0; ++at) {
    const ChunkState& chunk = state.chunks.at(call.chunks[at]);
    if (!MayBeTorn(chunk)) continue;
    codes.insert(Code::kDataLoss);
    // A waiting writer may make it whole.
    if (chunk.whole == Whole::kTorn && !state.WaitedFor(call.chunks[at])) codes.erase(Code::kOk);
  }
  const bool wrong = call.reads > reads || (call.work == nullptr && !MayBeginPart(state, call));
  if (wrong && state.IsOpen(call.session)) {
    codes.erase(Code::kOk);
    codes.insert(Code::kInvalidArgument);
  }
  return codes;
}

// It is harmless where there is no such part.
Codes PermittedToEndPart(const State& state, const EndPartCall& call) {
  Codes codes;
  return NotOpen(state, call.session, &codes) ? codes : Codes{Code::kOk};
}

Codes PermittedToCommit(const State& state, const CommitCall& call) {
  Codes errors;
  if (NotOpen(state, call.session, &errors)) return errors;
  const JobState& job = *state.JobOf(call.session);
  if (call.step != 0 && call.step == job.published) return {Code::kOk};
  if (call.step != job.published + 1) errors.insert(Code::kFailedPrecondition);
  if (call.chunks.size() != call.shadows.size()) errors.insert(Code::kInvalidArgument);
  if (call.chunks.empty() && call.shadows.empty()) return OkOr(errors);
  std::vector<ChunkId> all = call.chunks;
  all.insert(all.end(), call.shadows.begin(), call.shadows.end());
  bool waited = false;
  for (const ChunkId chunk : all) {
    if (!state.Owns(call.session, chunk)) errors.insert(Code::kNotFound);
    if (!state.Holders(chunk).empty() || state.IsStepped(chunk, false)) {
      errors.insert(Code::kAborted);
    }
    if (state.WaitedFor(chunk) || state.Evicted(chunk)) waited = true;
    const bool owned = state.Owns(call.session, chunk);
    if (owned && state.chunks.at(chunk).transient) errors.insert(Code::kInvalidArgument);
  }
  if (std::set<ChunkId>(all.begin(), all.end()).size() != all.size()) {
    errors.insert(Code::kInvalidArgument);
  }
  if (call.chunks.size() > state.config.limits.chunks_per_call) {
    errors.insert({Code::kInvalidArgument, Code::kResourceExhausted});
  }
  Codes codes = OkOr(errors);
  if (waited) codes.insert(Code::kAborted);
  return codes;
}

}  // namespace memtide::sim
