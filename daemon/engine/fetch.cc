// Fetch and release: leases and their grants. Admission decides which fetch is next (admission.cc).
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/state.h"

namespace memtide {

namespace {

constexpr size_t kReleaseKind = 7;  // Index in Event.
static_assert(std::is_same_v<std::variant_alternative_t<kReleaseKind, Event>, ReleaseCall>);

}  // namespace

absl::Status EngineState::CheckDeadline(Duration deadline) const {
  const Duration most = options_.limits.max_wait;
  if (deadline >= Duration(0) && deadline <= most) return absl::OkStatus();
  const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
  return absl::InvalidArgumentError(
      absl::StrCat("deadline: ", seconds(deadline), " s; between 0 and ", seconds(most), " s"));
}

absl::Status EngineState::Lost(ChunkIndex index) const {
  return absl::DataLossError(
      absl::StrCat("the content of chunk ", IdOf(index).value(),
                   " is lost: its writer died, or the daemon did; write it anew"));
}

absl::Status EngineState::CheckFetch(const Session& session, const FetchCall& event,
                                     const std::vector<ChunkIndex>& indices) const {
  const Job& job = *session.job;
  if (event.tier == Tier::kSsd || !job.tier(event.tier).exists()) {
    return absl::InvalidArgumentError(absl::StrCat("chunks cannot be leased at the ",
                                                   TierName(event.tier), " tier of this node"));
  }
  const uint32_t limit = job.LeaseLimit(event.tier);
  if (indices.size() > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("requested leases of ", indices.size(), " chunks at once; the job's ",
                     TierName(event.tier), " share of ", FormatBytes(job.tier(event.tier).lent),
                     " can lease ", limit, "; raise the pool or lease fewer at a time"));
  }
  MEMTIDE_RETURN_IF_ERROR(CheckDeadline(event.deadline));
  for (const ChunkIndex index : indices) {
    const Chunk& chunk = chunks_[index];
    if (event.access == Access::kRead && chunk.torn) return Lost(index);
    for (const Pin& pin : chunk.pins) {
      if (pin.session == session.id && chunk.pin_tier != event.tier) {
        return absl::FailedPreconditionError(
            absl::StrCat("chunk ", IdOf(index).value(), " is leased at the ",
                         TierName(chunk.pin_tier), " tier; release it first"));
      }
    }
  }
  return absl::OkStatus();
}

void EngineState::On(const FetchCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  ++counters_.fetches;
  for (const ChunkId id : event.releases) {
    if (const absl::optional<ChunkIndex> index = Find(job, id)) ReleaseLease(*session, *index);
  }
  absl::Status status = CheckMoments(event.moments);
  if (status.ok()) Learn(job, event.moments);
  absl::StatusOr<std::vector<ChunkIndex>> indices = Resolve(job, event.chunks);
  if (status.ok()) {
    status = indices.ok() ? CheckFetch(*session, event, *indices) : indices.status();
  }
  if (status.ok()) status = CheckWaiting(*session, indices->size());
  if (!status.ok()) return Refuse(event.call, status);

  auto made = std::make_unique<FetchOperation>();
  FetchOperation& fetch = *made;
  fetch.call = event.call;
  fetch.session = fetch.owner = session->id;
  fetch.job = &job;
  fetch.tier = event.tier;
  fetch.chunks = std::move(*indices);
  fetch.first_written = event.access == Access::kWrite ? 0 : fetch.chunks.size();
  fetch.started = now_;
  fetch.deadline =
      now_ + (event.deadline == Duration(0) ? options_.limits.max_wait : event.deadline);
  Enter(*session, std::move(made));

  const Admission admission = TryAdmit(fetch, /*may_take_room=*/true);
  if (fetch.admitted && fetch.missing == 0) {
    ++counters_.fetch_hits;
    return Grant(fetch);
  }
  if (!event.wait) {
    return Fail(fetch, admission == Admission::kConflict
                           ? absl::AbortedError("another session holds a lease that excludes this")
                           : absl::UnavailableError("not every chunk is there now"));
  }
  if (!fetch.admitted) WaitForAdmission(fetch, admission);
}

void EngineState::UnpinChunk(ChunkIndex index, size_t pin_index) {
  Chunk& chunk = chunks_[index];
  chunk.pins.erase(chunk.pins.begin() + pin_index);
  MarkDirty(index);
  if (!chunk.pinned()) {
    chunk.revoke_sent = false;
    --chunk.job->tier(chunk.pin_tier).pinned_chunks;
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) UpdateVictim(index, tier);
    ScheduleChunk(index);
  }
  // A conflict may have ended even while other pins remain.
  PinsChanged(index);
  ScheduleRoomCheck(*chunk.job, Tier::kDevice);
  ScheduleRoomCheck(*chunk.job, Tier::kHost);
}

void EngineState::Enter(Session& session, std::unique_ptr<FetchOperation> fetch) {
  ++session.waiting_calls;
  session.fetches.push_back(fetch.get());
  ++fetch->job->waiting_calls;
  fetch->job->waiting_chunks += fetch->chunks.size();
  fetches_.emplace(fetch->call, std::move(fetch));
}

void EngineState::Leave(Session& session, FetchOperation& fetch) {
  session.fetches.erase(std::find(session.fetches.begin(), session.fetches.end(), &fetch));
  --fetch.job->waiting_calls;
  fetch.job->waiting_chunks -= fetch.chunks.size();
  fetches_.erase(fetch.call);
}

void EngineState::Forget(FetchOperation& fetch) {
  Session& session = *sessions_.Find(fetch.owner);
  --session.waiting_calls;
  Leave(session, fetch);
}

void EngineState::Grant(FetchOperation& fetch) {
  if (fetch.work != nullptr) return StartStepOf(fetch);
  Session& session = *sessions_.Find(fetch.session);
  FetchReply granted;
  granted.leases.reserve(fetch.chunks.size());
  for (size_t i = 0; i < fetch.chunks.size(); ++i) {
    const ChunkIndex index = fetch.chunks[i];
    const Access access = fetch.AccessOf(i);
    Chunk& chunk = chunks_[index];
    chunk.leased = true;
    chunk.only_stepped = false;
    Pin& pin = *chunk.FindPin(fetch.session);
    --pin.pending;
    const bool writes = pin.granted && pin.access == Access::kWrite;
    if (access == Access::kWrite && !writes) MakeNewVersion(index);
    session.leases += !pin.granted;
    pin.granted = true;
    pin.access = writes ? Access::kWrite : access;
    // A fetch that failed had raised pending_access to write.
    if (pin.pending == 0 && pin.pending_access != pin.access) PinsChanged(index);
    Lease lease;
    lease.chunk = IdOf(index);
    lease.tier = fetch.tier;
    lease.place = PlaceOf(chunk, fetch.tier);
    lease.version = chunk.version;
    lease.access = pin.access;
    granted.leases.push_back(lease);
  }
  AddEvictionHints(session, &granted);
  if (now_ > fetch.started) {
    TracedStall stall{fetch.started, now_ - fetch.started, absl::nullopt,
                      static_cast<uint32_t>(fetch.chunks.size())};
    if (fetch.waited_for_copy) stall.waited_for = Tier::kDevice;
    if (fetch.waited_for_ssd) stall.waited_for = Tier::kSsd;
    fetch.job->trace.Stalled(stall);
    fetch.job->stalled += stall.duration;
    Duration& stalled = fetch.waited_for_ssd    ? counters_.stalled_on_ssd
                        : fetch.waited_for_copy ? counters_.stalled_on_copy
                                                : counters_.stalled_on_room;
    stalled += now_ - fetch.started;
  }
  Reply reply;
  reply.call = fetch.call;
  reply.value = std::move(granted);
  Emit(std::move(reply));
  Forget(fetch);
}

void EngineState::MakeNewVersion(ChunkIndex index) {
  Chunk& chunk = chunks_[index];
  MarkDirty(index);
  chunk.version = Version(chunk.version.value() + 1);
  chunk.torn = false;
  chunk.valid = static_cast<uint8_t>(1u << static_cast<int>(chunk.pin_tier));
  // The other copies are stale. Their slots are freed, except one that a transfer still uses.
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const bool in_use =
        chunk.flight.has_value() && (chunk.flight->to == tier || chunk.flight->from == tier);
    if (tier == chunk.pin_tier || tier == chunk.job->home || in_use) continue;
    if (chunk.slot(tier)) DropCopy(index, tier);
  }
}

void EngineState::Fail(FetchOperation& fetch, const absl::Status& status) {
  if (fetch.admitted) {
    fetch.job->steps -= fetch.work != nullptr;
    for (size_t nth = 0; nth < fetch.chunks.size(); ++nth) {
      const ChunkIndex index = fetch.chunks[nth];
      Chunk& chunk = chunks_[index];
      chunk.fetches.erase(std::remove(chunk.fetches.begin(), chunk.fetches.end(), &fetch),
                          chunk.fetches.end());
      for (size_t i = 0; i < chunk.pins.size(); ++i) {
        Pin& pin = chunk.pins[i];
        if (pin.session != fetch.session) continue;
        --pin.pending;
        if (pin.pending == 0 && !pin.granted) {
          UnpinChunk(index, i);
        } else {
          PinsChanged(index);
        }
        break;
      }
      if (fetch.work != nullptr && nth >= fetch.first_written) {
        chunk.overwrite = false;
        if (chunk.blank) Discard(index);
      }
      ScheduleChunk(index);
    }
  } else {
    StopWaiting(fetch);
  }
  ScheduleRoomCheck(*fetch.job, fetch.tier);
  Refuse(fetch.call, status);
  Forget(fetch);
}

void EngineState::ReleaseLease(Session& session, ChunkIndex index) {
  Chunk& chunk = chunks_[index];
  for (size_t i = 0; i < chunk.pins.size(); ++i) {
    Pin& pin = chunk.pins[i];
    if (pin.session != session.id) continue;
    if (!pin.granted) return;
    pin.granted = false;
    --session.leases;
    if (pin.pending == 0) {
      UnpinChunk(index, i);
    } else {
      MarkDirty(index);  // The chunk's record no longer says that a lease writes it.
      PinsChanged(index);
    }
    return;
  }
}

void EngineState::On(const ReleaseCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (AnswerAgain(*session, event.call, event.request_id, kReleaseKind)) return;
  absl::StatusOr<std::vector<ChunkIndex>> indices = Resolve(*session->job, event.chunks);
  if (!indices.ok()) return Refuse(event.call, indices.status());
  for (const ChunkIndex index : *indices) {
    const Pin* pin = chunks_[index].FindPin(session->id);
    if (pin != nullptr && pin->granted) continue;
    return Refuse(event.call, absl::FailedPreconditionError(absl::StrCat(
                                  "chunk ", IdOf(index).value(), " is not leased by the session")));
  }
  for (const ChunkIndex index : *indices) ReleaseLease(*session, index);
  Reply reply;
  reply.call = event.call;
  sessions_.Remember(*session, event.request_id, kReleaseKind, reply);
  Emit(std::move(reply));
}

}  // namespace memtide
