// Publishing: a whole step becomes the job's state, at once.
//
// The new content of a chunk was made in another one. Publishing exchanges what the two hold (the
// slots, copies and the transfer in flight), while names, leases to come and what is foreseen stay
// with the names. It is one event of the engine, so that nobody ever sees half a step.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/state.h"

namespace memtide {

absl::Status EngineState::CheckPublish(const Job& job, const PublishCall& event) const {
  const Limits& limits = options_.limits;
  if (event.step != job.published_step + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("asked to publish step ", event.step, "; the job's last one is ",
                     job.published_step, ", so that ", job.published_step + 1, " comes next"));
  }
  if (event.chunks.size() != event.fresh.size()) {
    return absl::InvalidArgumentError(absl::StrCat(event.chunks.size(), " chunks, but ",
                                                   event.fresh.size(), " with new content"));
  }
  if (event.note.size() > limits.note_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("note: ", event.note.size(), " bytes; at most ", limits.note_bytes));
  }
  return absl::OkStatus();
}

void EngineState::On(const PublishCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  // Its reply was lost.
  if (event.step != 0 && event.step == job.published_step) return Answer(event.call);
  absl::Status status = CheckPublish(job, event);
  std::vector<uint32_t> places;
  if (status.ok() && !event.chunks.empty()) {
    std::vector<ChunkId> all = event.chunks;
    all.insert(all.end(), event.fresh.begin(), event.fresh.end());
    absl::StatusOr<std::vector<uint32_t>> found =
        Resolve(job, all, 2 * options_.limits.chunks_per_call);
    status = found.status();
    if (found.ok()) places = *std::move(found);
  }
  for (size_t i = 0; status.ok() && i < places.size(); ++i) {
    const Chunk& chunk = chunks_[places[i]];
    if (!chunk.pinned() && chunk.evicts.empty()) continue;
    status = absl::AbortedError(absl::StrCat(
        "chunk ", IdOf(places[i]).value(), chunk.pinned() ? " is leased" : " is being evicted",
        ", so that what it holds cannot change now; release it and try again"));
  }
  if (!status.ok()) return Refuse(event.call, status);

  const size_t count = event.chunks.size();
  for (size_t i = 0; i < count; ++i) {
    SwapContents(places[i], places[count + i]);
    Unpair(places[i]);
    Unpair(places[count + i]);
    if (event.keep) continue;
    Pair(places[i], places[count + i]);
    Discard(places[count + i]);
  }
  job.published_step = event.step;
  job.note = event.note;
  Touch(job);
  ++counters_.steps_published;
  Answer(event.call);
}

void EngineState::Pair(uint32_t place, uint32_t twin) {
  chunks_[place].partner = twin;
  chunks_[twin].partner = place;
  chunks_[twin].is_twin = true;
}

void EngineState::Unpair(uint32_t place) {
  const uint32_t partner = std::exchange(chunks_[place].partner, kNoPlace);
  chunks_[place].is_twin = false;
  if (partner == kNoPlace) return;
  chunks_[partner].partner = kNoPlace;
  chunks_[partner].is_twin = false;
  Rank(partner);
}

void EngineState::ForgetWishes(uint32_t place) {
  Chunk& chunk = chunks_[place];
  StopPrefetch(chunk);
  StopPush(chunk);
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) StopWaitingForSlot(place, tier);
  chunk.clean_from.reset();
  chunk.evicted = chunk.wrote_back = false;
  chunk.failures = 0;
}

void EngineState::SwapContents(uint32_t place_a, uint32_t place_b) {
  Chunk& a = chunks_[place_a];
  Chunk& b = chunks_[place_b];
  MEMTIDE_CHECK(!a.pinned() && !b.pinned());
  ForgetWishes(place_a);
  ForgetWishes(place_b);
  const Version fresh(std::max(a.version.value(), b.version.value()) + 1);
  for (Chunk* chunk : {&a, &b}) {
    // A copy of what is there stays one under the new number; one of something older does not.
    if (chunk->flight.has_value()) {
      chunk->flight->version = chunk->flight->version == chunk->version ? fresh : Version(0);
    }
    chunk->version = fresh;
  }
  std::swap(a.valid, b.valid);
  std::swap(a.slots, b.slots);
  std::swap(a.arrived, b.arrived);
  std::swap(a.flight, b.flight);

  std::swap(a.torn, b.torn);
  for (const uint32_t place : {place_a, place_b}) {
    const absl::optional<Flight>& flight = chunks_[place].flight;
    if (flight.has_value()) transfers_[flight->transfer] = place;
    Touch(place);
    Rank(place);
    Ready(place);
  }
}

}  // namespace memtide
