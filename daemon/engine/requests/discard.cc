// Discard: contents that a client has no use for, while their chunks stay.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/requests/requests.h"

namespace memtide {

absl::Status Requests::CheckDiscard(const Session& session, ChunkIndex index) const {
  for (const Pin& pin : core_.chunks[index].uses().pins) {
    const bool waits = pin.pending > 0;
    if (pin.session == session.id && !waits) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("chunk ", core_.IdOf(index).value(),
                     IsStep(pin.session) ? " is in use by a step that has not ended"
                     : waits             ? " is wanted by a fetch that waits"
                                         : " is leased by another session"));
  }
  return absl::OkStatus();
}

// All checks precede the first change: a refused call discards nothing.
void Requests::On(const DiscardCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (core_.AnswerAgain(*session, event.call, event.request_id, kKindOf<DiscardCall>)) return;
  Job& job = *session->job;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  absl::Status status = indices.status();
  std::vector<bool> shared(event.chunks.size());
  for (size_t i = 0; status.ok() && i < indices->size(); ++i) {
    const ChunkIndex index = (*indices)[i];
    shared[i] = core_.ids.MustCopyToWrite(index);
    if (!shared[i]) status = CheckDiscard(*session, index);
  }
  if (!status.ok()) return core_.Refuse(event.call, status);
  // The others keep what they share.
  const std::vector<ChunkIndex> before = *indices;
  status = rank_contents_.GiveOwnEntries(*session, event.chunks, shared, /*may_be_leased=*/true,
                                         &*indices);
  if (!status.ok()) return core_.Refuse(event.call, status);
  for (size_t i = 0; i < before.size(); ++i) {
    if (shared[i]) calls_.ReleaseLease(*session, before[i]);
  }
  for (const ChunkId id : event.chunks) rank_contents_.ReleaseLeftBehind(*session, id);
  for (const ChunkIndex index : *indices) {
    calls_.ReleaseLease(*session, index);
    residency_.DiscardUndefined(index);
    // A trace has no operation for it. To a replay a chunk whose content ended is a new one.
    const Member member = core_.chunks[index].member;
    job.trace.Use(member, TracedOperation::kFree);
    job.trace.Use(member, TracedOperation::kAllocate);
  }
  core_.AnswerOnce(*session, event);
}

}  // namespace memtide
