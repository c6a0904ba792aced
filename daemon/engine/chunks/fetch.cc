// Fetch and release: leases and their grants. Admission decides which fetch is next
// (chunks/admission.cc).
#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/requests.h"

namespace memtide {

namespace {

constexpr size_t kReleaseKind = 7;  // Index in Event.
static_assert(std::is_same_v<std::variant_alternative_t<kReleaseKind, Event>, ReleaseCall>);

}  // namespace

// Refuses at once what could never be granted, rather than at its deadline.
absl::Status Requests::CheckFetch(const Session& session, const FetchCall& event,
                                  const std::vector<ChunkIndex>& indices) const {
  const Job& job = *session.job;
  if (event.tier == Tier::kSsd || !job.share(event.tier).exists()) {
    return absl::InvalidArgumentError(absl::StrCat("chunks cannot be leased at the ",
                                                   TierName(event.tier), " tier of this node"));
  }
  const uint32_t limit = job.LeaseLimit(event.tier);
  if (core_.chunks.CountRoom(indices, event.tier) > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("requested leases of ", indices.size(), " chunks at once; the job's ",
                     TierName(event.tier), " share of ", FormatBytes(job.share(event.tier).bytes()),
                     " can lease ", limit, "; raise the pool or lease fewer at a time"));
  }
  if (event.tier == Tier::kDevice) MEMTIDE_RETURN_IF_ERROR(state_.CheckRegions(job));
  MEMTIDE_RETURN_IF_ERROR(CheckDeadline(core_.options.limits, event.deadline));
  for (const ChunkIndex index : indices) {
    const Chunk& chunk = core_.chunks[index];
    if (event.access == Access::kRead && chunk.copies.torn) return Lost(core_.chunks, index);
    for (const Pin& pin : chunk.pins) {
      // A chunk is leased at one tier at a time. The fetch would wait for a lease of its own
      // session.
      if (pin.session == session.id && chunk.pin_tier != event.tier) {
        return absl::FailedPreconditionError(
            absl::StrCat("chunk ", core_.IdOf(index).value(), " is leased at the ",
                         TierName(chunk.pin_tier), " tier; release it first"));
      }
    }
  }
  return absl::OkStatus();
}

void Requests::On(const FetchCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  Job& job = *session->job;
  ++core_.counters.fetches;
  // The releases count even if the fetch is refused: the client has given these leases up already.
  // They come first, since the fetch may need their room.
  for (const ChunkId id : event.releases) {
    if (const absl::optional<ChunkIndex> index = core_.ids.Find(*session, id))
      state_.ReleaseLease(*session, *index);
    sharing_.ReleaseLeftBehind(*session, id);
  }
  absl::Status status = state_.CheckMoments(event.moments);
  // The predictor learns before victims are chosen for this fetch, so that they follow the newest
  // uses.
  if (status.ok()) state_.Learn(*session, event.moments);
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  if (status.ok()) {
    status = indices.ok() ? CheckFetch(*session, event, *indices) : indices.status();
  }
  if (status.ok()) status = state_.CheckWaiting(*session, indices->size());
  if (!status.ok()) return core_.Refuse(event.call, status);
  if (event.tier == Tier::kDevice) job.uses_device = true;
  const bool writes = event.access == Access::kWrite, at_device = event.tier == Tier::kDevice;
  const bool some_are_common =
      writes && std::any_of(indices->begin(), indices->end(),
                            [this](ChunkIndex index) { return core_.ids.MustCopyToWrite(index); });
  if (some_are_common && (!at_device || job.shares_contents())) {
    return sharing_.Unshare(*session, event, *indices);
  }
  absl::StatusOr<std::vector<Slot>> homes = std::vector<Slot>();
  if (some_are_common) homes = sharing_.TakeHomes(job, *indices);
  if (!homes.ok()) {
    core_.ScheduleRoomCheck(job, job.home);
    return core_.Refuse(event.call, homes.status());
  }

  auto made = std::make_unique<Waiter>();
  Waiter& waiter = *made;
  waiter.call = event.call;
  waiter.session = waiter.owner = session->id;
  waiter.job = &job;
  waiter.tier = event.tier;
  waiter.chunks = std::move(*indices);
  waiter.homes = *std::move(homes);
  waiter.first_written = event.access == Access::kWrite ? 0 : waiter.chunks.size();
  waiter.started = core_.now;
  waiter.deadline =
      core_.now + (event.deadline == Duration(0) ? core_.options.limits.max_wait : event.deadline);
  // Proceed() and Fail() end a call that is in the tables, so it enters them before it is tried.
  state_.Enter(*session, std::move(made));

  const Verdict verdict = state_.TryAdmit(waiter, /*may_take_room=*/true);
  if (waiter.admitted && waiter.missing == 0) {
    ++core_.counters.fetch_hits;
    return state_.Proceed(waiter);
  }
  if (!event.wait) {
    return sharing_.Fail(
        waiter, verdict.admission == Admission::kConflict
                    ? absl::AbortedError("another session holds a lease that excludes this")
                    : absl::UnavailableError("not every chunk is there now"));
  }
  if (!waiter.admitted) state_.WaitForAdmission(waiter, verdict);
}

void EngineState::UnpinChunk(ChunkIndex index, size_t pin_index) {
  Chunk& chunk = core_.chunks[index];
  chunk.pins.erase(chunk.pins.begin() + pin_index);
  core_.MarkDirty(index);
  if (!chunk.pinned()) {
    chunk.revoke_sent = false;
    for (const Tier tier : kMemoryTiers) UpdateVictim(index, tier);
    core_.ScheduleChunk(index);
    if (chunk.repeats_offer) core_.work.Send(ChunkUnpinned{index});
  }
  // A conflict may have ended even while other pins remain.
  core_.PinsChanged(index);
  core_.ScheduleRoomCheck(*chunk.job, Tier::kDevice);
  core_.ScheduleRoomCheck(*chunk.job, Tier::kHost);
}

void EngineState::Enter(Session& session, std::unique_ptr<Waiter> waiter) {
  Job& job = *waiter->job;
  waiter->of_session = session.waiting_calls.Take();
  waiter->of_job = job.waiting_calls.Take();
  waiter->of_user = session.user->waiting_calls.Take();
  const uint32_t chunks = static_cast<uint32_t>(waiter->chunks.size());
  waiter->chunks_of_job = job.waiting_chunks.Take(chunks);
  waiter->chunks_of_user = session.user->waiting_chunks.Take(chunks);
  core_.deadlines.emplace(waiter->deadline, waiter->call);
  session.waiters.push_back(waiter.get());
  core_.waiters.emplace(waiter->call, std::move(waiter));
}

void EngineState::Leave(Waiter& waiter) {
  std::vector<Waiter*>& waiters = core_.sessions.Find(waiter.owner)->waiters;
  waiters.erase(std::find(waiters.begin(), waiters.end(), &waiter));
  core_.deadlines.erase({waiter.deadline, waiter.call});
  Job& job = *waiter.job;
  const bool has_homes = !waiter.homes.empty();
  core_.waiters.erase(waiter.call);
  if (has_homes) core_.ScheduleRoomCheck(job, job.home);  // Those that it did not need are free.
}

void EngineState::ProceedWaiters(ChunkIndex index) {
  std::vector<Waiter*> waiters;
  waiters.swap(core_.chunks[index].waiters);
  for (Waiter* waiter : waiters) {
    if (--waiter->missing == 0) Proceed(*waiter);
  }
}

void EngineState::Proceed(Waiter& waiter) {
  std::visit([&](const auto& then) { Proceed(waiter, then); }, waiter.then);
}

void EngineState::Proceed(Waiter& waiter, const GrantLeases&) {
  Session& session = *core_.sessions.Find(waiter.session);
  FetchReply granted;
  granted.leases.reserve(waiter.chunks.size());
  for (size_t i = 0; i < waiter.chunks.size(); ++i) {
    const ChunkIndex index = waiter.chunks[i];
    const Access access = waiter.AccessOf(i);
    Chunk& chunk = core_.chunks[index];
    chunk.leased = true;
    chunk.only_stepped = false;
    Pin& pin = *chunk.FindPin(waiter.session);
    --pin.pending;
    // A session that writes the chunk already keeps its write lease and the version of it, even if
    // this fetch only reads.
    const bool writes = pin.granted() && pin.access == Access::kWrite;
    if (access == Access::kWrite && !writes) {
      const bool was_common = chunk.common != nullptr;
      if (was_common || chunk.repeats_offer) {
        core_.work.Send(ContentWritten{session.id, core_.ids.IdFor(index, session.id), was_common});
      }
      if (was_common) {
        LeaveCommon(*waiter.job, index, std::move(waiter.homes.at(i)), TierSet(waiter.tier));
      }
      MakeNewVersion(index);
    }
    pin.Grant(writes ? Access::kWrite : access, session.leases.Take());
    // A fetch that failed had raised pending_access to write.
    if (pin.pending == 0 && pin.pending_access != pin.access) core_.PinsChanged(index);
    Lease lease;
    lease.chunk = core_.ids.IdFor(index, session.id);
    lease.tier = waiter.tier;
    lease.place = PlaceOf(chunk, waiter.tier);
    lease.version = chunk.version;
    lease.access = pin.access;
    granted.leases.push_back(lease);
  }
  AddEvictionHints(session, &granted);
  // A fetch that the event of its call grants has not waited.
  if (core_.now > waiter.started) {
    granted.waited = true;
    TracedStall stall{waiter.started, core_.now - waiter.started, absl::nullopt,
                      static_cast<uint32_t>(waiter.chunks.size())};
    if (waiter.waited_for_copy) stall.waited_for = Tier::kDevice;
    if (waiter.waited_for_ssd) stall.waited_for = Tier::kSsd;
    waiter.job->trace.Stalled(stall);
    waiter.job->stalled += stall.duration;
    Duration& stalled = WaitedForBudget(*waiter.job, waiter.started)
                            ? core_.counters.stalled_on_budget
                        : waiter.waited_for_ssd  ? core_.counters.stalled_on_ssd
                        : waiter.waited_for_copy ? core_.counters.stalled_on_copy
                                                 : core_.counters.stalled_on_room;
    stalled += core_.now - waiter.started;
  }
  Reply reply;
  reply.call = waiter.call;
  reply.value = std::move(granted);
  core_.Emit(std::move(reply));
  Leave(waiter);
}

// The content is about to change in place, so the copy at the tier of the pins becomes the only
// valid one.
void EngineState::MakeNewVersion(ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  core_.MarkDirty(index);
  chunk.version = Version(chunk.version.value() + 1);
  chunk.copies.torn = chunk.copies.memory_failed = false;
  chunk.copies.valid = TierSet(chunk.pin_tier);
  if (chunk.job->snapshots.saving.has_value()) core_.ScheduleChunk(index);
  // The other copies are stale. Their slots are freed, except one that a transfer still uses.
  for (const Tier tier : kMemoryTiers) {
    const bool in_use = chunk.copies.flight &&
                        (chunk.copies.flight->to == tier || chunk.copies.flight->from == tier);
    if (tier == chunk.pin_tier || chunk.KeepsSlot(tier) || in_use) continue;
    if (chunk.slot(tier)) DropCopy(index, tier);
  }
}

void EngineState::Fail(Waiter& waiter, const absl::Status& status) {
  PartFailed failed = Undo(waiter, status);
  if (failed.concerns_sharing()) core_.work.Send(std::move(failed));
}

// Undoes what TryAdmit() did for the waiter, and answers its call.
PartFailed EngineState::Undo(Waiter& waiter, const absl::Status& status) {
  if (waiter.admitted) {
    for (size_t nth = 0; nth < waiter.chunks.size(); ++nth) {
      const ChunkIndex index = waiter.chunks[nth];
      Chunk& chunk = core_.chunks[index];
      chunk.waiters.erase(std::remove(chunk.waiters.begin(), chunk.waiters.end(), &waiter),
                          chunk.waiters.end());
      for (size_t i = 0; i < chunk.pins.size(); ++i) {
        Pin& pin = chunk.pins[i];
        if (pin.session != waiter.session) continue;
        --pin.pending;
        if (pin.pending == 0 && !pin.granted()) {
          UnpinChunk(index, i);
        } else {
          core_.PinsChanged(index);
        }
        break;
      }
      if (waiter.runs_step() && nth >= waiter.first_written) {
        chunk.overwrite = false;
        // The step part never ran, so the slot has bytes of an earlier use that count as valid.
        if (chunk.blank) Discard(index);
      }
      core_.ScheduleChunk(index);
    }
  }
  core_.ScheduleRoomCheck(*waiter.job, waiter.tier);
  if (!IsOwn(waiter.call)) core_.Refuse(waiter.call, status);
  PartFailed failed{waiter.job->id, waiter.owner, 0, nullptr, nullptr};
  if (waiter.runs_step()) {
    const auto& run = std::get<RunStep>(waiter.then);
    failed.part = run.part;
    failed.unsharing = run.unsharing;
    failed.offer = run.offer;
  }
  Leave(waiter);
  return failed;
}

// Does nothing for a chunk that the session has not leased, so that a FetchCall or EvictCall may
// name leases that have ended.
void EngineState::ReleaseLease(Session& session, ChunkIndex index) {
  Chunk& chunk = core_.chunks[index];
  for (size_t i = 0; i < chunk.pins.size(); ++i) {
    Pin& pin = chunk.pins[i];
    if (pin.session != session.id) continue;
    if (!pin.granted()) return;
    pin.EndGrant();
    if (pin.pending == 0) {
      UnpinChunk(index, i);
    } else {
      core_.MarkDirty(index);  // The chunk's record no longer says that a lease writes it.
      core_.PinsChanged(index);
    }
    return;
  }
}

// The call releases all of its leases or none of them.
void Requests::On(const ReleaseCall& event) {
  Session* session = core_.CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (core_.AnswerAgain(*session, event.call, event.request_id, kReleaseKind)) return;
  absl::StatusOr<std::vector<ChunkIndex>> indices = core_.ids.Resolve(*session, event.chunks);
  if (!indices.ok()) return core_.Refuse(event.call, indices.status());
  for (size_t i = 0; i < indices->size(); ++i) {
    const ChunkIndex index = (*indices)[i];
    const Pin* pin = core_.chunks[index].FindPin(session->id);
    if (pin != nullptr && pin->granted()) continue;
    if (session->left_behind.count(event.chunks[i]) > 0) continue;
    return core_.Refuse(
        event.call, absl::FailedPreconditionError(absl::StrCat("chunk ", core_.IdOf(index).value(),
                                                               " is not leased by the session")));
  }
  for (const ChunkIndex index : *indices) state_.ReleaseLease(*session, index);
  for (const ChunkId id : event.chunks) sharing_.ReleaseLeftBehind(*session, id);
  Reply reply;
  reply.call = event.call;
  core_.sessions.Remember(*session, event.request_id, kReleaseKind, reply);
  core_.Emit(std::move(reply));
}

}  // namespace memtide
