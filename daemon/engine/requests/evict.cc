// Evict: moving chunks down on request.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/requests/requests.h"

namespace memtide {

void Requests::On(const EvictCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  for (const ChunkId id : event.chunks) {
    // The call gives the caller's own leases up, even if the eviction is refused.
    if (const absl::optional<ChunkIndex> index = core_.ids.Find(*session, id))
      calls_.ReleaseLease(*session, *index);
    rank_contents_.ReleaseLeftBehind(*session, id);
  }
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  absl::Status status = indices.status();
  if (status.ok() && (event.tier == Tier::kDevice || !job.share(event.tier).exists())) {
    status = absl::InvalidArgumentError(
        absl::StrCat("chunks cannot be evicted to the ", TierName(event.tier), " tier"));
  }
  if (status.ok()) status = calls_.CheckWaiting(*session, indices->size());
  for (size_t i = 0; status.ok() && i < indices->size(); ++i) {
    if (!core_.chunks[(*indices)[i]].pinned()) continue;
    status = absl::FailedPreconditionError(
        absl::StrCat("chunk ", core_.IdOf((*indices)[i]).value(),
                     " is leased by another session, or by a fetch that waits"));
  }
  if (!status.ok()) return core_.Refuse(event.call, status);
  calls_.Wait(*session, event, *std::move(indices));
}

}  // namespace memtide
