// Steps that wait for their chunks, run and end (requests/steps.cc).
#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"
#include "daemon/engine/calls/calls.h"
#include "daemon/engine/residency/copies.h"

namespace memtide {

absl::optional<StepId> Calls::RunningPart(const Session& session, uint64_t part) {
  const auto found = session.steps.lower_bound({part, StepId()});
  if (found == session.steps.end() || found->first != part) return absl::nullopt;
  return found->second;
}

const RunningStep* Calls::FindStep(StepId id) const {
  const auto found = steps_.find(id);
  return found == steps_.end() ? nullptr : &found->second;
}

void Calls::Wait(Session& session, CallId call, std::vector<ChunkIndex> chunks,
                 size_t first_written, RunStep run, Duration deadline) {
  auto made = std::make_unique<Waiter>();
  Waiter& waiter = *made;
  waiter.call = call;
  // A holder of its own excludes the leases of the calling session, too.
  waiter.session = SessionId(kFirstStepHolder + next_step_++);
  waiter.tier = Tier::kHost;
  waiter.chunks = std::move(chunks);
  waiter.first_written = first_written;
  waiter.then = std::move(run);
  // If the calling session ends while the part waits, the part fails; once it runs, it goes on.
  const Verdict verdict = Enter(session, std::move(made), deadline);
  if (waiter.admitted && waiter.missing == 0) return Proceed(waiter);
  if (!waiter.admitted) WaitOrFail(waiter, verdict);
}

void Calls::Proceed(Waiter& waiter, const RunStep& then) {
  StartStep start;
  start.step = StepId(waiter.session.value());
  start.size = waiter.job->chunk_size;
  start.work = then.work;
  start.contents = then.contents;
  start.job = waiter.job->id;
  for (size_t i = 0; i < waiter.chunks.size(); ++i) {
    const ChunkIndex index = waiter.chunks[i];
    const Chunk& chunk = core_.chunks[index];
    Uses& uses = uses_[index];
    Pin& pin = *uses.FindPin(waiter.session);
    --pin.pending;
    pin.Grant(waiter.AccessOf(i), Count::Token());
    // Only now, when all chunks are there, does the old content of the shadow chunk end.
    if (pin.access == Access::kWrite) residency_.WriteInPlace(index);
    // A chunk that only steps use is not prefetched to the device.
    uses.only_stepped = !uses.leased;
    uses.leased = false;
    start.chunks.push_back(PlaceOf(chunk, Tier::kHost));
  }
  const CallId call = waiter.call;
  steps_.emplace(start.step,
                 RunningStep{waiter.call, waiter.session, waiter.owner,
                             core_.chunks.Hold(std::move(waiter.chunks)), waiter.first_written,
                             then.purpose, std::move(waiter.of_session), std::move(waiter.step)});
  core_.sessions.Find(waiter.owner)->steps.emplace(NumberOf(then.purpose), start.step);
  // The RunningStep has the counts and pins from here on. A part that the mover carries out ends at
  // StepDone, even if its session ends before.
  PartReply part;
  part.difference = then.difference;
  Leave(waiter);
  const bool is_for_mover = start.work != nullptr || start.contents != nullptr;
  if (is_for_mover) return core_.Emit(std::move(start));
  part.places = std::move(start.chunks);
  core_.AnswerWith(call, std::move(part));
}

void Calls::LeavePart(StepId id) {
  RunningStep& step = steps_.at(id);
  step.of_session.End();
  const auto* const offer = std::get_if<std::shared_ptr<Offer>>(&step.purpose);
  if (offer != nullptr) (*offer)->EndCounts();
}

void Calls::CheckSteps() const {
  for (const auto& [id, step] : steps_) MEMTIDE_CHECK(step.of_job);
}

RunningStep Calls::EndStep(StepId id, const absl::Status& status) {
  const auto found = steps_.find(id);
  RunningStep step = std::move(found->second);
  steps_.erase(found);
  if (Session* const owner = core_.sessions.Find(step.owner)) {
    owner->steps.erase({NumberOf(step.purpose), id});
  }
  const std::vector<ChunkIndex> chunks = step.chunks.End();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ChunkIndex index = chunks[i];
    Chunk& chunk = core_.chunks[index];
    // The output of the part is content now, or is discarded below.
    if (i >= step.first_written) uses_[index].overwrite = chunk.blank = false;
    // The job ended while the part ran, and the chunk kept its slots only for it.
    if (!chunk.live()) {
      Job& job = *chunk.job;
      if (residency_.ReleaseIfUnused(index)) AllocateWaiting(job);
      continue;
    }
    core_.MarkDirty(index);
    for (size_t pin = 0; pin < chunk.uses().pins.size(); ++pin) {
      if (chunk.uses().pins[pin].session != step.holder) continue;
      UnpinChunk(index, pin);
      break;
    }
    // The part may be repeated with the same result, because it reads other chunks than it writes.
    if (!status.ok() && i >= step.first_written) residency_.Discard(index);
    if (chunk.is_shadow)
      victims_.Rank(chunk.counterpart);  // Whether the counterpart is superseded has changed.
  }
  // A copy or a hash that the daemon makes of its own accord is no part of an optimizer's step.
  const bool is_of_optimizer = std::holds_alternative<NumberedPart>(step.purpose);
  if (status.ok() && is_of_optimizer) ++core_.counters.step_parts;
  return step;
}

}  // namespace memtide
