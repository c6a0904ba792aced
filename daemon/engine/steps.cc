// Steps: an optimizer's arithmetic on chunks, in host memory.
//
// A step's part is a fetch of its chunks to the host by a holder of its own, followed by the
// arithmetic, after which its leases end. What it writes are other chunks than what it reads:
// nothing of the job's state changes before it is published (publish.cc), whatever dies meanwhile.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/state.h"

namespace memtide {

absl::Status EngineState::CheckStep(const Session& session, const StepCall& event,
                                    const std::vector<uint32_t>& places) const {
  const Job& job = *session.job;
  if (!job.tier(Tier::kHost).exists()) {
    return absl::FailedPreconditionError(
        "this node has no host pool, and steps are computed in host memory");
  }
  const Limits& limits = options_.limits;
  const size_t pieces = event.work->pieces.size() + event.work->copies.size();
  if (pieces > limits.step_pieces) {
    return absl::InvalidArgumentError(
        absl::StrCat(pieces, " pieces and copies; at most ", limits.step_pieces, " a call"));
  }
  if (event.reads > places.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("reads: ", event.reads, " of ", places.size(), " chunks"));
  }
  const uint32_t limit = job.LeaseLimit(Tier::kHost);
  if (places.size() > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a step of ", places.size(), " chunks at once; the job's host share of ",
                     FormatBytes(job.tier(Tier::kHost).share), " can hold ", limit,
                     "; raise the pool or step fewer at a time"));
  }
  MEMTIDE_RETURN_IF_ERROR(CheckDeadline(event.deadline));
  for (size_t i = 0; i < event.reads; ++i) {
    if (chunks_[places[i]].torn) return Lost(places[i]);
  }
  if (session.waiting_calls >= limits.waiting_calls_per_session) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session has its limit of ", limits.waiting_calls_per_session,
                     " waiting calls; wait for some of them first"));
  }
  return optimizer::Validate(*event.work, event.reads, static_cast<uint32_t>(places.size()),
                             job.chunk_size.count());
}

// What it uses is foreseen as what sessions use is.
void EngineState::LearnStep(Job& job, const StepCall& event) {
  MomentReport uses;
  uses.continues = true;
  for (size_t i = 0; i < event.chunks.size(); ++i) {
    uses.uses.push_back({event.chunks[i], i < event.reads ? Access::kRead : Access::kWrite});
  }
  Learn(job, {std::move(uses)});
}

void EngineState::On(const StepCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  absl::Status status = CheckMoments(event.moments);
  if (status.ok()) Learn(job, event.moments);
  absl::StatusOr<std::vector<uint32_t>> places = Resolve(job, event.chunks);
  if (status.ok()) status = places.ok() ? CheckStep(*session, event, *places) : places.status();
  if (!status.ok()) return Refuse(event.call, status);
  LearnStep(job, event);

  auto made = std::make_unique<FetchOperation>();
  FetchOperation& fetch = *made;
  fetch.call = event.call;
  fetch.session = SessionId(kFirstStepHolder + next_step_++);
  fetch.owner = session->id;
  fetch.job = &job;
  fetch.tier = Tier::kHost;
  fetch.chunks = std::move(*places);
  fetch.first_written = event.reads;
  fetch.work = event.work;
  fetch.started = now_;
  fetch.deadline =
      now_ + (event.deadline == Duration(0) ? options_.limits.max_wait : event.deadline);
  fetches_.emplace(event.call, std::move(made));
  ++session->waiting_calls;

  const Admission admission = TryAdmit(fetch);
  if (fetch.admitted && fetch.missing == 0) return StartStepOf(fetch);
  if (!fetch.admitted) {
    job.tier(Tier::kHost).admission.push_back(&fetch);
    AskLeasesBack(fetch, admission);
  }
}

void EngineState::StartStepOf(FetchOperation& fetch) {
  StartStep start;
  start.step = StepId(fetch.session.value());
  start.size = fetch.job->chunk_size;
  start.work = fetch.work;
  for (size_t i = 0; i < fetch.chunks.size(); ++i) {
    const uint32_t place = fetch.chunks[i];
    Chunk& chunk = chunks_[place];
    Hold& hold = *chunk.FindHold(fetch.session);
    --hold.pending;
    hold.granted = true;
    hold.access = fetch.AccessOf(i);
    if (hold.access == Access::kWrite) MakeNewVersion(place);
    chunk.only_stepped = !chunk.leased;
    chunk.leased = false;
    ++chunk.steps;
    start.chunks.push_back(PlaceOf(chunk, Tier::kHost));
  }
  steps_.emplace(start.step, RunningStep{fetch.call, fetch.session, fetch.owner, fetch.job,
                                         fetch.chunks, fetch.first_written});
  fetches_.erase(fetch.call);
  Emit(std::move(start));
}

void EngineState::On(const StepDone& event) {
  const auto found = steps_.find(event.step);
  if (found == steps_.end()) return;
  const RunningStep step = std::move(found->second);
  steps_.erase(found);
  --step.job->steps;
  for (size_t i = 0; i < step.chunks.size(); ++i) {
    const uint32_t place = step.chunks[i];
    Chunk& chunk = chunks_[place];
    --chunk.steps;
    if (i >= step.first_written) chunk.overwrite = chunk.blank = false;
    if (chunk.dying) {
      ForgetChunk(place);
      continue;
    }
    Touch(place);
    for (size_t hold = 0; hold < chunk.holds.size(); ++hold) {
      if (chunk.holds[hold].session != step.holder) continue;
      Unpin(place, hold);
      break;
    }
    if (!event.status.ok() && i >= step.first_written) Discard(place);
    if (chunk.is_twin) Rank(chunk.partner);  // It is superseded, or is so no more.
  }
  if (Session* session = FindSession(step.owner)) --session->waiting_calls;
  if (!event.status.ok()) return Refuse(step.call, event.status);
  ++counters_.step_parts;
  counters_.non_finite_gradients += event.non_finite_gradients;
  Reply reply;
  reply.call = step.call;
  reply.value = StepReply{event.non_finite_gradients};
  Emit(std::move(reply));
}

void EngineState::Discard(uint32_t place) {
  Chunk& chunk = chunks_[place];
  MEMTIDE_CHECK(!chunk.pinned());
  chunk.version = Version(chunk.version.value() + 1);
  chunk.valid = 0;
  chunk.torn = chunk.blank = false;
  Touch(place);
  ForgetWishes(place);
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const bool in_use =
        chunk.flight.has_value() && (chunk.flight->to == tier || chunk.flight->from == tier);
    if (tier != chunk.job->home && chunk.slot(tier) && !in_use) DropCopy(place, tier);
  }
  Rank(place);
  if (chunk.is_twin) Rank(chunk.partner);
  Ready(place);
}

}  // namespace memtide
