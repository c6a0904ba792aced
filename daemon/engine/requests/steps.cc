// Steps: new content of chunks, computed in host memory.
//
// A step part pins its chunks at the host under an id of its own, is computed by the session, or
// copied by the mover, and unpins them. It writes other chunks than it reads, so that the state of
// the job changes only at the commit (commits/commit.cc), whichever process dies before.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/engine/requests/requests.h"

namespace memtide {

absl::Status Requests::CheckStep(const Session& session, const StepCall& event,
                                 const std::vector<ChunkIndex>& indices) const {
  const Job& job = *session.job;
  if (!job.share(Tier::kHost).exists()) {
    return absl::FailedPreconditionError(
        "this node has no host pool, and steps are computed in host memory");
  }
  if (event.reads > indices.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("reads: ", event.reads, " of ", indices.size(), " chunks"));
  }
  if (event.contents.has_value() && event.reads == indices.size()) {
    return absl::InvalidArgumentError(
        "contents: the part writes no chunk, so that ranks have no result to share");
  }
  for (size_t i = event.reads; event.contents.has_value() && i < indices.size(); ++i) {
    if (!core_.chunks[indices[i]].transient) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("contents: chunk ", event.chunks[i].value(),
                     " is transient and ends with its session, so that no rank can share it"));
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
    if (core_.chunks[indices[i]].copies().torn) return TornChunkError(core_.chunks, indices[i]);
  }
  MEMTIDE_RETURN_IF_ERROR(calls_.CheckWaiting(session, indices.size()));
  if (event.work == nullptr) return CheckPart(session, event.part);
  return Validate(*event.work, event.reads, static_cast<uint32_t>(indices.size()),
                  job.chunk_size.count());
}

absl::Status Requests::CheckPart(const Session& session, uint64_t part) const {
  if (part == 0) return absl::InvalidArgumentError("part_id is not set");
  bool is_used = false;
  for (const Waiter* waiter : session.waiters) {
    const auto* run = std::get_if<RunStep>(&waiter->then);
    is_used = is_used || (run != nullptr && NumberOf(run->purpose) == part);
  }
  if (!is_used && !calls_.RunningPart(session, part).has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("part_id ", part, " is that of a part which has not ended"));
}

// The access predictor learns the uses of steps as it learns those of sessions.
void Requests::LearnStep(const Session& session, const StepCall& event) {
  MomentReport uses;
  // The uses belong to the current moment of the job.
  uses.continues = true;
  for (size_t i = 0; i < event.chunks.size(); ++i) {
    uses.uses.push_back({event.chunks[i], i < event.reads ? Access::kRead : Access::kWrite});
  }
  prefetcher_.Learn(session, {std::move(uses)}, Prefetcher::UsedBy::kPart);
}

void Requests::On(const StepCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  const absl::Status status = CheckMoments(core_.options.limits, event.moments);
  if (!status.ok()) return core_.Refuse(event.call, status);
  prefetcher_.Learn(*session, event.moments);
  Begin(*session, event, Moment::kNew);
}

void Requests::On(const StepAgain& signal) {
  Session* session = core_.CallingSession(signal.call.call, signal.call.session);
  if (session != nullptr) Begin(*session, signal.call, Moment::kLearned);
}

void Requests::Begin(Session& session, const StepCall& event, Moment moment) {
  Job& job = *session.job;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(session, event.chunks);
  absl::Status status = indices.ok() ? CheckStep(session, event, *indices) : indices.status();
  if (!status.ok()) return core_.Refuse(event.call, status);
  if (moment == Moment::kNew) LearnStep(session, event);
  RunStep run;
  run.work = event.work;
  run.purpose = NumberedPart{event.part};
  if (event.contents.has_value() && job.shares_contents()) {
    if (rank_contents_.SharePart(session, event, &*indices, &run.difference)) return;
  } else {
    std::vector<bool> shared(indices->size());
    for (size_t i = event.reads; i < indices->size(); ++i)
      shared[i] = core_.ids.MustCopyToWrite((*indices)[i]);
    status = rank_contents_.GiveOwnEntries(session, event.chunks, shared, /*may_be_leased=*/false,
                                           &*indices);
    if (!status.ok()) return core_.Refuse(event.call, status);
  }
  calls_.Wait(session, event.call, *std::move(indices), event.reads, std::move(run),
              event.deadline);
}

void Requests::On(const StepDone& event) {
  if (calls_.FindStep(event.step) == nullptr) return;
  const RunningStep step = calls_.EndStep(event.step, event.status);
  if (const auto* unsharing = std::get_if<std::shared_ptr<const Unsharing>>(&step.purpose)) {
    return rank_contents_.EndUnsharing(**unsharing, event.status);
  }
  if (const auto* offer = std::get_if<std::shared_ptr<Offer>>(&step.purpose)) {
    return (*offer)->duplicate.has_value() ? duplicates_.EndPart(*offer, event.status)
                                           : offers_.EndPart(*offer, event);
  }
  if (!event.status.ok()) return core_.Refuse(step.call, event.status);
  core_.Answer(step.call);
}

void Requests::On(const EndPartCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  const absl::optional<StepId> part = calls_.RunningPart(*session, event.part);
  // Parts that the mover copies have the number zero.
  if (event.part != 0 && part.has_value()) {
    const RunningStep ended = calls_.EndStep(
        *part, event.computed ? absl::OkStatus() : absl::AbortedError("the part was not computed"));
    if (event.computed) core_.counters.non_finite_gradients += event.non_finite_gradients;
    rank_contents_.PartEnded(*session->job, ended.owner, event.part, event.computed);
  }
  core_.Answer(event.call);
}

}  // namespace memtide
