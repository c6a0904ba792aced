#include "client/lease/lease_monitor.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide::client {

namespace {

thread_local bool is_own_thread = false;  // See CountNoBlockingCalls().

std::vector<ChunkId> ChunksOf(const LeaseCache& cache, absl::Span<const PlaceId> places) {
  std::vector<ChunkId> chunks;
  chunks.reserve(places.size());
  for (const PlaceId place : places) chunks.push_back(cache.chunk(place));
  return chunks;
}

absl::StatusOr<std::vector<ChunkId>> Resolve(const LeaseCache& cache,
                                             absl::Span<const PlaceId> places) {
  for (const PlaceId place : places) {
    if (cache.IsBound(place)) continue;
    return absl::NotFoundError(absl::StrCat("place ", place.value(), " holds no chunk"));
  }
  return ChunksOf(cache, places);
}

// Whether there is work for NextAhead().
bool HasAhead(const LeaseCache& cache, const AccessLog& log, bool reporting) {
  return cache.HasAhead() || (log.WantsReport() && !reporting);
}

}  // namespace

void CountNoBlockingCalls() { is_own_thread = true; }

LeaseMonitor::LeaseMonitor(uint32_t places, const Job& job)
    : cache_({places, job.lease_budget}), log_(job.limits) {
  stats_.slots = job.lease_slots();
}

// --- Leases ---

absl::StatusOr<PendingFetch> LeaseMonitor::Plan(const LeaseRequest& request) {
  PendingFetch pending;
  const MutexLock lock(&mutex_);
  while (true) {
    MEMTIDE_RETURN_IF_ERROR(lost_);
    MEMTIDE_ASSIGN_OR_RETURN(pending.plan, request.is_fault
                                               ? cache_.Fault(request.places[0], request.access)
                                               : cache_.Acquire(request.places, request.access));
    if (pending.plan.next != LeasePlan::Next::kWait) break;
    const Instant start = Now();
    const absl::Status waited = WaitForChange(request.until);
    stats_.waits.all += Now() - start;
    MEMTIDE_RETURN_IF_ERROR(waited);
  }
  const LeasePlan& plan = pending.plan;
  const uint64_t missed = plan.fetch.size() + plan.upgrade.size();
  if (request.is_fault) {
    stats_.faults += plan.fetch.size();
    stats_.upgrades += plan.upgrade.size();
  } else {
    stats_.acquires += request.places.size();
    stats_.acquire_hits += request.places.size() - missed;
  }
  // Hits are recorded as well: the access predictor needs the uses, not the fetches.
  for (const PlaceId place : request.places) log_.Record(cache_.chunk(place), request.access);
  // A hit makes no call, so its moments travel with the next fetch.
  if (plan.next == LeasePlan::Next::kDone) return pending;
  TakeMomentsFor(&pending);
  pending.leased = ChunksOf(cache_, plan.fetch);
  const std::vector<ChunkId> upgraded = ChunksOf(cache_, plan.upgrade);
  pending.leased.insert(pending.leased.end(), upgraded.begin(), upgraded.end());
  pending.released = ChunksOf(cache_, plan.release);
  return pending;
}

void LeaseMonitor::Granted(const LeasePlan& plan, const FetchResult& fetched, Instant began,
                           const Waits& waits, absl::FunctionRef<void()> resume) {
  const MutexLock lock(&mutex_);
  cache_.Granted(plan);
  if (!plan.counts_uses && !plan.is_ahead) {
    // Faulted chunks have no use that keeps them mapped: give them a minimum residency.
    const Instant now = Now();
    for (const PlaceId place : plan.fetch) {
      resident_until_[place] = now + std::min(now - began, kMaxMinResidency);
    }
  }
  cache_.SetEvictionHints(fetched.eviction_hints, fetched.leaving);
  cache_.Released(plan.release);
  stats_.releases += plan.release.size();
  stats_.waits.Add(waits);
  Changed();
  resume();
}

void LeaseMonitor::Refused(const LeasePlan& plan, const Waits& waits) {
  const MutexLock lock(&mutex_);
  cache_.Refused(plan);
  cache_.Released(plan.release);
  stats_.releases += plan.release.size();
  stats_.waits.Add(waits);
  Changed();
}

void LeaseMonitor::Released(absl::Span<const PlaceId> places) {
  const MutexLock lock(&mutex_);
  cache_.Released(places);
  stats_.releases += places.size();
  Changed();
}

absl::Status LeaseMonitor::EndUse(absl::Span<const PlaceId> places) {
  const MutexLock lock(&mutex_);
  absl::Status status = cache_.EndUse(places);
  if (cache_.NeedsReclaim()) reclaim_needed_.Signal();
  return lost_.ok() ? status : lost_;
}

absl::StatusOr<PendingRelease> LeaseMonitor::TakeIdle(
    absl::optional<absl::Span<const PlaceId>> places) {
  PendingRelease pending;
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(EndLeasesAhead());
  if (places.has_value()) {
    MEMTIDE_ASSIGN_OR_RETURN(pending.chunks, Resolve(cache_, *places));
  }
  pending.idle = cache_.TakeIdle(places);
  return pending;
}

absl::StatusOr<PendingRelease> LeaseMonitor::TakeToEvict(absl::Span<const PlaceId> places) {
  PendingRelease pending;
  std::vector<PlaceId> absent;
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(EndLeasesAhead());
  // Leases are taken after all places are checked, so an error changes nothing.
  MEMTIDE_RETURN_IF_ERROR(Resolve(cache_, places).status());
  for (const PlaceId place : places) {
    if (cache_.IsAbsent(place)) absent.push_back(place);
  }
  // No other thread leases them meanwhile. INVALID_ARGUMENT: a place is named twice.
  MEMTIDE_RETURN_IF_ERROR(cache_.BeginEnd(absent).status());
  pending.idle = cache_.TakeIdle(places);
  pending.released = ChunksOf(cache_, pending.idle);
  pending.chunks = ChunksOf(cache_, absent);
  pending.absent = std::move(absent);
  pending.chunks.insert(pending.chunks.end(), pending.released.begin(), pending.released.end());
  return pending;
}

absl::Status LeaseMonitor::EndLeasesAhead() {
  cache_.SetAhead({});
  const uint64_t begun = cache_.counts().plans_ahead;
  while (lost_.ok() && cache_.counts().ended_ahead < begun) changed_.Wait(&mutex_);
  cache_.SetAhead({});  // Its answer has named others.
  return lost_;
}

void LeaseMonitor::AwaitMinResidency(const std::vector<PlaceId>& places) {
  Instant until = Instant::min();
  const MutexLock lock(&mutex_);
  for (const PlaceId place : places) {
    const auto found = resident_until_.find(place);
    if (found == resident_until_.end()) continue;
    until = std::max(until, found->second);
    resident_until_.erase(found);
  }
  // A lost session or shutdown ends the wait: the leases end anyway.
  for (Instant now = Now(); now < until && lost_.ok() && !stopping_; now = Now()) {
    changed_.WaitFor(&mutex_, until - now);
  }
}

// --- Chunks ---

absl::Status LeaseMonitor::CheckRoom(uint32_t count) const {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(lost_);
  return cache_.FindUnbound(count).status();
}

absl::Status LeaseMonitor::CheckUnbound(const std::vector<ChunkId>& chunks) const {
  const MutexLock lock(&mutex_);
  std::set<ChunkId> named;
  for (const ChunkId chunk : chunks) {
    if (named.insert(chunk).second && !cache_.IsBound(chunk)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk.value(), " is bound to a place already, or named twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PlaceRange> LeaseMonitor::Bind(const std::vector<ChunkId>& chunks) {
  const MutexLock lock(&mutex_);
  MEMTIDE_RETURN_IF_ERROR(lost_);
  absl::StatusOr<PlaceRange> range = cache_.FindUnbound(static_cast<uint32_t>(chunks.size()));
  if (range.ok()) cache_.Bind(range->first, chunks);
  return range;
}

void LeaseMonitor::Unbind(PlaceRange range) {
  const MutexLock lock(&mutex_);
  MEMTIDE_CHECK(cache_.BeginEnd(range.places()).ok());
  cache_.Freed(range.places());
}

absl::StatusOr<std::vector<ChunkId>> LeaseMonitor::ChunksAt(
    absl::Span<const PlaceId> places) const {
  const MutexLock lock(&mutex_);
  return Resolve(cache_, places);
}

absl::StatusOr<PendingEnd> LeaseMonitor::BeginEnd(absl::Span<const PlaceId> places) {
  PendingEnd pending;
  const MutexLock lock(&mutex_);
  while (true) {
    MEMTIDE_RETURN_IF_ERROR(lost_);
    MEMTIDE_ASSIGN_OR_RETURN(pending.plan, cache_.BeginEnd(places));
    if (pending.plan.next != LeasePlan::Next::kWait) break;
    MEMTIDE_RETURN_IF_ERROR(WaitForChange(absl::nullopt));
  }
  pending.released = ChunksOf(cache_, pending.plan.release);
  pending.chunks = ChunksOf(cache_, places);
  return pending;
}

void LeaseMonitor::Freed(absl::Span<const PlaceId> places) {
  const MutexLock lock(&mutex_);
  cache_.Freed(places);
  Changed();
}

void LeaseMonitor::Kept(absl::Span<const PlaceId> places, size_t released) {
  const MutexLock lock(&mutex_);
  cache_.Kept(places);
  stats_.releases += released;
  Changed();
}

// --- Moments ---

void LeaseMonitor::BeginMoment(Moment moment) {
  const MutexLock lock(&mutex_);
  log_.Begin(std::move(moment));
  cache_.BeginMoment();
  if (cache_.NeedsReclaim()) reclaim_needed_.Signal();
  if (HasAhead(cache_, log_, reporting_)) ahead_needed_.Signal();
}

void LeaseMonitor::EndIteration() {
  const MutexLock lock(&mutex_);
  log_.EndIteration();
}

std::vector<Moment> LeaseMonitor::TakeMoments() {
  const MutexLock lock(&mutex_);
  if (reporting_) return {};  // They would overtake those that are under way.
  return log_.Take();
}

void LeaseMonitor::TakeMomentsFor(PendingFetch* pending) {
  if (reporting_) return;
  pending->moments = log_.Take();
  pending->reports = reporting_ = !pending->moments.empty();
}

void LeaseMonitor::Ended(const PendingFetch& pending, const ChunksAhead* ahead) {
  const MutexLock lock(&mutex_);
  if (pending.reports) reporting_ = false;
  if (ahead != nullptr) {
    cache_.SetAhead(*ahead);
    const bool some_came = !ahead->reads.empty() || !ahead->writes.empty();
    more_come_ = !ahead->more_come ? 0 : some_came ? 1 : std::min(pending.asks + 1, kMostAsks);
    log_.ReportOften(some_came || more_come_ > 0);
  }
  if (more_come_ > 0 || HasAhead(cache_, log_, reporting_)) ahead_needed_.Signal();
}

// --- Ahead of uses ---

absl::optional<PendingFetch> LeaseMonitor::NextAhead() {
  const MutexLock lock(&mutex_);
  PendingFetch pending;
  while (!stopping_ && (!lost_.ok() || !HasAhead(cache_, log_, reporting_))) {
    if (lost_.ok() && more_come_ > 0) {
      const int asks = more_come_;
      if (!ahead_needed_.WaitFor(&mutex_, kAskAgainAfter * (1 << (asks - 1)))) {
        pending.asks = asks;
        break;
      }
    } else {
      ahead_needed_.Wait(&mutex_);
    }
  }
  if (stopping_) return absl::nullopt;
  more_come_ = 0;
  pending.plan = cache_.PlanAhead();
  pending.leased = ChunksOf(cache_, pending.plan.fetch);
  const std::vector<ChunkId> upgraded = ChunksOf(cache_, pending.plan.upgrade);
  pending.leased.insert(pending.leased.end(), upgraded.begin(), upgraded.end());
  TakeMomentsFor(&pending);
  return pending;
}

// --- News from the daemon ---

void LeaseMonitor::Revoke(const Revocation& revocation) {
  const MutexLock lock(&mutex_);
  cache_.Revoke(revocation.chunks, revocation.additional);
  reclaim_needed_.Signal();
}

void LeaseMonitor::SetSoftBudget(const LeaseBudget& budget) {
  const MutexLock lock(&mutex_);
  cache_.limits().SetSoftBudget(std::max<uint32_t>(1, budget.leases), budget.max_in_use);
  stats_.slots = budget.slots;
  Changed();
  reclaim_needed_.Signal();
}

void LeaseMonitor::SetShare(const DeviceShare& share, absl::optional<RegionId> gone) {
  const MutexLock lock(&mutex_);
  if (gone.has_value()) gone_.push_back(*gone);
  cache_.limits().SetBudget(std::max<uint32_t>(1, share.lease_budget));
  stats_.slots = share.device_slots;
  Changed();
  reclaim_needed_.Signal();
}

void LeaseMonitor::FailWith(const absl::Status& reason) {
  const MutexLock lock(&mutex_);
  if (lost_.ok()) lost_ = reason;
  Changed();
}

absl::Status LeaseMonitor::lost() const {
  const MutexLock lock(&mutex_);
  return lost_;
}

// --- Reclaim ---

absl::optional<Reclaim> LeaseMonitor::NextReclaim() {
  const MutexLock lock(&mutex_);
  // In a lost session there is nothing to release: the thread waits for Stop().
  while (!stopping_ && (!lost_.ok() || (gone_.empty() && !cache_.NeedsReclaim()))) {
    reclaim_needed_.Wait(&mutex_);
  }
  if (stopping_) return absl::nullopt;
  Reclaim reclaim;
  reclaim.regions.swap(gone_);
  reclaim.places = cache_.TakeRevoked();
  const std::vector<PlaceId> ahead = cache_.TakeForHeadroom();
  reclaim.places.insert(reclaim.places.end(), ahead.begin(), ahead.end());
  return reclaim;
}

void LeaseMonitor::Stop() {
  const MutexLock lock(&mutex_);
  stopping_ = true;
  reclaim_needed_.SignalAll();
  ahead_needed_.SignalAll();
}

void LeaseMonitor::AwaitChange(Duration most) {
  const MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, most);
}

absl::Status LeaseMonitor::WaitForChange(absl::optional<Instant> until) {
  if (!until.has_value()) {
    changed_.Wait(&mutex_);
    return absl::OkStatus();
  }
  if (*until == Instant::min()) {
    return absl::UnavailableError("another thread is fetching or releasing a chunk");
  }
  const Duration left = *until - Now();
  if (left <= Duration::zero()) {
    return absl::DeadlineExceededError(
        "a chunk that another thread fetches or releases was not available in time");
  }
  changed_.WaitFor(&mutex_, left);
  return absl::OkStatus();
}

void LeaseMonitor::Changed() {
  changed_.SignalAll();
  if (cache_.NeedsReclaim()) reclaim_needed_.Signal();
  if (HasAhead(cache_, log_, reporting_)) ahead_needed_.Signal();
}

// --- Counters ---

void LeaseMonitor::CountCall() {
  const MutexLock lock(&mutex_);
  ++stats_.calls;
  if (!is_own_thread) ++stats_.blocking_calls;
}

LeaseStats LeaseMonitor::stats() const {
  const MutexLock lock(&mutex_);
  LeaseStats stats = stats_;
  const LeaseCache::Counts counts = cache_.counts();
  stats.chunks = counts.bound;
  stats.leases_held = counts.held;
  stats.leases_in_use = counts.in_use;
  stats.lease_budget = counts.budget;
  return stats;
}

}  // namespace memtide::client
