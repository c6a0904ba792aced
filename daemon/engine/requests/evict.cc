// Evict: moving chunks down on request.
#include <algorithm>
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
    sharing_.ReleaseLeftBehind(*session, id);
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

  auto evict = std::make_unique<EvictOperation>();
  evict->call = event.call;
  evict->session = session->id;
  evict->job = &job;
  evict->tier = event.tier;
  evict->chunks = std::move(*indices);
  evict->missing = static_cast<uint32_t>(evict->chunks.size());
  evict->deadline = core_.now + core_.options.limits.max_wait;
  evict->of_session = session->waiting_calls.Take();
  evict->of_job = job.waiting_calls.Take();
  evict->of_user = session->user->waiting_calls.Take();
  evict->chunks_of_job = job.waiting_chunks.Take(evict->missing);
  evict->chunks_of_user = session->user->waiting_chunks.Take(evict->missing);
  core_.deadlines.emplace(evict->deadline, evict->call);
  session->evicts.insert(evict->call);
  for (const ChunkIndex index : evict->chunks) {
    Chunk& chunk = core_.chunks[index];
    // The lowest tier serves several evictions of one chunk: a chunk that left for SSD has left the
    // device, too.
    chunk.evict_to = std::max(chunk.evict_to.value_or(event.tier), event.tier);
    chunk.evicts.push_back(evict.get());
    // The prediction has not changed, so a prefetch would undo the eviction at once.
    chunk.evicted = true;
    residency_.StopPrefetch(chunk);
    residency_.CancelEviction(chunk);
    core_.ScheduleChunk(index);
    victims_.Update(index);
  }
  core_.evicts.emplace(event.call, std::move(evict));
}

}  // namespace memtide
