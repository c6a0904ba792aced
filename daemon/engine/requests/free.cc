// Free and describe: ids and chunks that a client gives up, and what it asks of others.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/info.h"
#include "daemon/engine/requests/requests.h"

namespace memtide {

// All checks precede the first change: a refused call frees nothing.
void Requests::On(const FreeCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (core_.AnswerAgain(*session, event.call, event.request_id, kKindOf<FreeCall>)) return;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  if (!indices.ok()) return core_.Refuse(event.call, indices.status());
  for (const ChunkIndex index : *indices) {
    // The others go on with what they share.
    if (core_.ids.IsShared(index)) continue;
    for (const Pin& pin : core_.chunks[index].uses().pins) {
      if (pin.session == session->id) continue;
      return core_.Refuse(event.call,
                          absl::FailedPreconditionError(absl::StrCat(
                              "chunk ", core_.IdOf(index).value(),
                              IsStep(pin.session) ? " is in use by a step that has not ended"
                                                  : " is leased by another session")));
    }
  }
  FailWaiting(*session, *indices);
  for (size_t i = 0; i < indices->size(); ++i) {
    const ChunkIndex index = (*indices)[i];
    rank_contents_.ReleaseLeftBehind(*session, event.chunks[i]);
    offers_.WithdrawOffer(*session, event.chunks[i]);
    if (core_.ids.IsShared(index)) {
      rank_contents_.FreeId(*session, event.chunks[i], index);
      continue;
    }
    calls_.FreeChunk(index);
  }
  core_.AnswerOnce(*session, event);
  rank_contents_.IdsChanged(*session->job);
}

// Calls of other sessions are for FailNaming().
void Requests::FailWaiting(const Session& session, const std::vector<ChunkIndex>& indices) {
  if (session.waiters.empty()) return;
  const uint64_t batch = core_.ids.Mark(indices);
  for (Waiter* waiter : std::vector<Waiter*>(session.waiters)) {
    const auto named =
        std::find_if(waiter->chunks.begin(), waiter->chunks.end(),
                     [&](ChunkIndex index) { return core_.chunks[index].batch_mark == batch; });
    if (named == waiter->chunks.end()) continue;
    const ChunkId id = core_.ids.IdFor(*named, session.id);
    rank_contents_.Fail(*waiter,
                        absl::NotFoundError(absl::StrCat("chunk ", id.value(), " was freed")));
  }
}

void Requests::On(const DescribeCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  if (!indices.ok()) return core_.Refuse(event.call, indices.status());
  DescribeReply described;
  described.chunks.reserve(indices->size());
  for (size_t i = 0; i < indices->size(); ++i) {
    described.chunks.push_back(InfoOf(core_, (*indices)[i]));
    described.chunks.back().chunk = event.chunks[i];
  }
  core_.AnswerWith(event.call, std::move(described));
}

}  // namespace memtide
