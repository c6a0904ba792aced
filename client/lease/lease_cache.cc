#include "client/lease/lease_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide::client {
namespace {

std::string Name(PlaceId place) { return absl::StrCat("place ", place.value()); }

}  // namespace

LeaseCache::LeaseCache(const Options& options)
    : limits_(options.budget), entries_(options.places), idle_(options.places) {
  MEMTIDE_CHECK(options.places > 0);
}

bool LeaseCache::IsRecent(uint32_t place) const {
  return std::find(std::begin(recent_), std::end(recent_), place) != std::end(recent_);
}

// --- Chunks and places ---

absl::StatusOr<PlaceRange> LeaseCache::FindUnbound(uint32_t count) const {
  uint32_t run = 0;
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    run = entries_[i].state == State::kUnbound ? run + 1 : 0;
    if (run == count && count > 0) return PlaceRange{PlaceId(i + 1 - count), count};
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the address range of ", entries_.size(), " places has no ", count,
                   " consecutive free ones: free chunks, or open with more address_bytes"));
}

void LeaseCache::Bind(PlaceId first, absl::Span<const ChunkId> chunks) {
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    Entry& entry = entries_[first.value() + i];
    MEMTIDE_CHECK(entry.state == State::kUnbound) << Name(first);
    entry.state = State::kAbsent;
    entry.chunk = chunks[i];
    places_[chunks[i]] = first.value() + i;
  }
  bound_ += chunks.size();
}

absl::StatusOr<LeasePlan> LeaseCache::BeginEnd(absl::Span<const PlaceId> places) {
  // All places are checked before any is marked, so an error changes nothing.
  LeasePlan plan;
  ++stamp_;
  for (const PlaceId place : places) {
    if (absl::Status status = CheckNamed(place); !status.ok()) return status;
    if (IsMoving(at(place).state)) plan.next = LeasePlan::Next::kWait;
    if (at(place).uses > 0 && !at(place).is_ahead) {
      return absl::FailedPreconditionError(
          absl::StrCat(Name(place), " is in use (", at(place).uses, " uses): release it first"));
    }
  }
  if (plan.next == LeasePlan::Next::kWait) return plan;
  plan.next = LeasePlan::Next::kFetch;
  for (const PlaceId place : places) {
    if (IsHeld(at(place).state)) {
      MarkReleasing(place.value(), &plan.release);
    } else {
      at(place).state = State::kReleasing;
      ++moving_;
    }
  }
  return plan;
}

void LeaseCache::Freed(absl::Span<const PlaceId> places) {
  Kept(places);
  for (const PlaceId place : places) {
    at(place).state = State::kUnbound;
    places_.erase(at(place).chunk);
  }
  bound_ -= static_cast<uint32_t>(places.size());
}

void LeaseCache::Kept(absl::Span<const PlaceId> places) {
  for (const PlaceId place : places) {
    MEMTIDE_CHECK(at(place).state == State::kReleasing) << Name(place);
    at(place).state = State::kAbsent;
  }
  moving_ -= static_cast<uint32_t>(places.size());
}

bool LeaseCache::IsBound(PlaceId place) const {
  return place.value() < entries_.size() && entries_[place.value()].state != State::kUnbound;
}

bool LeaseCache::IsAbsent(PlaceId place) const {
  return IsBound(place) && entries_[place.value()].state == State::kAbsent;
}

ChunkId LeaseCache::chunk(PlaceId place) const {
  MEMTIDE_CHECK(IsBound(place)) << Name(place);
  return entries_[place.value()].chunk;
}

// --- Leases ---

absl::Status LeaseCache::CheckNamed(PlaceId place) {
  if (!IsBound(place)) return absl::NotFoundError(absl::StrCat(Name(place), " holds no chunk"));
  if (at(place).stamp == stamp_) {
    return absl::InvalidArgumentError(absl::StrCat(Name(place), " is named twice"));
  }
  at(place).stamp = stamp_;
  return absl::OkStatus();
}

absl::Status LeaseCache::CheckWanted(absl::Span<const PlaceId> places) {
  ++stamp_;
  for (const PlaceId place : places) {
    if (absl::Status status = CheckNamed(place); !status.ok()) return status;
    at(place).moment = moment_;
  }
  if (places.size() > limits_.most_per_acquire()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(places.size(), " chunks cannot be in use at once: this session may lease ",
                     limits_.most_per_acquire(),
                     " (lease_budget); acquire fewer at a time, or give the job a larger share"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LeasePlan> LeaseCache::Acquire(absl::Span<const PlaceId> places, Access access) {
  if (absl::Status status = CheckWanted(places); !status.ok()) return status;
  // A wait could last for ever, because the caller itself may hold the uses: so this is an error.
  if (limits_.most_in_use() != LeaseLimits::kNone &&
      in_use() - upgraded_ahead_ + places.size() > limits_.most_in_use()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(places.size(), " chunks cannot be in use beside the ", in_use(),
                     " that are in use: other jobs leave this session ", limits_.most_in_use(),
                     " leases; acquire fewer at a time"));
  }
  return MakePlan(places, access);
}

absl::StatusOr<LeasePlan> LeaseCache::Fault(PlaceId place, Access access) {
  if (absl::Status status = CheckWanted({&place, 1}); !status.ok()) return status;
  LeasePlan plan = MakePlan({&place, 1}, access);
  if (plan.next == LeasePlan::Next::kWait) return plan;
  plan.counts_uses = false;
  if (!IsRecent(place.value())) {
    std::copy_backward(recent_, recent_ + kRecentFaults - 1, recent_ + kRecentFaults);
    recent_[0] = place.value();
  }
  // MakePlan counted a use for a hit, but a fault counts none.
  if (plan.next == LeasePlan::Next::kDone) DropUse(place);
  return plan;
}

LeasePlan LeaseCache::MakePlan(absl::Span<const PlaceId> places, Access access) {
  LeasePlan plan;
  plan.access = access;
  uint32_t absent = 0;
  uint32_t readable = 0;
  for (const PlaceId place : places) {
    const State state = at(place).state;
    // Another caller's plan decides what becomes of the place, so this request is planned again
    // after it.
    if (IsMoving(state)) {
      plan.next = LeasePlan::Next::kWait;
      return plan;
    }
    absent += state == State::kAbsent ? 1 : 0;
    readable += state == State::kReading ? 1 : 0;
  }
  const bool upgrades = access == Access::kWrite && readable > 0;
  if (absent == 0 && !upgrades) {
    for (const PlaceId place : places) AddUse(place);
    return plan;
  }
  plan.next = LeasePlan::Next::kFetch;
  // Charge first: leases that other plans are fetching count as held.
  const uint32_t wanted = held_ + leasing_ + absent;
  const uint32_t most = limits_.MostHeld(in_use());
  if (wanted > most) {
    plan.release = TakeOldest(wanted - most, Recent::kLast);
    // If there is too little room even after the releases, the fetch waits for other users, and the
    // releases must not wait with it.
    plan.release_first = wanted - plan.release.size() > most;
  }
  for (const PlaceId place : places) {
    Entry& entry = at(place);
    if (entry.state == State::kAbsent) {
      entry.state = State::kLeasing;
      ++leasing_;
      ++moving_;
      plan.fetch.push_back(place);
    } else {
      ReserveUse(place);
      if (entry.state == State::kReading && access == Access::kWrite) {
        entry.state = State::kUpgrading;
        ++moving_;
        plan.upgrade.push_back(place);
      } else {
        plan.hits.push_back(place);
      }
    }
  }
  return plan;
}

void LeaseCache::Granted(const LeasePlan& plan) {
  if (plan.is_ahead) EndAhead(plan);
  for (const PlaceId place : plan.fetch) {
    Entry& entry = at(place);
    MEMTIDE_CHECK(entry.state == State::kLeasing) << Name(place);
    entry.state = plan.access == Access::kWrite ? State::kWriting : State::kReading;
    --leasing_;
    --moving_;
    ++held_;
    // A held lease without a use is in the idle list, so it enters the list before it gets its use.
    idle_.PushNewest(place.value());
    AddUse(place);
    if (!plan.counts_uses) DropUse(place);
  }
  for (const PlaceId place : plan.upgrade) {
    MEMTIDE_CHECK(at(place).state == State::kUpgrading) << Name(place);
    at(place).state = State::kWriting;
    --moving_;
    ConfirmUse(place);
    if (!plan.counts_uses) DropUse(place);
  }
  for (const PlaceId place : plan.hits) ConfirmUse(place);
}

void LeaseCache::Refused(const LeasePlan& plan) {
  if (plan.is_ahead) EndAhead(plan);
  for (const PlaceId place : plan.fetch) {
    MEMTIDE_CHECK(at(place).state == State::kLeasing) << Name(place);
    at(place).state = State::kAbsent;
    revoked_places_.erase(place.value());  // Nothing is leased, so nothing is left to revoke.
    --leasing_;
    --moving_;
  }
  for (const PlaceId place : plan.upgrade) {
    MEMTIDE_CHECK(at(place).state == State::kUpgrading) << Name(place);
    at(place).state = State::kReading;
    --moving_;
    ConfirmUse(place);
    DropUse(place);
  }
  for (const PlaceId place : plan.hits) {
    ConfirmUse(place);
    DropUse(place);
  }
}

void LeaseCache::Released(absl::Span<const PlaceId> places) {
  for (const PlaceId place : places) {
    MEMTIDE_CHECK(at(place).state == State::kReleasing) << Name(place);
    at(place).state = State::kAbsent;
  }
  moving_ -= places.size();
}

void LeaseCache::AddUse(PlaceId place) {
  Entry& entry = at(place);
  if (entry.uses++ == 0) idle_.Remove(place.value());
}

void LeaseCache::ReserveUse(PlaceId place) {
  AddUse(place);
  ++at(place).reserved;
}

void LeaseCache::ConfirmUse(PlaceId place) {
  MEMTIDE_CHECK(at(place).reserved > 0) << Name(place);
  --at(place).reserved;
}

void LeaseCache::DropUse(PlaceId place) {
  Entry& entry = at(place);
  MEMTIDE_CHECK(entry.uses > 0) << Name(place);
  if (--entry.uses == 0) idle_.PushNewest(place.value());
}

absl::Status LeaseCache::EndUse(absl::Span<const PlaceId> places) {
  ++stamp_;
  for (const PlaceId place : places) {
    if (!IsBound(place)) return absl::NotFoundError(absl::StrCat(Name(place), " holds no chunk"));
    if (at(place).stamp == stamp_) {
      return absl::InvalidArgumentError(absl::StrCat(Name(place), " is named twice"));
    }
    at(place).stamp = stamp_;
    // Reserved uses belong to plans of other callers, so this caller must not end them.
    if (at(place).uses == at(place).reserved) {
      return absl::FailedPreconditionError(absl::StrCat(Name(place), " is not in use"));
    }
  }
  for (const PlaceId place : places) DropUse(place);
  return absl::OkStatus();
}

LeaseCache::Counts LeaseCache::counts() const {
  Counts counts;
  counts.budget = limits_.budget();
  counts.bound = bound_;
  counts.held = held_;
  counts.in_use = in_use();
  counts.idle = idle_.size();
  counts.moving = moving_;
  counts.plans_ahead = plans_ahead_;
  counts.ended_ahead = ended_ahead_;
  return counts;
}

void LeaseCache::CheckInvariants() const {
  Counts seen;
  uint32_t leasing = 0;
  for (const Entry& entry : entries_) {
    seen.bound += entry.state != State::kUnbound ? 1 : 0;
    seen.held += IsHeld(entry.state) ? 1 : 0;
    seen.idle += entry.IsIdle() ? 1 : 0;
    seen.moving += IsMoving(entry.state) ? 1 : 0;
    leasing += entry.state == State::kLeasing ? 1 : 0;
    MEMTIDE_CHECK(entry.uses == 0 || IsHeld(entry.state));
    MEMTIDE_CHECK(entry.reserved <= entry.uses);
    MEMTIDE_CHECK(entry.state != State::kUpgrading || entry.reserved > 0);
  }
  MEMTIDE_CHECK(seen.bound == bound_) << seen.bound << " " << bound_;
  MEMTIDE_CHECK(seen.held == held_) << seen.held << " " << held_;
  MEMTIDE_CHECK(seen.idle == idle_.size()) << seen.idle << " " << idle_.size();
  MEMTIDE_CHECK(seen.moving == moving_) << seen.moving << " " << moving_;
  MEMTIDE_CHECK(leasing == leasing_) << leasing << " " << leasing_;
  uint32_t listed = 0;
  for (uint32_t place = idle_.oldest(); place != kNone; place = idle_.NewerThan(place)) {
    MEMTIDE_CHECK(entries_[place].IsIdle()) << "place " << place;
    ++listed;
  }
  MEMTIDE_CHECK(listed == idle_.size()) << listed << " " << idle_.size();
}

}  // namespace memtide::client
