// Chunks: allocating, freeing, describing, and finding them by id.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

constexpr size_t kAllocateKind = 5, kFreeKind = 10;  // Indices in Event.
static_assert(std::is_same_v<std::variant_alternative_t<kAllocateKind, Event>, AllocateCall>);
static_assert(std::is_same_v<std::variant_alternative_t<kFreeKind, Event>, FreeCall>);

}  // namespace

ChunkId EngineState::IdOf(uint32_t place) const {
  return ChunkId(uint64_t{chunks_[place].generation} << 32 | place);
}

absl::optional<uint32_t> EngineState::Find(const Job& job, ChunkId chunk) const {
  const uint32_t place = static_cast<uint32_t>(chunk.value());
  const uint32_t generation = static_cast<uint32_t>(chunk.value() >> 32);
  if (place >= chunks_.size()) return absl::nullopt;
  const Chunk& found = chunks_[place];
  if (!found.live() || found.generation != generation || found.job != &job) return absl::nullopt;
  return place;
}

absl::StatusOr<std::vector<uint32_t>> EngineState::Resolve(const Job& job,
                                                           const std::vector<ChunkId>& chunks) {
  return Resolve(job, chunks, options_.limits.chunks_per_call);
}

absl::StatusOr<std::vector<uint32_t>> EngineState::Resolve(const Job& job,
                                                           const std::vector<ChunkId>& chunks,
                                                           size_t most) {
  if (chunks.empty()) return absl::InvalidArgumentError("the batch names no chunk");
  if (chunks.size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch names ", chunks.size(), " chunks; at most ", most));
  }
  const uint64_t batch = next_batch_++;
  std::vector<uint32_t> places;
  places.reserve(chunks.size());
  for (const ChunkId chunk : chunks) {
    const absl::optional<uint32_t> place = Find(job, chunk);
    if (!place.has_value()) {
      return absl::NotFoundError(absl::StrCat("there is no chunk ", chunk.value()));
    }
    if (chunks_[*place].batch_mark == batch) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", chunk.value(), " is named twice in the batch"));
    }
    chunks_[*place].batch_mark = batch;
    places.push_back(*place);
  }
  return places;
}

void EngineState::On(const AllocateCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (AnswerAgain(*session, event.call, event.request_id, kAllocateKind)) return;
  if (session->job->allocating.size() >= options_.limits.waiting_calls_per_session) {
    return Refuse(event.call, absl::ResourceExhaustedError(
                                  absl::StrCat(options_.limits.waiting_calls_per_session,
                                               " allocations wait already (waiting_calls)")));
  }
  session->job->allocating.push_back(event);
  AllocateWaiting(*session->job);
}

void EngineState::AllocateWaiting(Job& job) {
  JobTier& home = job.tier(job.home);
  while (!job.allocating.empty()) {
    const AllocateCall event = job.allocating.front();
    Session& session = *FindSession(event.session);
    const uint64_t wanted = uint64_t{job.chunks} + event.count;
    if (home.is_elastic() && wanted > home.slots->size() &&
        event.count <= options_.limits.chunks_per_call) {
      Raise(job, job.home, static_cast<uint32_t>(wanted - home.slots->size()));
    }
    const uint32_t slots = home.slots->size();
    if (AnswerAgain(session, event.call, event.request_id, kAllocateKind)) {
      job.allocating.pop_front();
      continue;
    }
    absl::Status status;
    if (event.count == 0 || event.count > options_.limits.chunks_per_call) {
      status = absl::InvalidArgumentError(absl::StrCat(
          "asked for ", event.count, " chunks; between 1 and ", options_.limits.chunks_per_call));
    } else if (draining_) {
      status = absl::UnavailableError("the memtide daemon is draining and makes no new chunk");
    } else if (event.count > slots - std::min(slots, job.chunks)) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "asked for ", event.count, " chunks of ", FormatBytes(job.chunk_size), "; the job's ",
          TierName(job.home), " share holds ", slots, ", of which ", job.chunks, " are used",
          job.last_error.ok() ? "" : "; ", job.last_error.message()));
    } else if (event.count > options_.limits.chunks - live_chunks_) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "asked for ", event.count, " chunks; the node's limit is ", options_.limits.chunks));
    } else if (event.count > home.slots->free_slots()) {
      // Until more memory is made, or what was freed has stopped moving.
      return Grow(job, job.home);
    }
    job.allocating.pop_front();
    if (!status.ok()) {
      Refuse(event.call, status);
    } else {
      Allocate(session, job, event);
    }
  }
}

void EngineState::Allocate(Session& session, Job& job, const AllocateCall& event) {
  AllocateReply made;
  made.chunks.reserve(event.count);
  for (uint32_t i = 0; i < event.count; ++i) {
    if (free_places_.empty()) {
      free_places_.push_back(static_cast<uint32_t>(chunks_.size()));
      chunks_.emplace_back();
    }
    const uint32_t place = free_places_.back();
    free_places_.pop_back();
    if (job.free_members.empty()) {
      job.free_members.push(static_cast<uint32_t>(job.members.size()));
      job.members.push_back(kNoPlace);
    }
    Chunk& chunk = chunks_[place];
    const uint32_t generation = chunk.generation + 1;
    const bool touched = chunk.touched;
    chunk = Chunk();
    chunk.touched = touched;
    chunk.job = &job;
    chunk.generation = generation;
    chunk.kind = event.kind;
    chunk.undefined = event.undefined;
    chunk.member = job.free_members.top();
    job.free_members.pop();
    job.trace.Use(chunk.member, TracedOperation::kAllocate);
    job.members[chunk.member] = place;
    chunk.slot(job.home) = job.tier(job.home).slots->Take();
    MEMTIDE_CHECK(chunk.slot(job.home));
    Touch(place);
    made.chunks.push_back(IdOf(place));
  }
  job.chunks += event.count;
  live_chunks_ += event.count;
  job.kinds[static_cast<int>(event.kind)] += event.count;
  Reply reply;
  reply.call = event.call;
  reply.value = std::move(made);
  Remember(session, event.request_id, kAllocateKind, reply);
  Emit(std::move(reply));
}

void EngineState::On(const FreeCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (AnswerAgain(*session, event.call, event.request_id, kFreeKind)) return;
  absl::StatusOr<std::vector<uint32_t>> places = Resolve(*session->job, event.chunks);
  if (!places.ok()) return Refuse(event.call, places.status());
  for (const uint32_t place : *places) {
    for (const Hold& hold : chunks_[place].holds) {
      if (hold.session == session->id) continue;
      return Refuse(event.call, absl::FailedPreconditionError(absl::StrCat(
                                    "chunk ", IdOf(place).value(),
                                    IsStep(hold.session) ? " is in use by a step that has not ended"
                                                         : " is leased by another session")));
    }
  }
  for (const uint32_t place : *places) FreeChunk(place);
  Reply reply;
  reply.call = event.call;
  Remember(*session, event.request_id, kFreeKind, reply);
  Emit(std::move(reply));
}

void EngineState::FreeChunk(uint32_t place) {
  const absl::Status freed =
      absl::NotFoundError(absl::StrCat("chunk ", IdOf(place).value(), " was freed"));
  // Also those that wait for admission, or for other chunks only.
  std::vector<FetchOperation*> fetches;
  for (const auto& [call, fetch] : fetches_) {
    if (std::count(fetch->chunks.begin(), fetch->chunks.end(), place) > 0) {
      fetches.push_back(fetch.get());
    }
  }
  for (FetchOperation* fetch : fetches) Fail(*fetch, freed);
  FinishEvicts(place, freed);
  Chunk& chunk = chunks_[place];
  Job& job = *chunk.job;
  Touch(place);
  while (!chunk.holds.empty()) {
    if (Session* session = FindSession(chunk.holds.back().session)) --session->leases;
    Unpin(place, chunk.holds.size() - 1);
  }
  StopPrefetch(chunk);
  StopPush(chunk);
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) StopWaitingForSlot(place, tier);
  --job.chunks;
  --live_chunks_;
  --job.kinds[static_cast<int>(chunk.kind)];
  Unpair(place);
  chunk.dying = true;
  ++job.dying_chunks;
  job.trace.Use(chunk.member, TracedOperation::kFree);
  job.foresight.Free(chunk.member, ClockOf(job));
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) UpdateVictim(place, tier);
  ForgetChunk(place);
}

void EngineState::ForgetChunk(uint32_t place) {
  Chunk& chunk = chunks_[place];
  if (chunk.flight.has_value() || chunk.steps > 0) return;
  Job& job = *chunk.job;
  for (const Tier tier : kAllTiers) {
    if (!chunk.slot(tier)) continue;
    chunk.slot(tier).Free();
    if (tier != Tier::kSsd) LookAtRoom(job, tier);
  }
  job.members[chunk.member] = kNoPlace;
  job.free_members.push(chunk.member);
  job.cooling.erase(std::remove(job.cooling.begin(), job.cooling.end(), place), job.cooling.end());
  --job.dying_chunks;
  const uint32_t generation = chunk.generation;
  const bool queued = chunk.queued, touched = chunk.touched;
  chunk = Chunk();
  chunk.generation = generation;
  chunk.queued = queued;
  chunk.touched = touched;
  free_places_.push_back(place);
  if (job.state == Job::State::kEnding) {
    MaybeDropMemory(job);
  } else if (!job.allocating.empty()) {
    AllocateWaiting(job);
  }
}

void EngineState::On(const DescribeCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  absl::StatusOr<std::vector<uint32_t>> places = Resolve(*session->job, event.chunks);
  if (!places.ok()) return Refuse(event.call, places.status());
  DescribeReply described;
  described.chunks.reserve(places->size());
  for (const uint32_t place : *places) described.chunks.push_back(InfoOf(place));
  Reply reply;
  reply.call = event.call;
  reply.value = std::move(described);
  Emit(std::move(reply));
}

ChunkInfo EngineState::InfoOf(uint32_t place) const {
  const Chunk& chunk = chunks_[place];
  ChunkInfo info;
  info.chunk = IdOf(place);
  info.job = chunk.job->id;
  info.kind = chunk.kind;
  info.version = chunk.version;
  info.on_device = chunk.valid_at(Tier::kDevice);
  info.on_host = chunk.valid_at(Tier::kHost);
  info.on_ssd = chunk.valid_at(Tier::kSsd);
  info.moving = chunk.flight.has_value();
  for (const Hold& hold : chunk.holds) info.leases += hold.granted;
  info.torn = chunk.torn;
  return info;
}

}  // namespace memtide
