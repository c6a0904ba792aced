// Admission: which fetches and steps may pin their chunks, and in which order.
//
// A fetch is admitted when no lease excludes it and its pins fit into the tier. A fetch that is not
// admitted watches one of its chunks: one whose lease excludes it, or one that is not pinned if the
// fetch lacks room. It is tried again when the pins of that chunk change, so that the end of a
// lease costs no look at fetches that wait for something else.
//
// Fetches that lack room are tried oldest first. Those behind the first that does not fit are not
// tried, unless other calls have pinned all of their chunks meanwhile. A waiting step does not
// block later calls, because they may hold leases that the step needs. Whether a step may fit is
// known from counters, without a look at its chunks.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/engine/state.h"

namespace memtide {

absl::Status EngineState::CheckWaiting(const Session& session, size_t chunks) const {
  const Limits& limits = options_.limits;
  const Job& job = *session.job;
  if (session.waiting_calls.value() >= limits.waiting_calls_per_session) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session has its limit of ", limits.waiting_calls_per_session,
                     " waiting calls; wait for some of them first"));
  }
  if (job.waiting_calls.value() >= limits.waiting_calls_per_job) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the job's sessions have its limit of ", limits.waiting_calls_per_job,
                     " waiting calls (waiting_calls_per_job); wait for some of them first"));
  }
  if (job.waiting_chunks.value() + chunks > limits.waiting_chunks_per_job) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the job's waiting calls name ", job.waiting_chunks.value(), " chunks; with these ", chunks,
        " they would be more than ", limits.waiting_chunks_per_job,
        " (waiting_chunks_per_job); wait for some of them first, or name fewer chunks"));
  }
  return absl::OkStatus();
}

bool EngineState::Conflicts(const Chunk& chunk, const Waiter& waiter, Access access) const {
  for (const Pin& pin : chunk.pins) {
    // A chunk is leased at one tier at a time, even by one session.
    if (chunk.pin_tier != waiter.tier) return true;
    if (pin.session == waiter.session) continue;
    if (access == Access::kWrite) return true;
    if (pin.granted() && pin.access == Access::kWrite) return true;
    if (pin.pending > 0 && pin.pending_access == Access::kWrite) return true;
  }
  return false;
}

bool EngineState::ConflictsWhereItWatches(const Waiter& waiter) const {
  return Conflicts(chunks_[waiter.chunks[waiter.watched]], waiter, waiter.AccessOf(waiter.watched));
}

bool EngineState::Fits(const Waiter& waiter, uint32_t pins) const {
  if (pins == 0) return true;
  const Job& job = *waiter.job;
  const TierShare& share = job.tier(waiter.tier);
  // A share that shrinks may have more leases than it permits. They stay.
  if (share.pinned_chunks() + pins > job.LeaseLimit(waiter.tier)) return false;
  // The balloon deflates only for a call that cannot otherwise proceed, never to run a second step
  // beside another: steps can go one by one.
  const bool spares = waiter.runs_step() && job.steps.value() > 0;
  return !spares || share.pinned_chunks() + pins <= share.slots->size();
}

bool EngineState::MayFit(const Waiter& waiter) const {
  // Each pin since then may be of one of its chunks.
  const uint64_t since = waiter.job->tier(waiter.tier).pins_made - waiter.pins_before;
  return Fits(waiter,
              waiter.new_pins - static_cast<uint32_t>(std::min<uint64_t>(since, waiter.new_pins)));
}

EngineState::Admission EngineState::TryAdmit(Waiter& waiter, bool may_take_room) {
  Job& job = *waiter.job;
  waiter.new_pins = 0;
  waiter.pins_before = job.tier(waiter.tier).pins_made;
  const uint32_t count = static_cast<uint32_t>(waiter.chunks.size());
  for (uint32_t i = 0; i < count; ++i) {
    ++counters_.admission_looks;
    const Chunk& chunk = chunks_[waiter.chunks[i]];
    const Access access = waiter.AccessOf(i);
    const bool torn = chunk.copies.torn && access == Access::kRead;
    if (torn || Conflicts(chunk, waiter, access)) {
      waiter.watched = i;
      return torn ? Admission::kTorn : Admission::kConflict;
    }
    if (chunk.pinned()) continue;
    if (++waiter.new_pins == 1) waiter.watched = i;
    if (!may_take_room) return Admission::kNoRoom;
  }
  if (!Fits(waiter, waiter.new_pins)) return Admission::kNoRoom;
  waiter.admitted = true;
  if (waiter.runs_step()) waiter.step = job.steps.Take();
  for (size_t i = 0; i < waiter.chunks.size(); ++i)
    PinChunk(waiter, waiter.chunks[i], waiter.AccessOf(i));
  return Admission::kAdmitted;
}

void EngineState::PinChunk(Waiter& waiter, ChunkIndex index, Access access) {
  Chunk& chunk = chunks_[index];
  chunk.evicted = false;
  if (waiter.runs_step() && access == Access::kWrite) chunk.overwrite = true;
  if (!chunk.pinned()) {
    chunk.pin_tier = waiter.tier;
    ++waiter.job->tier(waiter.tier).pins_made;
    PinsChanged(index);
  }
  Pin* pin = chunk.FindPin(waiter.session);
  if (pin == nullptr) {
    chunk.pins.emplace_back(waiter.session);
    pin = &chunk.pins.back();
  }
  if (pin->pending == 0 || access == Access::kWrite) pin->pending_access = access;
  ++pin->pending;
  if (!chunk.valid_at(waiter.tier)) {
    ++waiter.missing;
    chunk.waiters.push_back(&waiter);
    ScheduleChunk(index);
  } else if (chunk.evict_from.has_value()) {
    ScheduleChunk(index);  // The copy stays: another victim must be chosen.
  }
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) UpdateVictim(index, tier);
}

void EngineState::Watch(Waiter& waiter, Admission why) {
  waiter.excluded = why == Admission::kConflict;
  waiter.job->tier(waiter.tier).queue_of(waiter).emplace(waiter.age, &waiter);
  waiter.job->watching.emplace(std::make_pair(waiter.chunks[waiter.watched], waiter.age), &waiter);
}

void EngineState::Unwatch(Waiter& waiter) {
  waiter.job->tier(waiter.tier).queue_of(waiter).erase(waiter.age);
  waiter.job->watching.erase({waiter.chunks[waiter.watched], waiter.age});
}

void EngineState::WaitForAdmission(Waiter& waiter, Admission why) {
  MEMTIDE_CHECK(why != Admission::kAdmitted && why != Admission::kTorn);
  waiter.age = ++waits_;
  for (size_t i = 0; i < waiter.chunks.size(); ++i) {
    waiter.job->naming.emplace(std::make_pair(waiter.chunks[i], waiter.age),
                               Naming{&waiter, waiter.AccessOf(i)});
  }
  Watch(waiter, why);
  RevokeLeases(waiter, why);
}

void EngineState::StopWaiting(Waiter& waiter) {
  if (waiter.age == 0) return;  // The fetch never waited.
  Unwatch(waiter);
  for (const ChunkIndex index : waiter.chunks) waiter.job->naming.erase({index, waiter.age});
}

void EngineState::PinsChanged(ChunkIndex index) {
  Job& job = *chunks_[index].job;
  if (job.watching.empty()) return;
  const auto first = job.watching.lower_bound({index, 0});
  if (first == job.watching.end() || first->first.first != index) return;
  job.changed.push_back(index);
  for (const Tier tier : {Tier::kDevice, Tier::kHost}) ScheduleRoomCheck(job, tier);
}

EngineState::Admission EngineState::TryAgain(Waiter& waiter) {
  const auto& queue = waiter.job->tier(waiter.tier).fetches_for_room;
  const bool is_oldest = queue.empty() || queue.begin()->first >= waiter.age;
  Unwatch(waiter);
  const Admission admission = TryAdmit(waiter, is_oldest);
  if (admission == Admission::kNoRoom || admission == Admission::kConflict) {
    Watch(waiter, admission);
    // Fetches that lack room revoke leases only when they are the oldest.
    const bool excluded = admission == Admission::kConflict;
    if (excluded && now_ - waiter.revoked_at >= kRevokePeriod) RevokeLeases(waiter, admission);
    return admission;
  }
  for (const ChunkIndex index : waiter.chunks) waiter.job->naming.erase({index, waiter.age});
  waiter.age = 0;
  if (admission == Admission::kTorn) {
    Fail(waiter, Lost(waiter.chunks[waiter.watched]));
  } else if (waiter.missing == 0) {
    Proceed(waiter);
  }
  return admission;
}

void EngineState::AdmitWaiting(Job& job, Tier tier) {
  AdmitOldest(job, tier);
  while (!job.changed.empty()) {
    const ChunkIndex index = job.changed.back();
    job.changed.pop_back();
    AdmitWatching(job, index);
  }
  RevokeLeasesAgain(job, tier);
}

void EngineState::AdmitOldest(Job& job, Tier tier) {
  TierShare& share = job.tier(tier);
  const auto lacks_room = [this](Waiter& waiter) {
    if (MayFit(waiter) && TryAgain(waiter) != Admission::kNoRoom) return false;
    if (now_ - waiter.revoked_at >= kRevokePeriod) RevokeLeases(waiter, Admission::kNoRoom);
    return true;
  };
  for (uint64_t last_step = 0;;) {
    const auto step = share.steps_for_room.upper_bound(last_step);
    const auto oldest = share.fetches_for_room.begin();
    const bool has_step = step != share.steps_for_room.end();
    const bool has_fetch = oldest != share.fetches_for_room.end();
    if (has_step && (!has_fetch || step->first < oldest->first)) {
      last_step = step->first;
      lacks_room(*step->second);
    } else if (!has_fetch || lacks_room(*oldest->second)) {
      return;
    }
  }
}

void EngineState::AdmitWatching(Job& job, ChunkIndex index) {
  const auto try_again = [this](Waiter& waiter) {
    ++counters_.admission_looks;
    const ChunkIndex watched = waiter.chunks[waiter.watched];
    const bool waits =
        waiter.excluded ? ConflictsWhereItWatches(waiter) : !chunks_[watched].pinned();
    if (!waits) TryAgain(waiter);
  };
  for (uint64_t age = 0;;) {
    const auto next = job.watching.upper_bound({index, age});
    if (next == job.watching.end() || next->first.first != index) return;
    const absl::optional<SessionId> writer = chunks_[index].Writer();
    if (writer.has_value()) {
      // The writer excludes all other calls, so only its own need a look.
      const Session* const session = sessions_.Find(*writer);
      if (session == nullptr) return;
      for (Waiter* waiter : std::vector<Waiter*>(session->waiters)) {
        if (waiter->age > age && waiter->chunks[waiter->watched] == index) try_again(*waiter);
      }
      return;
    }
    age = next->first.second;
    try_again(*next->second);
  }
}

void EngineState::FailNaming(ChunkIndex index, bool only_readers, const absl::Status& why) {
  Job& job = *chunks_[index].job;
  for (uint64_t age = 0;;) {
    const auto next = job.naming.upper_bound({index, age});
    if (next == job.naming.end() || next->first.first != index) return;
    age = next->first.second;
    if (!only_readers || next->second.access == Access::kRead) Fail(*next->second.waiter, why);
  }
}

void EngineState::RevokeLeases(Waiter& waiter, Admission why) {
  waiter.revoked_at = now_;
  const Job& job = *waiter.job;
  std::map<SessionId, Revoke> revokes;
  const uint32_t limit = job.LeaseLimit(waiter.tier);
  uint32_t wanted = job.tier(waiter.tier).pinned_chunks();
  for (const ChunkIndex index : waiter.chunks) wanted += !chunks_[index].pinned();
  if (why == Admission::kNoRoom && waiter.tier == job.work && wanted > limit) {
    for (const SessionId id : job.sessions) {
      if (sessions_.Find(id)->leases.value() > 0) revokes[id].count = wanted - limit;
    }
  }
  for (size_t i = 0; why == Admission::kConflict && i < waiter.chunks.size(); ++i) {
    const ChunkIndex index = waiter.chunks[i];
    for (const Pin& pin : chunks_[index].pins) {
      if (!pin.granted() || pin.session == waiter.session || IsStep(pin.session)) continue;
      std::vector<ChunkId>& chunks = revokes[pin.session].chunks;
      if (chunks.size() < kMaxRevokedChunks) chunks.push_back(IdOf(index));
    }
  }
  for (auto& [session, revoke] : revokes) {
    revoke.session = session;
    ++counters_.revokes;
    Emit(std::move(revoke));
  }
}

// Serves only a few fetches, because one event must not examine all that wait.
void EngineState::RevokeLeasesAgain(Job& job, Tier tier) {
  TierShare& share = job.tier(tier);
  if (share.excluded.empty() || now_ - share.revoked_again_at < kRevokePeriod) return;
  share.revoked_again_at = now_;
  size_t looks = 0;
  for (size_t left = share.excluded.size(); left > 0 && looks < options_.limits.chunks_per_call;
       --left) {
    auto next = share.excluded.upper_bound(share.last_revoked);
    if (next == share.excluded.end()) next = share.excluded.begin();
    share.last_revoked = next->first;
    Waiter& waiter = *next->second;
    if (now_ - waiter.revoked_at < kRevokePeriod) continue;
    looks += waiter.chunks.size();
    RevokeLeases(waiter, Admission::kConflict);
  }
}

}  // namespace memtide
