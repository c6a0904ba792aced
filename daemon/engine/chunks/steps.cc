// Steps: the arithmetic of an optimizer on chunks in host memory.
//
// A step part pins its chunks at the host under an id of its own, is computed, by the mover or by
// the session, and unpins them. It writes other chunks than it reads, so that the state of the job
// changes only at the commit (chunks/commit.cc), whichever process dies before.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/requests.h"

namespace memtide {

absl::Status Requests::CheckStep(const Session& session, const StepCall& event,
                                 const std::vector<ChunkIndex>& indices) const {
  const Job& job = *session.job;
  if (!job.share(Tier::kHost).exists()) {
    return absl::FailedPreconditionError(
        "this node has no host pool, and steps are computed in host memory");
  }
  const Limits& limits = core_.options.limits;
  const size_t pieces =
      event.work == nullptr ? 0 : event.work->pieces.size() + event.work->copies.size();
  if (pieces > limits.step_pieces) {
    return absl::InvalidArgumentError(
        absl::StrCat(pieces, " pieces and copies; at most ", limits.step_pieces, " a call"));
  }
  if (event.reads > indices.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("reads: ", event.reads, " of ", indices.size(), " chunks"));
  }
  const uint32_t limit = job.LeaseLimit(Tier::kHost);
  if (core_.chunks.CountRoom(indices, Tier::kHost) > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a step of ", indices.size(), " chunks at once; the job's host share of ",
                     FormatBytes(job.share(Tier::kHost).bytes()), " can hold ", limit,
                     "; raise the pool or step fewer at a time"));
  }
  MEMTIDE_RETURN_IF_ERROR(CheckDeadline(core_.options.limits, event.deadline));
  // Torn chunks that the part writes are allowed, because it writes all of them.
  for (size_t i = 0; i < event.reads; ++i) {
    if (core_.chunks[indices[i]].copies.torn) return Lost(core_.chunks, indices[i]);
  }
  MEMTIDE_RETURN_IF_ERROR(state_.CheckWaiting(session, indices.size()));
  if (event.work == nullptr) return CheckPart(session, event.part);
  return optimizer::Validate(*event.work, event.reads, static_cast<uint32_t>(indices.size()),
                             job.chunk_size.count());
}

absl::Status Requests::CheckPart(const Session& session, uint64_t part) const {
  if (part == 0) return absl::InvalidArgumentError("part_id is not set");
  bool is_used = false;
  for (const Waiter* waiter : session.waiters) {
    const auto* run = std::get_if<RunStep>(&waiter->then);
    is_used = is_used || (run != nullptr && run->part == part);
  }
  if (!is_used && !state_.RunningPart(session, part).has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("part_id ", part, " is that of a part which has not ended"));
}

absl::optional<StepId> EngineState::RunningPart(const Session& session, uint64_t part) {
  const auto found = session.steps.lower_bound({part, StepId()});
  if (found == session.steps.end() || found->first != part) return absl::nullopt;
  return found->second;
}

// The access predictor learns the uses of steps as it learns those of sessions.
void Requests::LearnStep(const Session& session, const StepCall& event) {
  MomentReport uses;
  // The uses belong to the current moment of the job.
  uses.continues = true;
  for (size_t i = 0; i < event.chunks.size(); ++i) {
    uses.uses.push_back({event.chunks[i], i < event.reads ? Access::kRead : Access::kWrite});
  }
  state_.Learn(session, {std::move(uses)}, EngineState::UsedBy::kPart);
}

void Requests::On(const StepCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  absl::Status status = state_.CheckMoments(event.moments);
  if (status.ok()) state_.Learn(*session, event.moments);
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  if (status.ok()) status = indices.ok() ? CheckStep(*session, event, *indices) : indices.status();
  if (!status.ok()) return core_.Refuse(event.call, status);
  LearnStep(*session, event);
  RunStep run;
  run.work = event.work;
  run.part = event.part;
  if (event.contents.has_value() && job.shares_contents()) {
    if (sharing_.SharePart(*session, event, &*indices, &run.difference)) return;
  } else {
    std::vector<bool> shared(indices->size());
    for (size_t i = event.reads; i < indices->size(); ++i)
      shared[i] = core_.ids.MustCopyToWrite((*indices)[i]);
    status =
        sharing_.GiveOwnEntries(*session, event.chunks, shared, /*may_be_leased=*/false, &*indices);
    if (!status.ok()) return core_.Refuse(event.call, status);
  }
  state_.Wait(*session, event.call, *std::move(indices), event.reads, std::move(run),
              event.deadline);
  if (!job.commits.empty()) core_.work.Send(CommitsPossible{job.id});
}

void EngineState::Wait(Session& session, CallId call, std::vector<ChunkIndex> chunks,
                       size_t first_written, RunStep run, Duration deadline) {
  auto made = std::make_unique<Waiter>();
  Waiter& waiter = *made;
  waiter.call = call;
  // A holder of its own excludes the leases of the calling session, too.
  waiter.session = SessionId(kFirstStepHolder + next_step_++);
  // If the calling session ends while the part waits, the part fails; once it runs, it goes on.
  waiter.owner = session.id;
  waiter.job = session.job;
  waiter.tier = Tier::kHost;
  waiter.chunks = std::move(chunks);
  waiter.first_written = first_written;
  waiter.then = std::move(run);
  waiter.started = core_.now;
  waiter.deadline =
      core_.now + (deadline == Duration(0) ? core_.options.limits.max_wait : deadline);
  Enter(session, std::move(made));

  const Verdict verdict = TryAdmit(waiter, /*may_take_room=*/true);
  if (waiter.admitted && waiter.missing == 0) return Proceed(waiter);
  if (!waiter.admitted) WaitForAdmission(waiter, verdict);
}

void EngineState::Proceed(Waiter& waiter, const RunStep& then) {
  StartStep start;
  start.step = StepId(waiter.session.value());
  start.size = waiter.job->chunk_size;
  start.work = then.work;
  start.contents = then.contents;
  start.job = waiter.job->id;
  for (size_t i = 0; i < waiter.chunks.size(); ++i) {
    const ChunkIndex index = waiter.chunks[i];
    Chunk& chunk = core_.chunks[index];
    Pin& pin = *chunk.FindPin(waiter.session);
    --pin.pending;
    pin.Grant(waiter.AccessOf(i), Count::Token());
    // Only now, when all chunks are there, does the old content of the shadow chunk end.
    if (pin.access == Access::kWrite) MakeNewVersion(index);
    // A chunk that only steps use is not prefetched to the device.
    chunk.only_stepped = !chunk.leased;
    chunk.leased = false;
    start.chunks.push_back(PlaceOf(chunk, Tier::kHost));
  }
  Reply reply;
  reply.call = waiter.call;
  core_.steps.emplace(
      start.step, RunningStep{waiter.call, waiter.session, waiter.owner,
                              core_.chunks.Hold(std::move(waiter.chunks)), waiter.first_written,
                              then.part, then.unsharing, then.offer, std::move(waiter.of_session),
                              std::move(waiter.step)});
  core_.sessions.Find(waiter.owner)->steps.emplace(then.part, start.step);
  // The RunningStep has the counts and pins from here on. What the mover computes ends at StepDone,
  // even if its session ends before.
  PartReply part;
  part.difference = then.difference;
  Leave(waiter);
  const bool is_for_mover = start.work != nullptr || start.contents != nullptr;
  if (is_for_mover) return core_.Emit(std::move(start));
  part.places = std::move(start.chunks);
  reply.value = std::move(part);
  core_.Emit(std::move(reply));
}

void Requests::On(const StepDone& event) {
  if (core_.steps.count(event.step) == 0) return;
  const RunningStep step = state_.EndStep(event.step, event.status, event.non_finite_gradients);
  if (step.unsharing != nullptr) return sharing_.EndUnsharing(step, event.status);
  if (step.offer != nullptr) return sharing_.EndOfferPart(step, event);
  if (!event.status.ok()) return core_.Refuse(step.call, event.status);
  Reply reply;
  reply.call = step.call;
  reply.value = StepReply{event.non_finite_gradients};
  core_.Emit(std::move(reply));
}

void Requests::On(const EndPartCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  const absl::optional<StepId> part = state_.RunningPart(*session, event.part);
  // Parts that the mover computes have the number zero.
  if (event.part != 0 && part.has_value()) {
    const RunningStep ended = state_.EndStep(
        *part, event.computed ? absl::OkStatus() : absl::AbortedError("the part was not computed"),
        event.non_finite_gradients);
    for (const StepCall& call :
         sharing_.PartEnded(*session->job, ended.owner, ended.part, event.computed)) {
      On(call);
    }
  }
  core_.Answer(event.call);
}

RunningStep EngineState::EndStep(StepId id, const absl::Status& status,
                                 uint64_t non_finite_gradients) {
  const auto found = core_.steps.find(id);
  RunningStep step = std::move(found->second);
  core_.steps.erase(found);
  if (Session* const owner = core_.sessions.Find(step.owner)) owner->steps.erase({step.part, id});
  const std::vector<ChunkIndex> chunks = step.chunks.End();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ChunkIndex index = chunks[i];
    Chunk& chunk = core_.chunks[index];
    // The output of the part is content now, or is discarded below.
    if (i >= step.first_written) chunk.overwrite = chunk.blank = false;
    // The job ended while the part ran, and the chunk kept its slots only for it.
    if (!chunk.live()) {
      Job& job = *chunk.job;
      if (ForgetChunk(index)) AllocateWaiting(job);
      continue;
    }
    core_.MarkDirty(index);
    for (size_t pin = 0; pin < chunk.pins.size(); ++pin) {
      if (chunk.pins[pin].session != step.holder) continue;
      UnpinChunk(index, pin);
      break;
    }
    // The part may be repeated with the same result, because it reads other chunks than it writes.
    if (!status.ok() && i >= step.first_written) Discard(index);
    if (chunk.is_shadow)
      Rank(chunk.counterpart);  // Whether the counterpart is superseded has changed.
  }
  if (status.ok()) {
    // What the daemon copies or hashes of its own accord is no part of an optimizer's step.
    if (step.unsharing == nullptr && step.offer == nullptr) ++core_.counters.step_parts;
    core_.counters.non_finite_gradients += non_finite_gradients;
  }
  return step;
}

}  // namespace memtide
