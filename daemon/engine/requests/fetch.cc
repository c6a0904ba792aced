// Fetch and release: leases and their grants. Admission decides which fetch is next
// (calls/admission.cc).
#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/requests/requests.h"

namespace memtide {

// Refuses at once what could never be granted, rather than at its deadline.
absl::Status Requests::CheckFetch(const Session& session, const FetchCall& event,
                                  const std::vector<ChunkIndex>& indices) const {
  const Job& job = *session.job;
  if (event.tier == Tier::kSsd || !job.share(event.tier).exists()) {
    return absl::InvalidArgumentError(absl::StrCat("chunks cannot be leased at the ",
                                                   TierName(event.tier), " tier of this node"));
  }
  const uint32_t limit = job.LeaseLimit(event.tier);
  if (core_.chunks.CountRoom(indices, event.tier) > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("requested leases of ", indices.size(), " chunks at once; the job's ",
                     TierName(event.tier), " share of ", FormatBytes(job.share(event.tier).bytes()),
                     " can lease ", limit, "; raise the pool or lease fewer at a time"));
  }
  if (event.tier == Tier::kDevice) MEMTIDE_RETURN_IF_ERROR(Memory::CheckRegions(job));
  MEMTIDE_RETURN_IF_ERROR(CheckDeadline(core_.options.limits, event.deadline));
  for (const ChunkIndex index : indices) {
    const Chunk& chunk = core_.chunks[index];
    // An operation in place leases for writing, and reads first.
    const bool reads =
        event.access == Access::kRead || (chunk.copies().memory_failed && session.has_lost_content);
    if (reads && chunk.copies().torn) return TornChunkError(core_.chunks, index);
    for (const Pin& pin : chunk.uses().pins) {
      // A chunk is leased at one tier at a time. The fetch would wait for a lease of its own
      // session.
      if (pin.session == session.id && chunk.uses().pin_tier != event.tier) {
        return absl::FailedPreconditionError(
            absl::StrCat("chunk ", core_.IdOf(index).value(), " is leased at the ",
                         TierName(chunk.uses().pin_tier), " tier; release it first"));
      }
    }
  }
  return absl::OkStatus();
}

void Requests::On(const FetchCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  ++core_.counters.fetches;
  // The releases count even if the fetch is refused: the client has given these leases up already.
  // They come first, since the fetch may need their room.
  for (const ChunkId id : event.releases) {
    if (const absl::optional<ChunkIndex> index = core_.ids.Find(*session, id))
      calls_.ReleaseLease(*session, *index);
    rank_contents_.ReleaseLeftBehind(*session, id);
  }
  const absl::Status status = CheckMoments(core_.options.limits, event.moments);
  if (!status.ok()) return core_.Refuse(event.call, status);
  // The predictor learns before victims are chosen for this fetch, so that they follow the newest
  // uses.
  prefetcher_.Learn(*session, event.moments);
  Begin(*session, event);
}

// The call has counted, and its releases and moments have had their effect.
void Requests::On(const FetchAgain& signal) {
  Session* session = core_.CallingSession(signal.call.call, signal.call.session);
  if (session != nullptr) Begin(*session, signal.call);
}

void Requests::Begin(Session& session, const FetchCall& event) {
  Job& job = *session.job;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(session, event.chunks);
  absl::Status status = indices.ok() ? CheckFetch(session, event, *indices) : indices.status();
  if (status.ok()) status = calls_.CheckWaiting(session, indices->size());
  if (!status.ok()) return core_.Refuse(event.call, status);
  if (event.tier == Tier::kDevice) job.uses_device = true;
  const bool writes = event.access == Access::kWrite, at_device = event.tier == Tier::kDevice;
  const bool some_are_common =
      writes && std::any_of(indices->begin(), indices->end(),
                            [this](ChunkIndex index) { return core_.ids.MustCopyToWrite(index); });
  if (some_are_common && (!at_device || job.shares_contents())) {
    return rank_contents_.Unshare(session, event, *indices);
  }
  absl::StatusOr<std::vector<Home>> homes = std::vector<Home>();
  if (some_are_common) homes = rank_contents_.TakeHomes(job, *indices);
  if (!homes.ok()) {
    core_.HomesFreed(job);
    return core_.Refuse(event.call, homes.status());
  }
  calls_.Wait(session, event, *std::move(indices), *std::move(homes));
}

// The call releases all of its leases or none of them.
void Requests::On(const ReleaseCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (core_.AnswerAgain(*session, event.call, event.request_id, kKindOf<ReleaseCall>)) return;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  if (!indices.ok()) return core_.Refuse(event.call, indices.status());
  for (size_t i = 0; i < indices->size(); ++i) {
    const ChunkIndex index = (*indices)[i];
    const Pin* pin = core_.chunks[index].uses().FindPin(session->id);
    if (pin != nullptr && pin->granted()) continue;
    if (session->left_behind.Has(event.chunks[i])) continue;
    return core_.Refuse(
        event.call, absl::FailedPreconditionError(absl::StrCat("chunk ", core_.IdOf(index).value(),
                                                               " is not leased by the session")));
  }
  for (const ChunkIndex index : *indices) calls_.ReleaseLease(*session, index);
  for (const ChunkId id : event.chunks) rank_contents_.ReleaseLeftBehind(*session, id);
  core_.AnswerOnce(*session, event);
}

}  // namespace memtide
