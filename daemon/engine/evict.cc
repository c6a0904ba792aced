// Evict: moving chunks down on request.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/state.h"

namespace memtide {

void EngineState::On(const EvictCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  for (const ChunkId id : event.chunks) {
    if (const absl::optional<uint32_t> place = Find(job, id)) ReleaseLease(*session, *place);
  }
  absl::StatusOr<std::vector<uint32_t>> places = Resolve(job, event.chunks);
  absl::Status status = places.status();
  if (status.ok() && (event.tier == Tier::kDevice || !job.tier(event.tier).exists())) {
    status = absl::InvalidArgumentError(
        absl::StrCat("chunks cannot be evicted to the ", TierName(event.tier), " tier"));
  }
  if (status.ok() && session->waiting_calls >= options_.limits.waiting_calls_per_session) {
    status = absl::ResourceExhaustedError(absl::StrCat("the session has its limit of ",
                                                       options_.limits.waiting_calls_per_session,
                                                       " waiting calls"));
  }
  for (size_t i = 0; status.ok() && i < places->size(); ++i) {
    if (!chunks_[(*places)[i]].pinned()) continue;
    status = absl::FailedPreconditionError(
        absl::StrCat("chunk ", IdOf((*places)[i]).value(),
                     " is leased by another session, or by a fetch that waits"));
  }
  if (!status.ok()) return Refuse(event.call, status);

  auto evict = std::make_unique<EvictOperation>();
  evict->call = event.call;
  evict->session = session->id;
  evict->job = &job;
  evict->tier = event.tier;
  evict->chunks = std::move(*places);
  evict->missing = static_cast<uint32_t>(evict->chunks.size());
  evict->deadline = now_ + options_.limits.max_wait;
  ++session->waiting_calls;
  for (const uint32_t place : evict->chunks) {
    Chunk& chunk = chunks_[place];
    chunk.evict_to = std::max(chunk.evict_to.value_or(event.tier), event.tier);
    chunk.evicts.push_back(evict.get());
    chunk.evicted = true;
    StopPrefetch(chunk);
    StopPush(chunk);
    Ready(place);
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) UpdateVictim(place, tier);
  }
  evicts_.emplace(event.call, std::move(evict));
}

void EngineState::FinishEvicts(uint32_t place, const absl::Status& status) {
  chunks_[place].evict_to.reset();
  std::vector<EvictOperation*> evicts;
  evicts.swap(chunks_[place].evicts);
  for (EvictOperation* evict : evicts) {
    --evict->missing;
    if (!status.ok() || evict->missing == 0) EndEvict(*evict, status);
  }
}

void EngineState::EndEvict(EvictOperation& evict, const absl::Status& status) {
  for (const uint32_t place : evict.chunks) {
    Chunk& chunk = chunks_[place];
    const auto found = std::find(chunk.evicts.begin(), chunk.evicts.end(), &evict);
    if (found == chunk.evicts.end()) continue;
    chunk.evicts.erase(found);
    if (chunk.evicts.empty()) chunk.evict_to.reset();
    Ready(place);
  }
  if (status.ok()) {
    Answer(evict.call);
  } else {
    Refuse(evict.call, status);
  }
  if (Session* session = FindSession(evict.session)) --session->waiting_calls;
  evicts_.erase(evict.call);
}

}  // namespace memtide
