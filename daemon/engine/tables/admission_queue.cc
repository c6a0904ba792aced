#include "daemon/engine/tables/admission_queue.h"

#include "base/check.h"
#include "daemon/engine/tables/pending_calls.h"

namespace memtide {

AdmissionQueue::~AdmissionQueue() { MEMTIDE_CHECK(watching_.empty()) << "a call outlives its job"; }

AdmissionQueue::ByAge& AdmissionQueue::QueueOf(const Waiter& waiter) {
  Queues& queues = at(waiter.tier);
  if (waiter.waiting.reason() == WaitsFor::kLease) return queues.excluded;
  return waiter.runs_step() ? queues.steps_for_room : queues.fetches_for_room;
}

// The call is entered under each chunk that it names, and watches only one of them: a lease that
// ends wakes the calls that wait for that very chunk.
void AdmissionQueue::Add(Waiter& waiter, uint32_t watched, WaitsFor reason) {
  MEMTIDE_CHECK(waiter.waiting.calls_ == nullptr) << "the call waits already";
  waiter.waiting.calls_ = this;
  waiter.waiting.waiter_ = &waiter;
  waiter.waiting.age_ = ++last_age_;
  ++at(waiter.tier).sizes[waiter.chunks.size()];
  for (size_t i = 0; i < waiter.chunks.size(); ++i) {
    naming_.emplace(std::make_pair(waiter.chunks[i], last_age_),
                    Naming{&waiter, waiter.AccessOf(i)});
  }
  Enter(waiter, watched, reason);
}

void AdmissionQueue::Watch(Waiter& waiter, uint32_t watched, WaitsFor reason) {
  MEMTIDE_CHECK(waiter.waiting.calls_ == this) << "the call does not wait";
  Unwatch(waiter);
  Enter(waiter, watched, reason);
}

void AdmissionQueue::Enter(Waiter& waiter, uint32_t watched, WaitsFor reason) {
  waiter.waiting.watched_ = watched;
  waiter.waiting.reason_ = reason;
  const uint64_t age = waiter.waiting.age();
  QueueOf(waiter).emplace(age, &waiter);
  watching_.emplace(std::make_pair(waiter.chunks[watched], age), &waiter);
}

// Finds the call by its present chunk and reason, so it runs before Enter() changes them.
void AdmissionQueue::Unwatch(Waiter& waiter) {
  const uint64_t age = waiter.waiting.age();
  QueueOf(waiter).erase(age);
  watching_.erase({waiter.chunks[waiter.waiting.watched()], age});
}

void AdmissionQueue::Remove(Waiter& waiter) {
  Unwatch(waiter);
  for (const ChunkIndex index : waiter.chunks) naming_.erase({index, waiter.waiting.age()});
  std::map<size_t, size_t>& sizes = at(waiter.tier).sizes;
  const auto size = sizes.find(waiter.chunks.size());
  if (--size->second == 0) sizes.erase(size);
  waiter.waiting.calls_ = nullptr;
  waiter.waiting.age_ = 0;
}

// Age 0 is below all ages, so the search begins with the oldest call.
bool AdmissionQueue::NoteIfWatched(ChunkIndex index) {
  if (NextWatching(index, 0) == nullptr) return false;
  changed_.push_back(index);
  return true;
}

absl::optional<ChunkIndex> AdmissionQueue::TakeChanged() {
  if (changed_.empty()) return absl::nullopt;
  const ChunkIndex index = changed_.back();
  changed_.pop_back();
  return index;
}

Waiter* AdmissionQueue::NextWatching(ChunkIndex index, uint64_t age) const {
  const auto next = watching_.upper_bound({index, age});
  return next != watching_.end() && next->first.first == index ? next->second : nullptr;
}

const AdmissionQueue::Naming* AdmissionQueue::NextNaming(ChunkIndex index, uint64_t age) const {
  const auto next = naming_.upper_bound({index, age});
  return next != naming_.end() && next->first.first == index ? &next->second : nullptr;
}

Waiter* AdmissionQueue::NextStepForRoom(Tier tier, uint64_t age) const {
  const auto next = at(tier).steps_for_room.upper_bound(age);
  return next != at(tier).steps_for_room.end() ? next->second : nullptr;
}

Waiter* AdmissionQueue::OldestFetchForRoom(Tier tier) const {
  const ByAge& fetches = at(tier).fetches_for_room;
  return fetches.empty() ? nullptr : fetches.begin()->second;
}

Waiter& AdmissionQueue::NextExcluded(Tier tier) {
  Queues& queues = at(tier);
  MEMTIDE_CHECK(!queues.excluded.empty());
  auto next = queues.excluded.upper_bound(queues.last_excluded);
  // The search starts anew with the oldest call. RevokeLeasesAgain() serves a few calls an event,
  // so that each has its turn.
  if (next == queues.excluded.end()) next = queues.excluded.begin();
  queues.last_excluded = next->first;
  return *next->second;
}

// A call that is excluded now will need its room, too.
uint32_t AdmissionQueue::LargestAt(Tier tier) const {
  const std::map<size_t, size_t>& sizes = at(tier).sizes;
  return sizes.empty() ? 0 : static_cast<uint32_t>(sizes.rbegin()->first);
}

void AdmissionQueue::CheckInvariants() const {
  MEMTIDE_CHECK(changed_.empty()) << "a change was not taken";
  size_t named = 0, queued = 0;
  for (const auto& [key, waiter] : watching_) {
    const QueuePlace& place = waiter->waiting;
    MEMTIDE_CHECK(place.calls_ == this && place.waiter_ == waiter);
    MEMTIDE_CHECK(key == std::make_pair(waiter->chunks[place.watched()], place.age()));
    MEMTIDE_CHECK(place.age() > 0 && place.age() <= last_age_);
    for (size_t i = 0; i < waiter->chunks.size(); ++i) {
      const auto naming = naming_.find({waiter->chunks[i], place.age()});
      MEMTIDE_CHECK(naming != naming_.end() && naming->second.waiter == waiter &&
                    naming->second.access == waiter->AccessOf(i));
    }
    named += waiter->chunks.size();
  }
  MEMTIDE_CHECK(naming_.size() == named);
  for (const Tier tier : kAllTiers) {
    const Queues& queues = at(tier);
    std::map<size_t, size_t> sizes;
    const auto check = [&](const ByAge& calls, WaitsFor reason, bool steps, bool fetches) {
      for (const auto& [age, waiter] : calls) {
        MEMTIDE_CHECK(waiter->waiting.calls_ == this && waiter->waiting.age() == age);
        MEMTIDE_CHECK(waiter->tier == tier && waiter->waiting.reason() == reason);
        MEMTIDE_CHECK(waiter->runs_step() ? steps : fetches);
        ++sizes[waiter->chunks.size()];
      }
      queued += calls.size();
    };
    check(queues.fetches_for_room, WaitsFor::kRoom, false, true);
    check(queues.steps_for_room, WaitsFor::kRoom, true, false);
    check(queues.excluded, WaitsFor::kLease, true, true);
    MEMTIDE_CHECK(queues.sizes == sizes);
  }
  MEMTIDE_CHECK(watching_.size() == queued);
}

}  // namespace memtide
