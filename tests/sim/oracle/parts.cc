// The part of Model that judges parts of steps that clients compute: what they read is the content,
// what they write is content only once they say so, and they end with their session.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/oracle/model.h"
#include "tests/sim/trace.h"

namespace memtide::sim {
namespace {

// No step has a number like those of parts: equal results are of equal parts.
constexpr uint64_t kPartNumbers = uint64_t{1} << 48;

}  // namespace

void Model::Accept(const Call& call, const StepCall& part, const PartReply& reply) {
  const std::string what = absl::StrCat("part of ", ToText(call.event));
  std::optional<RunningStep> step = BeginStep(what, part, reply.places);
  if (!step) return;
  if (call.event_number != state_.events) probes_.Hit(Probe::kPartWaited);
  step->number = kPartNumbers + part.call.value();
  const PartKey key{part.session, part.part};
  node_.BeginPart(key, reply.places, step->read.size(), state_.jobs.at(step->job).chunk_size,
                  step->number);
  state_.parts.emplace(key, *std::move(step));
}

void Model::EndPart(const EndPartCall& call) {
  const PartKey key{call.session, call.part};
  if (state_.parts.count(key) == 0) return probes_.Hit(Probe::kPartEndedTwice);
  probes_.Hit(call.computed ? Probe::kPartComputed : Probe::kPartNotComputed);
  EndPart(key, call.computed);
  if (!call.computed) return;
  ++state_.step_parts;
  state_.non_finite_gradients += call.non_finite_gradients;
}

void Model::HitPartProbes(const Call& call, const Reply& reply) {
  const auto* step = std::get_if<StepCall>(&call.event);
  if (step == nullptr || step->work != nullptr || reply.status.ok()) return;
  const bool refused = reply.status.code() == absl::StatusCode::kInvalidArgument;
  probes_.Hit(refused ? Probe::kPartRefused : Probe::kPartFailed);
}

void Model::EndPart(PartKey part, bool computed) {
  const RunningStep step = std::move(state_.parts.at(part));
  state_.parts.erase(part);
  node_.EndPart(part);
  EndStep(step, computed);
  for (size_t at = step.read.size(); computed && at < step.chunks.size(); ++at) {
    state_.of_parts.insert(StepResult(step.read, step.number, at - step.read.size()));
  }
  for (const ChunkId chunk : step.chunks) {
    if (state_.WaitedFor(chunk)) return probes_.Hit(Probe::kPartAwaited);
  }
}

void Model::EndPartsOf(SessionId session) {
  for (auto part = state_.parts.lower_bound({session, 0});
       part != state_.parts.end() && part->first.first == session;) {
    const PartKey key = part++->first;
    probes_.Hit(Probe::kPartEndedWithSession);
    if (state_.FindSession(session)->hung) probes_.Hit(Probe::kPartEndedByHang);
    EndPart(key, /*computed=*/false);
  }
}

}  // namespace memtide::sim
