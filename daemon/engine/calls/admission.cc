// Admission: which fetches and steps may pin their chunks, and in which order.
//
// A fetch is admitted when no lease excludes it and its pins fit into the tier. A fetch that is not
// admitted watches one of its chunks: one whose lease excludes it, or one that is not pinned if the
// fetch lacks room. It is tried again when the pins of that chunk change, so that the end of a
// lease costs no look at fetches that wait for something else.
//
// Fetches that lack room are tried oldest first. A fetch behind the first that does not fit is not
// tried, unless other calls have pinned all of its chunks meanwhile. A waiting step does not block
// later calls, because they may hold leases that the step needs. Whether a step may fit is known
// from counters, without a look at its chunks.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/engine/calls/calls.h"

namespace memtide {

// The limits bound what one event may examine, and what all of them hold: a lease that ends may
// concern all waiting calls of a job and all chunks that they name.
absl::Status Calls::CheckWaiting(const Session& session, size_t chunks) const {
  const Limits& limits = core_.options.limits;
  const Job& job = *session.job;
  const User& user = *session.user;
  const auto too_many = [](absl::string_view whose, absl::string_view limit, uint32_t most) {
    return absl::ResourceExhaustedError(absl::StrCat(whose, " its limit of ", most,
                                                     " waiting calls (", limit,
                                                     "); wait for some of them first"));
  };
  if (session.waiting_calls.value() >= limits.waiting_calls_per_session) {
    return too_many("the session has", "waiting_calls_per_session",
                    limits.waiting_calls_per_session);
  }
  if (job.waiting_calls.value() >= limits.waiting_calls_per_job) {
    return too_many("the job's sessions have", "waiting_calls_per_job",
                    limits.waiting_calls_per_job);
  }
  if (user.waiting_calls.value() >= limits.waiting_calls_per_uid) {
    return too_many(absl::StrCat("the sessions of user ", session.uid, " have"),
                    "waiting_calls_per_uid", limits.waiting_calls_per_uid);
  }
  const auto check_chunks = [chunks](absl::string_view whose, absl::string_view limit,
                                     const Count& named, uint32_t most) {
    if (named.value() + chunks <= most) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the waiting calls of ", whose, " name ", named.value(),
                     " chunks; with these ", chunks, " they would be more than ", most, " (", limit,
                     "); wait for some of them first, or name fewer chunks"));
  };
  MEMTIDE_RETURN_IF_ERROR(check_chunks("the job", "waiting_chunks_per_job", job.waiting_chunks,
                                       limits.waiting_chunks_per_job));
  return check_chunks(absl::StrCat("user ", session.uid), "waiting_chunks_per_uid",
                      user.waiting_chunks, limits.waiting_chunks_per_uid);
}

bool Calls::Conflicts(const Chunk& chunk, const Waiter& waiter, Access access) const {
  for (const Pin& pin : chunk.uses().pins) {
    // A chunk is leased at one tier at a time, even by one session.
    if (chunk.uses().pin_tier != waiter.tier) return true;
    // At one tier a session never excludes itself. Each step part has an id of its own, so that two
    // of them may exclude each other.
    if (pin.session == waiter.session) continue;
    if (access == Access::kWrite) return true;
    if (pin.granted() && pin.access == Access::kWrite) return true;
    // An admitted fetch will become a lease without a further check, so its promise counts as one.
    if (pin.pending > 0 && pin.pending_access == Access::kWrite) return true;
  }
  return false;
}

bool Calls::ConflictsWhereItWatches(const Waiter& waiter) const {
  const uint32_t watched = waiter.waiting.watched();
  return Conflicts(core_.chunks[waiter.chunks[watched]], waiter, waiter.AccessOf(watched));
}

bool Calls::Fits(const Waiter& waiter, uint32_t pins) const {
  if (pins == 0) return true;
  const Job& job = *waiter.job;
  const uint32_t pinned = job.tier(waiter.tier).pinned_chunks() + pins;
  // A share that shrinks may have more leases than it permits. They stay.
  if (pinned > job.LeaseLimit(waiter.tier)) return false;
  // The balloon deflates only for a call that cannot otherwise proceed, never to run a second step
  // beside another: steps can go one by one.
  const bool spares = waiter.runs_step() && job.steps.value() > 0;
  return !spares || pinned <= job.share(waiter.tier).slots().size();
}

bool Calls::MayFit(const Waiter& waiter) const {
  // Each pin since then may be of one of its chunks.
  const uint64_t since = waiter.job->tier(waiter.tier).pins_made - waiter.pins_before;
  return Fits(waiter,
              waiter.new_pins - static_cast<uint32_t>(std::min<uint64_t>(since, waiter.new_pins)));
}

// Pins all chunks of the waiter or none of them. Two calls that each held a part of what the other
// needs would wait for ever.
Verdict Calls::TryAdmit(Waiter& waiter, bool may_take_room) {
  Job& job = *waiter.job;
  waiter.new_pins = 0;
  waiter.pins_before = job.tier(waiter.tier).pins_made;
  uint32_t first_unpinned = 0;
  const uint32_t count = static_cast<uint32_t>(waiter.chunks.size());
  for (uint32_t i = 0; i < count; ++i) {
    ++core_.counters.admission_looks;
    const Chunk& chunk = core_.chunks[waiter.chunks[i]];
    const Access access = waiter.AccessOf(i);
    if (chunk.copies().torn && access == Access::kRead) return {Admission::kTorn, i};
    if (Conflicts(chunk, waiter, access)) return {Admission::kConflict, i};
    if (chunk.pinned() || !chunk.takes_room_at(waiter.tier)) continue;
    if (++waiter.new_pins == 1) first_unpinned = i;
    // An older fetch waits for room. This one may overtake it only if all of its chunks are pinned
    // anyway, so that it takes no room.
    if (!may_take_room) return {Admission::kNoRoom, i};
  }
  if (!Fits(waiter, waiter.new_pins)) return {Admission::kNoRoom, first_unpinned};
  // From here on nothing can fail, so that no pin has to be undone.
  waiter.waiting.Leave();
  waiter.admitted = true;
  waiter.of_tier = job.tier(waiter.tier).admitted.Take();
  if (waiter.runs_step()) waiter.step = job.steps.Take();
  for (uint32_t i = 0; i < count; ++i) PinChunk(waiter, waiter.chunks[i], waiter.AccessOf(i));
  return {Admission::kAdmitted};
}

// The chunk cannot leave the tier of the waiter from now on. The first pin decides the tier,
// because Conflicts() admits no call at another one.
void Calls::PinChunk(Waiter& waiter, ChunkIndex index, Access access) {
  const Chunk& chunk = core_.chunks[index];
  Uses& uses = uses_[index];
  uses.evicted = kNoVersion;
  if (waiter.runs_step() && access == Access::kWrite) uses.overwrite = true;
  if (!chunk.pinned()) {
    uses.pin_tier = waiter.tier;
    ++waiter.job->tier(waiter.tier).pins_made;
    core_.PinsChanged(index);
  }
  Pin* pin = uses.FindPin(waiter.session);
  if (pin == nullptr) {
    uses.pins.emplace_back(waiter.session);
    pin = &uses.pins.back();
  }
  // Among several pending fetches of one session, the strongest access excludes other sessions.
  if (pin->pending == 0 || access == Access::kWrite) pin->pending_access = access;
  ++pin->pending;
  if (!chunk.valid_at(waiter.tier)) {
    ++waiter.missing;
    uses.waiters.push_back(&waiter);
    residency_.Expedite(index);
    core_.ScheduleChunk(index);
  } else if (chunk.evict_from.has_value()) {
    core_.ScheduleChunk(index);  // The copy stays: another victim must be chosen.
  }
  victims_.Update(index);
}

void Calls::WaitOrFail(Waiter& waiter, const Verdict& verdict) {
  // Device memory may fail after the call was checked, such as between two parts of an offer.
  if (verdict.admission == Admission::kTorn)
    return Fail(waiter, TornChunkError(core_.chunks, waiter.chunks[verdict.chunk]));
  MEMTIDE_CHECK(verdict.admission != Admission::kAdmitted);
  waiter.job->waiting.Add(waiter, verdict.chunk, verdict.reason());
  RevokeLeases(waiter);
}

Admission Calls::TryAgain(Waiter& waiter) {
  AdmissionQueue& waiting = waiter.job->waiting;
  // Among the calls that wait, no call takes room before an older fetch that lacks it.
  const Waiter* const oldest = waiting.OldestFetchForRoom(waiter.tier);
  const bool may_take_room = oldest == nullptr || oldest->waiting.age() >= waiter.waiting.age();
  const Verdict verdict = TryAdmit(waiter, may_take_room);
  if (verdict.admission == Admission::kTorn) {
    Fail(waiter, TornChunkError(core_.chunks, waiter.chunks[verdict.chunk]));
  } else if (verdict.admission != Admission::kAdmitted) {
    waiting.Watch(waiter, verdict.chunk, verdict.reason());
    // Fetches that lack room revoke leases only when they are the oldest.
    const bool excluded = verdict.reason() == WaitsFor::kLease;
    if (excluded && core_.now - waiter.revoked_at >= kRevokePeriod) RevokeLeases(waiter);
  } else if (waiter.missing == 0) {
    Proceed(waiter);
  }
  return verdict.admission;
}

void Calls::AdmitWaiting(Job& job, Tier tier) {
  if (job.waiting.empty()) return;
  AdmitOldest(job, tier);
  while (const absl::optional<ChunkIndex> index = job.waiting.TakeChanged()) {
    AdmitWatching(job, *index);
  }
  RevokeLeasesAgain(job, tier);
}

void Calls::AdmitOldest(Job& job, Tier tier) {
  const auto lacks_room = [this](Waiter& waiter) {
    if (MayFit(waiter) && TryAgain(waiter) != Admission::kNoRoom) return false;
    if (core_.now - waiter.revoked_at >= kRevokePeriod) RevokeLeases(waiter);
    return true;
  };
  // Steps and fetches have separate queues, which are merged by age. A step that does not fit is
  // passed over; a fetch that does not fit ends the loop.
  for (uint64_t last_step = 0;;) {
    Waiter* const step = job.waiting.NextStepForRoom(tier, last_step);
    Waiter* const fetch = job.waiting.OldestFetchForRoom(tier);
    if (step != nullptr && (fetch == nullptr || step->waiting.age() < fetch->waiting.age())) {
      last_step = step->waiting.age();
      lacks_room(*step);
    } else if (fetch == nullptr || lacks_room(*fetch)) {
      return;
    }
  }
}

void Calls::AdmitWatching(Job& job, ChunkIndex index) {
  const auto try_again = [&](Waiter& waiter) {
    ++core_.counters.admission_looks;
    const bool waits = waiter.waiting.reason() == WaitsFor::kLease ? ConflictsWhereItWatches(waiter)
                                                                   : !core_.chunks[index].pinned();
    if (!waits) TryAgain(waiter);
  };
  uint64_t age = 0;
  while (Waiter* const next = job.waiting.NextWatching(index, age)) {
    const absl::optional<SessionId> writer = core_.chunks[index].Writer();
    if (writer.has_value()) {
      // The writer excludes all other calls, so only its own need a look.
      const Session* const session = core_.sessions.Find(*writer);
      // The writer is a step part, whose chunks no other call may use.
      if (session == nullptr) return;
      // The copy of the vector is needed, because a waiter that is admitted leaves the original.
      for (Waiter* waiter : std::vector<Waiter*>(session->waiters)) {
        const QueuePlace& place = waiter->waiting;
        if (place.age() > age && waiter->chunks[place.watched()] == index) try_again(*waiter);
      }
      return;
    }
    age = next->waiting.age();
    try_again(*next);
  }
}

void Calls::FailNaming(ChunkIndex index, bool only_readers, const absl::Status& why) {
  const AdmissionQueue& waiting = core_.chunks[index].job->waiting;
  uint64_t age = 0;
  while (const AdmissionQueue::Naming* const naming = waiting.NextNaming(index, age)) {
    // Fail() erases the entry, so the age is read first.
    age = naming->waiter->waiting.age();
    if (!only_readers || naming->access == Access::kRead) Fail(*naming->waiter, why);
  }
}

void Calls::On(const TierShrunk& signal) {
  Job* const found = core_.FindJob(signal.job);
  if (found == nullptr) return;
  Job& job = *found;
  const Tier tier = signal.tier;
  // The newest calls fail first. Each that fails gives up its pins, so that older ones may still
  // fit.
  std::vector<Waiter*> newest_first;
  for (auto entry = waiters_.rbegin(); entry != waiters_.rend(); ++entry) {
    Waiter* waiter = entry->second.get();
    if (waiter->job == &job && waiter->tier == tier) newest_first.push_back(waiter);
  }
  const Share& share = job.share(tier);
  const uint32_t limit = job.LeaseLimitOf(
      tier, share.make_later() ? share.slots().backed_slots() : share.most_slots());
  for (Waiter* waiter : newest_first) {
    const bool too_many = waiter->admitted && job.tier(tier).pinned_chunks() > limit;
    if (too_many || core_.chunks.CountRoom(waiter->chunks, tier) > limit) Fail(*waiter, signal.why);
  }
}

void Calls::On(const PromotionFailed& signal) {
  const absl::optional<ChunkIndex> index = core_.chunks.Find(signal.chunk);
  if (!index.has_value()) return;
  if (signal.is_lost) FailNaming(*index, /*only_readers=*/false, signal.why);
  for (Waiter* waiter : std::vector<Waiter*>(core_.chunks[*index].uses().waiters)) {
    Fail(*waiter, signal.why);
  }
  core_.ScheduleChunk(*index);
}

// Requests the leases that are in the way of the waiter. Clients need not comply: then the call
// waits until its deadline.
void Calls::RevokeLeases(Waiter& waiter) {
  const WaitsFor reason = waiter.waiting.reason();
  waiter.revoked_at = core_.now;
  const Job& job = *waiter.job;
  std::map<SessionId, Revoke> revokes;
  const uint32_t limit = job.LeaseLimit(waiter.tier);
  uint32_t wanted = job.tier(waiter.tier).pinned_chunks();
  for (const ChunkIndex index : waiter.chunks) {
    wanted += !core_.chunks[index].pinned() && core_.chunks[index].takes_room_at(waiter.tier);
  }
  if (reason == WaitsFor::kRoom && waiter.tier == job.lease_tier && wanted > limit) {
    for (const SessionId id : job.sessions) {
      // Only the clients know which of their leases are idle, so each of them is sent the whole
      // number.
      if (core_.sessions.Find(id)->leases.value() > 0) revokes[id].count = wanted - limit;
    }
  }
  for (size_t i = 0; reason == WaitsFor::kLease && i < waiter.chunks.size(); ++i) {
    const ChunkIndex index = waiter.chunks[i];
    for (const Pin& pin : core_.chunks[index].uses().pins) {
      // A pending pin and a step part end without the help of a client.
      if (!pin.granted() || pin.session == waiter.session || IsStep(pin.session)) continue;
      std::vector<ChunkId>& chunks = revokes[pin.session].chunks;
      if (chunks.size() < kMaxRevokedChunks) chunks.push_back(core_.ids.IdFor(index, pin.session));
    }
  }
  SendRevokes(std::move(revokes));
}

void Calls::On(const LeasesInTheWay& signal) {
  std::map<SessionId, Revoke> revokes;
  for (const ChunkId chunk : signal.chunks) {
    const absl::optional<ChunkIndex> index = core_.chunks.Find(chunk);
    if (!index.has_value()) continue;
    Uses& uses = uses_[*index];
    if (uses.revoke_sent || !uses.waiters.empty()) continue;
    uses.revoke_sent = true;
    for (const Pin& pin : uses.pins) {
      if (!pin.granted() || IsStep(pin.session)) continue;
      revokes[pin.session].chunks.push_back(core_.ids.IdFor(*index, pin.session));
    }
  }
  SendRevokes(std::move(revokes));
}

void Calls::SendRevokes(std::map<SessionId, Revoke> revokes) {
  for (auto& [session, revoke] : revokes) {
    revoke.session = session;
    ++core_.counters.revokes;
    core_.Emit(std::move(revoke));
  }
}

// Serves only a few fetches, because one event must not examine all that wait.
void Calls::RevokeLeasesAgain(Job& job, Tier tier) {
  Instant& revoked_again_at = job.tier(tier).revoked_again_at;
  if (job.waiting.excluded(tier) == 0 || core_.now - revoked_again_at < kRevokePeriod) return;
  revoked_again_at = core_.now;
  size_t looks = 0;
  for (size_t left = job.waiting.excluded(tier);
       left > 0 && looks < core_.options.limits.chunks_per_call; --left) {
    Waiter& waiter = job.waiting.NextExcluded(tier);
    if (core_.now - waiter.revoked_at < kRevokePeriod) continue;
    looks += waiter.chunks.size();
    RevokeLeases(waiter);
  }
}

}  // namespace memtide
