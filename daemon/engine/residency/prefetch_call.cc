// PrefetchCall: a client names chunks that it will use. The engine predicts in prefetch.cc.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

void Residency::On(const PrefetchCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  if (!indices.ok()) return core_.Refuse(event.call, indices.status());
  if (event.tier == Tier::kSsd || !job.share(event.tier).exists()) {
    return core_.Refuse(
        event.call, absl::InvalidArgumentError(absl::StrCat("chunks cannot be prefetched to the ",
                                                            TierName(event.tier), " tier")));
  }
  if (event.tier == Tier::kDevice) {
    const absl::Status regions = memory_.CheckRegions(job);
    if (!regions.ok()) return core_.Refuse(event.call, regions);
    job.uses_device = true;
  }
  TierQueues& queues = job.tier(event.tier);
  const Share& share = job.share(event.tier);
  // The lease budget leaves a quarter of the slots to prefetches.
  const uint32_t most = std::max(uint32_t{1}, share.slots().size() / 4);
  for (const ChunkIndex index : *indices) {
    Chunk& chunk = core_.chunks[index];
    const bool busy = chunk.pinned() || chunk.prefetch_to.has_value() ||
                      chunk.evict_to.has_value() || chunk.valid_at(event.tier);
    const bool room =
        share.slots().spare_slots() > 0 || queues.victims.size() > 0 || share.can_grow();
    // A prefetch is a hint: it is skipped rather than refused, and never competes with demand.
    if (busy || !room || !queues.slot_queue.empty() || queues.prefetches.value() >= most) continue;
    queues.prefetches.Set(chunk.prefetch_to, event.tier);
    chunk.evicted = false;
    CancelEviction(chunk);
    core_.ScheduleChunk(index);
  }
  core_.Answer(event.call);
}

}  // namespace memtide
