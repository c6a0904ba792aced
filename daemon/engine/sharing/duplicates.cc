// Duplicates: new chunks with the content of others, of which no byte moves before one is written.
//
// The bytes of a duplicated chunk become a content of its own job (Job::duplicated): its slot of
// host memory is the content's from then on, and the chunk and its duplicates are readers, as
// chunks of several sessions are of a common content (sharing/hidden_jobs.cc). So each has its
// leases, moves to the device and is freed by itself, and a session that writes one gets a copy
// first.
//
// A content never leaves host memory. Where other chunks do, its slot is claimed, as slots are for
// activations, so that calls that were accepted keep the room that they need. A reader has no home.
// Its writer takes one, or is refused where there is none, before anything is written.
#include "daemon/engine/sharing/duplicates.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide {

absl::Status Duplicates::CheckDuplicate(const Session& session, const DuplicateCall& event,
                                        const std::vector<ChunkIndex>& indices) const {
  const Job& job = *session.job;
  if (!job.name.empty()) {
    return absl::FailedPreconditionError(
        "the chunks of a job with a name outlive the daemon, and what duplicates have in common "
        "does not; leave out the job's name, or copy the bytes into chunks of their own");
  }
  if (!job.share(Tier::kHost).exists()) {
    return absl::FailedPreconditionError(
        "duplicates have their content in host memory, and the job has no share of it; copy the "
        "bytes into chunks of their own");
  }
  if (core_.draining) {
    return absl::UnavailableError("the memtide daemon is draining and makes no new chunk");
  }
  MEMTIDE_RETURN_IF_ERROR(CheckDeadline(core_.options.limits, event.deadline));
  const uint32_t limit = job.LeaseLimit(Tier::kHost);
  if (core_.chunks.CountRoom(indices, Tier::kHost) > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "requested duplicates of ", indices.size(), " chunks at once; the job's host share of ",
        FormatBytes(job.share(Tier::kHost).bytes()), " can hold ", limit,
        "; raise the pool or name fewer at a time"));
  }
  // The step part that brings the chunks to host memory names them again.
  return calls_.CheckWaiting(session, 2 * indices.size());
}

absl::optional<absl::Status> Duplicates::TryDuplicate(
    const Job& job, const DuplicateCall& event, const std::vector<ChunkIndex>& indices) const {
  const uint64_t made = uint64_t{event.copies} * indices.size();
  if (made == 0 || made > core_.options.limits.chunks_per_call) {
    return absl::InvalidArgumentError(
        absl::StrCat("requested ", event.copies, " duplicates each of ", indices.size(),
                     " chunks; between 1 and ", core_.options.limits.chunks_per_call, " in all"));
  }
  if (made > core_.ChunksLeft()) {
    return absl::ResourceExhaustedError(absl::StrCat("requested ", made,
                                                     " duplicates; the node's limit is ",
                                                     core_.options.limits.chunks, " chunks"));
  }
  uint32_t own = 0;  // Chunks whose content is not common yet.
  for (const ChunkIndex index : indices) {
    const Chunk& chunk = core_.chunks[index];
    if (chunk.copies().torn) return TornChunkError(core_.chunks, index);
    if (chunk.transient) {
      return absl::InvalidArgumentError(absl::StrCat(
          "chunk ", core_.IdOf(index).value(),
          " is of kind ACTIVATION: it ends with its iteration, and has no duplicates"));
    }
    if (!chunk.has_content()) {
      return absl::FailedPreconditionError(
          absl::StrCat("chunk ", core_.IdOf(index).value(),
                       " holds nothing yet; allocate chunks instead of duplicates"));
    }
    own += chunk.common() == nullptr;
  }
  if (own == 0 || job.home == Tier::kHost) return absl::OkStatus();
  return calls_.TryClaim(job, own);
}

void Duplicates::On(const DuplicateCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (core_.AnswerAgain(*session, event.call, event.request_id, kKindOf<DuplicateCall>)) return;
  const absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  absl::Status status = indices.status();
  if (status.ok()) status = CheckDuplicate(*session, event, *indices);
  if (!status.ok()) return core_.Refuse(event.call, status);
  auto offer = std::make_shared<Offer>();
  offer->call = event.call;
  offer->session = session->id;
  offer->deadline = event.deadline;
  offer->give_up_at = core_.now + kOfferPatience;
  offer->duplicate = event;
  const uint32_t count = static_cast<uint32_t>(event.chunks.size());
  offer->chunks_of_job = session->job->waiting_chunks.Take(count);
  offer->chunks_of_user = session->user->waiting_chunks.Take(count);
  Start(offer);
}

bool Duplicates::RetryWaiting() {
  const std::vector<std::shared_ptr<Offer>> due = offers_.TakeDue();
  for (const std::shared_ptr<Offer>& offer : due) {
    offers_.StopWaiting(*offer);
    offer->duplicate.has_value() ? Start(offer) : offers_.GoOn(offer);
  }
  return !due.empty();
}

// A step part without work brings the chunks to host memory.
void Duplicates::Start(const std::shared_ptr<Offer>& offer) {
  Session& session = *core_.sessions.Find(offer->session);
  const DuplicateCall& call = *offer->duplicate;
  if (core_.AnswerAgain(session, call.call, call.request_id, kKindOf<DuplicateCall>)) return;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(session, call.chunks);
  absl::optional<absl::Status> status = indices.status();
  if (status->ok()) {
    if (session.job->home != Tier::kHost) {  // Otherwise contents are in homes that are there.
      memory_.GrowForHomes(*session.job, Tier::kHost, static_cast<uint32_t>(indices->size()));
    }
    status = TryDuplicate(*session.job, call, *indices);
  }
  if (!status.has_value()) {
    memory_.Grow(*session.job, Tier::kHost);
    return WaitForRoom(session, offer);
  }
  if (!status->ok()) return core_.Refuse(call.call, *status);
  const size_t count = indices->size();
  offers_.StartPart(session, offer, ContentWork(), *std::move(indices), count);
}

// Memory is made for claims, or a transfer uses a slot that is to be the content's.
void Duplicates::WaitForRoom(Session& session, const std::shared_ptr<Offer>& offer) {
  if (core_.now >= offer->give_up_at || core_.draining) {
    return core_.Refuse(offer->call,
                        absl::ResourceExhaustedError(
                            "the job's host share has no room now for what duplicates have "
                            "in common; raise the host pool, or copy the bytes"));
  }
  offers_.Wait(session, offer);
  offers_.AwaitTransfers();
}

// The part has ended, so that the chunks are in host memory unless they have been used since.
void Duplicates::EndPart(const std::shared_ptr<Offer>& offer, const absl::Status& ended) {
  Session* const found = core_.sessions.Find(offer->session);
  if (!ended.ok() || found == nullptr || found->job == nullptr) {
    return offers_.EndOffer(*offer,
                            ended.ok() ? absl::UnavailableError("the session ended") : ended);
  }
  Session& session = *found;
  const DuplicateCall& call = *offer->duplicate;
  // A client that repeats a call while it waits has two parts.
  if (core_.AnswerAgain(session, call.call, call.request_id, kKindOf<DuplicateCall>)) return;
  const absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(session, call.chunks);
  absl::optional<absl::Status> status = indices.status();
  if (status->ok()) status = TryDuplicate(*session.job, call, *indices);
  bool moves = !status.has_value();
  if (moves) memory_.Grow(*session.job, Tier::kHost);
  for (size_t i = 0; !moves && status->ok() && i < indices->size(); ++i) {
    const ChunkIndex index = (*indices)[i];
    const Chunk& chunk = core_.chunks[index];
    if (chunk.common() != nullptr) continue;
    if (!calls_.IsUnused(index)) {
      status = absl::AbortedError(
          absl::StrCat("chunk ", call.chunks[i].value(), " is in use; release it and try again"));
    }
    moves = chunk.copies().flight != nullptr || !chunk.valid_at(Tier::kHost);
  }
  if (status.has_value() && !status->ok()) return core_.Refuse(call.call, *status);
  if (moves) return WaitForRoom(session, offer);
  Duplicate(session, call, *indices);
}

// REQUIRES: those of the chunks that have a content of their own are unused, and in host memory.
void Duplicates::Duplicate(Session& session, const DuplicateCall& event,
                           const std::vector<ChunkIndex>& indices) {
  Job& job = *session.job;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (core_.chunks[indices[i]].common() != nullptr) continue;
    offers_.WithdrawOffer(session, event.chunks[i]);
    residency_.HoldInCommon(job, indices[i]);
  }
  AllocateReply made;
  made.chunks.reserve(event.copies * indices.size());
  for (uint32_t copy = 0; copy < event.copies; ++copy) {
    for (const ChunkIndex index : indices) {
      NewChunk duplicate;
      duplicate.owner = session.id;
      duplicate.kind = core_.chunks[index].kind;
      duplicate.version = core_.chunks[index].version;
      duplicate.reads = core_.chunks[index].common();
      made.chunks.push_back(core_.IdOf(residency_.MakeChunk(job, std::move(duplicate))));
    }
  }
  core_.AnswerOnce(session, event, std::move(made));
}

}  // namespace memtide
