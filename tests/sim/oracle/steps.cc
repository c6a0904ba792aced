// The part of Model that judges steps, and what is published of them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/model.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

void Model::ObserveStep(const StartStep& effect) {
  const std::string what = ToText(Effect(effect));
  const auto found = std::find_if(state_.calls.begin(), state_.calls.end(), [&](const auto& entry) {
    const auto* step = std::get_if<StepCall>(&entry.second.event);
    return step != nullptr && step->work == effect.work;
  });
  if (found == state_.calls.end() || found->second.runs) {
    return Broken(absl::StrCat(what, ": nobody asked for it"));
  }
  const StepCall& call = std::get<StepCall>(found->second.event);
  std::optional<RunningStep> step = BeginStep(what, call, effect.chunks);
  if (!step) return;
  step->number = NumberOf(*call.work);
  found->second.runs = true;
  state_.steps.emplace(effect.step, *std::move(step));
}

std::optional<RunningStep> Model::BeginStep(const std::string& what, const StepCall& call,
                                            const std::vector<MemoryPlace>& places) {
  const auto broken = [this](const std::string& promise) {
    Broken(promise);
    return std::nullopt;
  };
  if (places.size() != call.chunks.size() || state_.JobOf(call.session) == nullptr) {
    return broken(absl::StrCat(what, ": not what was asked: ", ToText(Event(call))));
  }
  RunningStep step{call.call, state_.FindSession(call.session)->job, call.chunks};
  for (size_t at = 0; at < call.chunks.size(); ++at) {
    const ChunkId id = call.chunks[at];
    const bool reads = at < call.reads;
    if (!state_.Owns(call.session, id) || state_.IsStepped(id, reads) ||
        state_.jobs.at(step.job).regions.count(places[at].region) == 0) {
      return broken(absl::StrCat(what, ": chunk ", id.value(), " is not to be had"));
    }
    for (const SessionId holder : state_.Holders(id)) {
      const Lease& lease = state_.FindSession(holder)->leases.at(id);
      if (!reads || lease.access == Access::kWrite) {
        return broken(absl::StrCat(what, ": chunk ", id.value(), " is leased"));
      }
    }
    ChunkState& chunk = state_.chunks.at(id);
    // An eviction that came while the call waited goes on, and this is a later use.
    chunk.evicted_to.reset();
    chunk.wanted = state_.events;
    if (!reads) {
      // Poison, until it is done.
      chunk.whole = Whole::kYes;
      continue;
    }
    const Stamp seen = node_.Read(places[at]);
    if (chunk.whole == Whole::kTorn) {
      return broken(absl::StrCat(what, ": it reads torn chunk ", id.value()));
    }
    if (chunk.whole == Whole::kUndefined) chunk.content = seen;
    chunk.whole = Whole::kYes;
    if (seen != chunk.content) {
      return broken(absl::StrCat("WRONG BYTES: ", what, " reads chunk ", id.value(), " as ", seen,
                                 " where ", chunk.content, " was written"));
    }
    chunk.lasting = true;
    step.read.push_back(seen);
  }
  return step;
}

void Model::DiscardChunk(ChunkState* chunk) {
  chunk->content = kZeros;
  chunk->whole = chunk->undefined ? Whole::kUndefined : Whole::kYes;
  chunk->lasting = false;
  probes_.Hit(Probe::kDiscarded);
}

void Model::BeforeStepDone(const StepDone& event) {
  if (!event.status.ok()) ++state_.faults;
  probes_.Hit(event.status.ok() ? Probe::kStepDone : Probe::kStepFailed);
  const auto found = state_.steps.find(event.step);
  if (found == state_.steps.end()) return;
  const RunningStep step = found->second;
  state_.steps.erase(found);
  if (event.status.ok()) ++state_.step_parts;
  EndStep(step, event.status.ok());
}

void Model::EndStep(const RunningStep& step, bool computed) {
  const auto job = state_.jobs.find(step.job);
  if (job == state_.jobs.end()) return;
  for (size_t at = step.read.size(); at < step.chunks.size(); ++at) {
    const auto chunk = state_.chunks.find(step.chunks[at]);
    if (chunk == state_.chunks.end()) continue;  // Freed meanwhile.
    if (!computed) {
      DiscardChunk(&chunk->second);
      continue;
    }
    const size_t output = at - step.read.size();
    chunk->second.content = StepResult(step.read, step.number, output);
    chunk->second.lasting = true;
    if (output < step.read.size()) job->second.stepped[step.chunks[output]] = step.chunks[at];
  }
}

void Model::Accept(const Call&, const CommitCall& publish) {
  JobState& job = state_.jobs.at(state_.FindSession(publish.session)->job);
  if (publish.step == job.published) return probes_.Hit(Probe::kPublishRepeated);
  Publish(&job, publish);
}

void Model::Publish(JobState* job, const CommitCall& publish) {
  probes_.Hit(publish.keep_old_content ? Probe::kPublishKept : Probe::kPublished);
  for (size_t at = 0; at < publish.chunks.size(); ++at) {
    ChunkState& chunk = state_.chunks.at(publish.chunks[at]);
    ChunkState& fresh = state_.chunks.at(publish.shadows[at]);
    std::swap(chunk.content, fresh.content);
    std::swap(chunk.whole, fresh.whole);
    std::swap(chunk.lasting, fresh.lasting);
    std::swap(chunk.discarded, fresh.discarded);
    std::swap(chunk.wanted, fresh.wanted);
    if (state_.of_parts.count(chunk.content) != 0) probes_.Hit(Probe::kPartPublished);
    chunk.version = fresh.version =
        Version(std::max(chunk.version.value(), fresh.version.value()) + 1);
    chunk.evicted_to.reset();
    fresh.evicted_to.reset();
    // An eviction that waits for other chunks has evicted the content that it was asked for.
    chunk.exchanged = fresh.exchanged = state_.events;
    // A call that waits for the chunk gets what it holds then, and has asked for that.
    if (state_.WaitedFor(publish.chunks[at])) chunk.wanted = state_.events;
    if (state_.WaitedFor(publish.shadows[at])) fresh.wanted = state_.events;
    // Nothing reads as the chunk was allocated that holds it (AllocateCall). All that is written
    // differs from zeros.
    for (ChunkState* each : {&chunk, &fresh}) {
      const bool held = each->whole != Whole::kYes || each->content != kZeros;
      if (each->undefined && !held) each->whole = Whole::kUndefined;
    }
    if (!publish.keep_old_content) DiscardChunk(&fresh);
  }
  job->published = publish.step;
  job->manifest = publish.manifest;
  job->stepped.clear();
}

}  // namespace memtide::sim
