// Evictions on request that wait for their chunks to leave (requests/evict.cc).
#include <algorithm>
#include <forward_list>

#include "absl/strings/str_cat.h"
#include "daemon/engine/calls/calls.h"

namespace memtide {

void Calls::Wait(Session& session, const EvictCall& event, std::vector<ChunkIndex> chunks) {
  auto evict = std::make_unique<EvictOperation>();
  evict->call = event.call;
  evict->tier = event.tier;
  evict->missing = static_cast<uint32_t>(chunks.size());
  evict->chunks = std::move(chunks);
  Register(session, *evict, core_.options.limits.max_wait);
  session.evicts.insert(evict->call);
  for (const ChunkIndex index : evict->chunks) {
    Chunk& chunk = core_.chunks[index];
    // The lowest tier serves several evictions of one chunk: a chunk that left for SSD has left the
    // device, too.
    Uses& uses = uses_[index];
    uses.evict_to = std::max(uses.evict_to.value_or(event.tier), event.tier);
    uses.evicts.push_front(evict.get());
    // The prediction has not changed, so a prefetch would undo the eviction at once.
    uses.evicted = chunk.version;
    residency_.StopPrefetch(chunk);
    residency_.CancelEviction(chunk);
    core_.ScheduleChunk(index);
    victims_.Update(index);
  }
  evicts_.emplace(event.call, std::move(evict));
}

void Calls::FinishEvicts(ChunkIndex index) {
  if (core_.chunks[index].pinned()) {
    return FinishEvicts(index,
                        absl::AbortedError(absl::StrCat("chunk ", core_.IdOf(index).value(),
                                                        " was leased before it was evicted")));
  }
  FinishEvicts(index, absl::OkStatus());
}

void Calls::On(const EvictionFailed& signal) {
  const absl::optional<ChunkIndex> index = core_.chunks.Find(signal.chunk);
  if (!index.has_value()) return;
  FinishEvicts(*index, signal.why);
  core_.ScheduleChunk(*index);
}

// The chunk has reached its tier, or never will: one chunk that fails ends the whole operation.
void Calls::FinishEvicts(ChunkIndex index, const absl::Status& status) {
  uses_[index].evict_to.reset();
  std::forward_list<EvictOperation*> evicts;
  evicts.swap(uses_[index].evicts);
  evicts.reverse();
  for (EvictOperation* evict : evicts) {
    --evict->missing;
    if (!status.ok() || evict->missing == 0) EndEvict(*evict, status);
  }
}

void Calls::EndEvicts(const Session& session, const absl::Status& why) {
  for (const CallId call : std::set<CallId>(session.evicts)) EndEvict(*evicts_.at(call), why);
}

void Calls::EndEvict(EvictOperation& evict, const absl::Status& status) {
  for (const ChunkIndex index : evict.chunks) {
    Uses& uses = uses_[index];
    const auto found = std::find(uses.evicts.begin(), uses.evicts.end(), &evict);
    if (found == uses.evicts.end()) continue;
    uses.evicts.remove(&evict);
    // The chunks of the operation that have not left stay where they are.
    if (uses.evicts.empty()) uses.evict_to.reset();
    core_.ScheduleChunk(index);
  }
  if (status.ok()) {
    core_.Answer(evict.call);
  } else {
    core_.Refuse(evict.call, status);
  }
  deadlines_.erase({evict.deadline, evict.call});
  core_.sessions.Find(evict.owner)->evicts.erase(evict.call);
  evicts_.erase(evict.call);
}

}  // namespace memtide
