// Fetch and release: admission, leases, grants.
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

absl::Status EngineState::Lost(uint32_t place) const {
  return absl::DataLossError(absl::StrCat(
      "what chunk ", IdOf(place).value(),
      " held is lost: its writer died while it held it, or so did the daemon; write it anew"));
}

absl::Status EngineState::CheckFetch(const Session& session, const FetchCall& event,
                                     const std::vector<uint32_t>& places) const {
  const Job& job = *session.job;
  if (event.tier == Tier::kSsd || !job.tier(event.tier).exists()) {
    return absl::InvalidArgumentError(absl::StrCat("chunks cannot be leased at the ",
                                                   TierName(event.tier), " tier of this node"));
  }
  const uint32_t limit = job.LeaseLimit(event.tier);
  if (places.size() > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("asked to lease ", places.size(), " chunks at once; the job's ",
                     TierName(event.tier), " share of ", FormatBytes(job.tier(event.tier).share),
                     " can lease ", limit, "; raise the pool or lease fewer at a time"));
  }
  MEMTIDE_RETURN_IF_ERROR(CheckDeadline(event.deadline));
  for (const uint32_t place : places) {
    const Chunk& chunk = chunks_[place];
    if (event.access == Access::kRead && chunk.torn) return Lost(place);
    for (const Hold& hold : chunk.holds) {
      if (hold.session == session.id && chunk.hold_tier != event.tier) {
        return absl::FailedPreconditionError(
            absl::StrCat("chunk ", IdOf(place).value(), " is leased at the ",
                         TierName(chunk.hold_tier), " tier; release it first"));
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
    if (const absl::optional<uint32_t> place = Find(job, id)) ReleaseLease(*session, *place);
  }
  absl::Status status = CheckMoments(event.moments);
  if (status.ok()) Learn(job, event.moments);
  absl::StatusOr<std::vector<uint32_t>> places = Resolve(job, event.chunks);
  if (status.ok()) {
    status = places.ok() ? CheckFetch(*session, event, *places) : places.status();
  }
  if (status.ok() && session->waiting_calls >= options_.limits.waiting_calls_per_session) {
    status = absl::ResourceExhaustedError(absl::StrCat("the session has its limit of ",
                                                       options_.limits.waiting_calls_per_session,
                                                       " waiting calls; wait for some of them"));
  }
  if (!status.ok()) return Refuse(event.call, status);

  auto made = std::make_unique<FetchOperation>();
  FetchOperation& fetch = *made;
  fetch.call = event.call;
  fetch.session = fetch.owner = session->id;
  fetch.job = &job;
  fetch.tier = event.tier;
  fetch.chunks = std::move(*places);
  fetch.first_written = event.access == Access::kWrite ? 0 : fetch.chunks.size();
  fetch.started = now_;
  fetch.deadline =
      now_ + (event.deadline == Duration(0) ? options_.limits.max_wait : event.deadline);
  fetches_.emplace(event.call, std::move(made));
  ++session->waiting_calls;

  const Admission admission = TryAdmit(fetch);
  if (fetch.admitted && fetch.missing == 0) {
    ++counters_.fetch_hits;
    return Grant(fetch);
  }
  if (!event.wait) {
    return Fail(fetch, admission == Admission::kConflict
                           ? absl::AbortedError("another session holds a lease that excludes this")
                           : absl::UnavailableError("not every chunk is there now"));
  }
  if (!fetch.admitted) {
    job.tier(fetch.tier).admission.push_back(&fetch);
    AskLeasesBack(fetch, admission);
  }
}

bool EngineState::Conflicts(const Chunk& chunk, const FetchOperation& fetch, Access access) const {
  for (const Hold& hold : chunk.holds) {
    // A chunk is leased at one tier at a time, also by one session.
    if (chunk.hold_tier != fetch.tier) return true;
    if (hold.session == fetch.session) continue;
    if (access == Access::kWrite) return true;
    if (hold.granted && hold.access == Access::kWrite) return true;
    if (hold.pending > 0 && hold.pending_access == Access::kWrite) return true;
  }
  return false;
}

uint32_t EngineState::NewPins(const FetchOperation& fetch) const {
  uint32_t pins = 0;
  for (const uint32_t place : fetch.chunks) pins += !chunks_[place].pinned();
  return pins;
}

EngineState::Admission EngineState::TryAdmit(FetchOperation& fetch) {
  for (size_t i = 0; i < fetch.chunks.size(); ++i) {
    if (Conflicts(chunks_[fetch.chunks[i]], fetch, fetch.AccessOf(i))) return Admission::kConflict;
  }
  Job& job = *fetch.job;
  const JobTier& part = job.tier(fetch.tier);
  const uint32_t pins = NewPins(fetch);
  // A share that shrinks may have more leases than it permits; those are kept.
  const bool fits = part.committed + pins <= job.LeaseLimit(fetch.tier);
  // What is withheld comes back for who could not go on without it: not for steps beside another.
  const bool spares = fetch.work != nullptr && job.steps > 0;
  if (pins > 0 && (!fits || (spares && part.committed + pins > part.slots->size()))) {
    return Admission::kNoRoom;
  }
  fetch.admitted = true;
  job.steps += fetch.work != nullptr;
  for (size_t i = 0; i < fetch.chunks.size(); ++i) Pin(fetch, fetch.chunks[i], fetch.AccessOf(i));
  return Admission::kAdmitted;
}

void EngineState::Pin(FetchOperation& fetch, uint32_t place, Access access) {
  Chunk& chunk = chunks_[place];
  chunk.evicted = false;
  if (fetch.work != nullptr && access == Access::kWrite) chunk.overwrite = true;
  if (!chunk.pinned()) {
    chunk.hold_tier = fetch.tier;
    ++fetch.job->tier(fetch.tier).committed;
  }
  Hold* hold = chunk.FindHold(fetch.session);
  if (hold == nullptr) {
    chunk.holds.emplace_back();
    hold = &chunk.holds.back();
    hold->session = fetch.session;
  }
  if (hold->pending == 0 || access == Access::kWrite) hold->pending_access = access;
  ++hold->pending;
  if (!chunk.valid_at(fetch.tier)) {
    ++fetch.missing;
    chunk.fetches.push_back(&fetch);
    Ready(place);
  } else if (chunk.push_from.has_value()) {
    Ready(place);  // It stays: somebody else has to leave.
  }
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) UpdateVictim(place, tier);
}

void EngineState::Unpin(uint32_t place, size_t hold_index) {
  Chunk& chunk = chunks_[place];
  chunk.holds.erase(chunk.holds.begin() + hold_index);
  Touch(place);
  if (!chunk.pinned()) {
    chunk.asked_back = false;
    --chunk.job->tier(chunk.hold_tier).committed;
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) UpdateVictim(place, tier);
    Ready(place);
  }
  // A conflict may have ended even while others hold it.
  LookAtRoom(*chunk.job, Tier::kDevice);
  LookAtRoom(*chunk.job, Tier::kHost);
}

void EngineState::Forget(FetchOperation& fetch) {
  if (Session* session = FindSession(fetch.owner)) --session->waiting_calls;
  fetches_.erase(fetch.call);
}

void EngineState::Grant(FetchOperation& fetch) {
  if (fetch.work != nullptr) return StartStepOf(fetch);
  Session& session = *FindSession(fetch.session);
  FetchReply granted;
  granted.leases.reserve(fetch.chunks.size());
  for (size_t i = 0; i < fetch.chunks.size(); ++i) {
    const uint32_t place = fetch.chunks[i];
    const Access access = fetch.AccessOf(i);
    Chunk& chunk = chunks_[place];
    chunk.leased = true;
    chunk.only_stepped = false;
    Hold& hold = *chunk.FindHold(fetch.session);
    --hold.pending;
    const bool writes = hold.granted && hold.access == Access::kWrite;
    if (access == Access::kWrite && !writes) MakeNewVersion(place);
    session.leases += !hold.granted;
    hold.granted = true;
    hold.access = writes ? Access::kWrite : access;
    Lease lease;
    lease.chunk = IdOf(place);
    lease.tier = fetch.tier;
    lease.place = PlaceOf(chunk, fetch.tier);
    lease.version = chunk.version;
    lease.access = hold.access;
    granted.leases.push_back(lease);
  }
  AddFarthest(session, &granted);
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

void EngineState::MakeNewVersion(uint32_t place) {
  Chunk& chunk = chunks_[place];
  Touch(place);
  chunk.version = Version(chunk.version.value() + 1);
  chunk.torn = false;
  chunk.valid = static_cast<uint8_t>(1u << static_cast<int>(chunk.hold_tier));
  // The other copies are stale; their slots are free, but for one that a transfer still uses.
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
    const bool in_use =
        chunk.flight.has_value() && (chunk.flight->to == tier || chunk.flight->from == tier);
    if (tier == chunk.hold_tier || tier == chunk.job->home || in_use) continue;
    if (chunk.slot(tier)) DropCopy(place, tier);
  }
}

void EngineState::Fail(FetchOperation& fetch, const absl::Status& status) {
  if (fetch.admitted) {
    fetch.job->steps -= fetch.work != nullptr;
    for (size_t index = 0; index < fetch.chunks.size(); ++index) {
      const uint32_t place = fetch.chunks[index];
      Chunk& chunk = chunks_[place];
      chunk.fetches.erase(std::remove(chunk.fetches.begin(), chunk.fetches.end(), &fetch),
                          chunk.fetches.end());
      for (size_t i = 0; i < chunk.holds.size(); ++i) {
        Hold& hold = chunk.holds[i];
        if (hold.session != fetch.session) continue;
        --hold.pending;
        if (hold.pending == 0 && !hold.granted) Unpin(place, i);
        break;
      }
      if (fetch.work != nullptr && index >= fetch.first_written) {
        chunk.overwrite = false;
        if (chunk.blank) Discard(place);
      }
      Ready(place);
    }
  } else {
    auto& queue = fetch.job->tier(fetch.tier).admission;
    const auto found = std::find(queue.begin(), queue.end(), &fetch);
    if (found != queue.end()) queue.erase(found);
  }
  LookAtRoom(*fetch.job, fetch.tier);
  Refuse(fetch.call, status);
  Forget(fetch);
}

void EngineState::AdmitWaiting(Job& job, Tier tier) {
  JobTier& part = job.tier(tier);
  bool room = true;  // Nobody older waits for room.
  for (size_t i = 0; i < part.admission.size();) {
    FetchOperation& fetch = *part.admission[i];
    // What became torn while it waited.
    absl::Status torn;
    for (size_t n = 0; n < fetch.chunks.size(); ++n) {
      const uint32_t place = fetch.chunks[n];
      if (chunks_[place].torn && fetch.AccessOf(n) == Access::kRead) torn = Lost(place);
    }
    if (!torn.ok()) {
      Fail(fetch, torn);
      continue;
    }
    const Admission admission = room || NewPins(fetch) == 0 ? TryAdmit(fetch) : Admission::kNoRoom;
    if (admission == Admission::kAdmitted) {
      part.admission.erase(part.admission.begin() + i);
      if (fetch.missing == 0) Grant(fetch);
      continue;
    }
    // Who waits behind a step may hold what the step waits for: nobody does.
    if (admission == Admission::kNoRoom && fetch.work == nullptr) room = false;
    if (now_ - fetch.revoked_at >= kRevokePeriod) AskLeasesBack(fetch, admission);
    ++i;
  }
}

void EngineState::AskLeasesBack(FetchOperation& fetch, Admission why) {
  fetch.revoked_at = now_;
  const Job& job = *fetch.job;
  const uint32_t wanted = job.tier(fetch.tier).committed + NewPins(fetch);
  const uint32_t limit = job.LeaseLimit(fetch.tier);
  for (const SessionId id : job.sessions) {
    Revoke revoke;
    revoke.session = id;
    const bool leases_here = fetch.tier == job.work && FindSession(id)->leases > 0;
    if (why == Admission::kNoRoom && leases_here && wanted > limit) {
      revoke.count = wanted - limit;
    }
    for (const uint32_t place : fetch.chunks) {
      const Hold* hold = chunks_[place].FindHold(id);
      if (why == Admission::kConflict && id != fetch.session && hold != nullptr && hold->granted &&
          revoke.chunks.size() < kMaxRevokedChunks) {
        revoke.chunks.push_back(IdOf(place));
      }
    }
    if (revoke.count == 0 && revoke.chunks.empty()) continue;
    ++counters_.revokes;
    Emit(std::move(revoke));
  }
}

void EngineState::ReleaseLease(Session& session, uint32_t place) {
  Chunk& chunk = chunks_[place];
  for (size_t i = 0; i < chunk.holds.size(); ++i) {
    Hold& hold = chunk.holds[i];
    if (hold.session != session.id) continue;
    if (!hold.granted) return;
    hold.granted = false;
    --session.leases;
    if (hold.pending == 0) Unpin(place, i);
    return;
  }
}

void EngineState::On(const ReleaseCall& event) {
  Session* session = CallingSession(event.call, event.session);
  if (session == nullptr) return;
  if (AnswerAgain(*session, event.call, event.request_id, kReleaseKind)) return;
  absl::StatusOr<std::vector<uint32_t>> places = Resolve(*session->job, event.chunks);
  if (!places.ok()) return Refuse(event.call, places.status());
  for (const uint32_t place : *places) {
    const Hold* hold = chunks_[place].FindHold(session->id);
    if (hold != nullptr && hold->granted) continue;
    return Refuse(event.call, absl::FailedPreconditionError(absl::StrCat(
                                  "chunk ", IdOf(place).value(), " is not leased by the session")));
  }
  for (const uint32_t place : *places) ReleaseLease(*session, place);
  Reply reply;
  reply.call = event.call;
  Remember(*session, event.request_id, kReleaseKind, reply);
  Emit(std::move(reply));
}

}  // namespace memtide
