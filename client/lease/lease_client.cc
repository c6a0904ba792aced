#include "client/lease/lease_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide::client {

LeaseClient::LeaseClient(uint32_t places, const Job& job, DaemonSession* session,
                         AddressSpace* space, RegionTable* regions)
    : session_(session),
      space_(space),
      regions_(regions),
      leases_move_(job.has_ranks),
      cache_({places, job.lease_budget}),
      log_(job.limits) {
  stats_.slots = job.lease_slots();
  committed_ = job.committed;
}

// --- Leasing ---

absl::Status LeaseClient::Acquire(absl::Span<const PlaceId> places, Access access,
                                  absl::optional<Duration> deadline) {
  return EnsureLeased({places, access, Purpose::kUse, deadline}).status();
}

absl::Status LeaseClient::HandleFault(PlaceId place, Access access) {
  const absl::StatusOr<LeasePlan::Next> done =
      EnsureLeased({{&place, 1}, access, Purpose::kFault, kFaultTimeout});
  // CarryOut has resumed the blocked threads.
  if (done.ok() && *done == LeasePlan::Next::kFetch) return absl::OkStatus();
  if (!done.ok() && !absl::IsNotFound(done.status())) return done.status();
  // Nothing was mapped, so nothing else resumes the thread that faulted.
  space_->Wake(place);
  return absl::OkStatus();
}

absl::StatusOr<LeasePlan::Next> LeaseClient::EnsureLeased(const Request& request) {
  absl::optional<Instant> until;
  if (request.deadline.has_value()) until = Now() + *request.deadline;
  if (request.deadline == Duration::zero()) until = Instant::min();
  MEMTIDE_ASSIGN_OR_RETURN(PendingFetch pending, Plan(request, until));
  if (pending.plan.next != LeasePlan::Next::kDone) {
    MEMTIDE_RETURN_IF_ERROR(CarryOut(&pending, until));
  }
  return pending.plan.next;
}

absl::StatusOr<LeaseClient::PendingFetch> LeaseClient::Plan(const Request& request,
                                                            absl::optional<Instant> until) {
  PendingFetch pending;
  const bool fault = request.purpose == Purpose::kFault;
  const MutexLock lock(&mutex_);
  while (true) {
    MEMTIDE_RETURN_IF_ERROR(lost_);
    MEMTIDE_ASSIGN_OR_RETURN(pending.plan, fault ? cache_.Fault(request.places[0], request.access)
                                                 : cache_.Acquire(request.places, request.access));
    if (pending.plan.next != LeasePlan::Next::kWait) break;
    const Instant start = Now();
    const absl::Status waited = WaitForChange(until);
    stats_.waited += Now() - start;
    MEMTIDE_RETURN_IF_ERROR(waited);
  }
  const LeasePlan& plan = pending.plan;
  const uint64_t missed = plan.fetch.size() + plan.upgrade.size();
  if (fault) {
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
  pending.moments = log_.Take();
  pending.leased = ChunksOf(plan.fetch);
  const std::vector<ChunkId> upgraded = ChunksOf(plan.upgrade);
  pending.leased.insert(pending.leased.end(), upgraded.begin(), upgraded.end());
  pending.released = ChunksOf(plan.release);
  return pending;
}

absl::Status LeaseClient::CarryOut(PendingFetch* pending, absl::optional<Instant> until) {
  LeasePlan& plan = pending->plan;
  const bool no_wait = until == Instant::min();
  const Instant start = Now();
  if (!no_wait) AwaitMinResidency(plan.release);
  const Instant begun = Now();
  // Places are unmapped before any call names them: the daemon may lend their slots to other chunks
  // at once.
  const absl::Status unmapped = Unmap(plan.release);
  // In all other cases the fetch carries the releases, which saves a call.
  if (unmapped.ok() && !plan.release.empty() && (plan.release_first || no_wait)) {
    CountCall();
    if (!session_->Release(pending->released).ok()) ReleaseInDoubt(pending->released);
    MarkReleased(plan.release);
    plan.release.clear();
    pending->released.clear();
  }
  absl::StatusOr<FetchResult> fetched =
      unmapped.ok() ? Fetch(*pending, until) : absl::StatusOr<FetchResult>(unmapped);
  absl::Status status = fetched.status();
  if (fetched.ok()) {
    status = MapGranted(*pending, fetched->leases);
  } else if (unmapped.ok()) {
    // A fetch that failed may have ended these leases, or not.
    ReleaseInDoubt(pending->released);
  }
  const MutexLock lock(&mutex_);
  if (status.ok()) {
    cache_.Granted(plan);
    if (!plan.counts_uses) {
      // Faulted chunks have no use that keeps them mapped: give them a minimum residency.
      const Instant now = Now();
      for (const PlaceId place : plan.fetch) {
        resident_until_[place] = now + std::min(now - begun, kMaxMinResidency);
      }
    }
    cache_.SetEvictionHints(fetched->eviction_hints);
  } else {
    cache_.Refused(plan);
  }
  cache_.Released(plan.release);
  stats_.releases += plan.release.size();
  stats_.waited += Now() - start;
  Changed();
  if (!status.ok()) return status;
  // Resume the blocked threads after the lease is counted, so that a thread which faulted a chunk
  // in can flush it at once; under the lock, so that no other thread unmaps it in between; and
  // last, when nothing of this request can fail any more.
  for (const PlaceId place : plan.fetch) space_->ResumeWaiters(place, plan.access);
  for (const PlaceId place : plan.upgrade) space_->ResumeWaiters(place, plan.access);
  return status;
}

absl::StatusOr<FetchResult> LeaseClient::Fetch(const PendingFetch& pending,
                                               absl::optional<Instant> until) {
  FetchOptions options;
  options.chunks = pending.leased;
  options.releases = pending.released;
  options.access = pending.plan.access;
  options.moments = pending.moments;
  if (until == Instant::min()) {
    options.wait_policy = WaitPolicy::kNoWait;
  } else if (until.has_value()) {
    // At least 1 ms, because zero would mean no deadline.
    options.deadline = std::max<Duration>(*until - Now(), std::chrono::milliseconds(1));
  }
  CountCall();
  absl::StatusOr<FetchResult> fetched = session_->Fetch(options);
  if (fetched.ok() && fetched->leases.size() != options.chunks.size()) {
    return absl::InternalError(absl::StrCat("the daemon granted ", fetched->leases.size(),
                                            " leases of ", options.chunks.size()));
  }
  return fetched;
}

absl::Status LeaseClient::MapGranted(const PendingFetch& pending,
                                     const std::vector<Lease>& leases) {
  const LeasePlan& plan = pending.plan;
  absl::Status status;
  bool device_is_lost = false;
  const auto map = [&](PlaceId place, const Lease& lease) -> absl::Status {
    // Find may wait: regions arrive over another socket than leases.
    MEMTIDE_ASSIGN_OR_RETURN(const std::shared_ptr<Region> region,
                             regions_->Find(lease, space_->chunk_size()));
    const absl::Status mapped = space_->Map(place, region.get(), lease.offset, plan.access);
    device_is_lost = absl::IsUnavailable(mapped);
    return mapped;
  };
  size_t mapped = 0;
  for (; mapped < plan.fetch.size(); ++mapped) {
    status = map(plan.fetch[mapped], leases[mapped]);
    if (device_is_lost) return LoseDevice(status);
    if (!status.ok()) break;
  }
  for (size_t i = 0; i < plan.upgrade.size() && status.ok(); ++i) {
    // A session that writes what sessions share gets a copy, which is elsewhere.
    const Lease& lease = leases[plan.fetch.size() + i];
    const bool may_move = leases_move_.load();
    if (!may_move) status = space_->MakeWritable(plan.upgrade[i]);
    if (may_move || absl::IsPermissionDenied(status)) status = map(plan.upgrade[i], lease);
    if (absl::IsUnavailable(status)) return LoseDevice(status);
  }
  if (status.ok()) return status;
  // Undo the mappings, then the leases. Upgraded leases stay: the daemon counts them as write
  // leases, and holding one without writing is safe.
  MEMTIDE_RETURN_IF_ERROR(Unmap({plan.fetch.data(), mapped}));
  ReleaseInDoubt({pending.leased.begin(), pending.leased.begin() + plan.fetch.size()});
  return status;
}

absl::Status LeaseClient::EndUse(absl::Span<const PlaceId> places) {
  // The space notes the use before the lease can become idle, because the reclaimer may unmap idle
  // places.
  space_->EndUse(places);
  const MutexLock lock(&mutex_);
  absl::Status status = cache_.EndUse(places);
  if (cache_.NeedsReclaim()) reclaim_needed_.Signal();
  return lost_.ok() ? status : lost_;
}

// --- Chunks ---

absl::StatusOr<PlaceRange> LeaseClient::Allocate(uint32_t count, ChunkKind kind,
                                                 InitialContent initial_content, HomeTier home) {
  if (count == 0) return absl::InvalidArgumentError("cannot allocate zero chunks");
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    // Fail before the call to the daemon if there is no room for the chunks.
    MEMTIDE_RETURN_IF_ERROR(cache_.FindUnbound(count).status());
  }
  CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks,
                           session_->Allocate(count, kind, initial_content, home));
  // Another thread may have bound the unbound places that were found above.
  absl::StatusOr<PlaceRange> range = Bind(chunks);
  if (range.ok()) return range;
  CountCall();
  session_->Free(chunks).IgnoreError();
  return range;
}

absl::StatusOr<PlaceRange> LeaseClient::Bind(const std::vector<ChunkId>& chunks) {
  absl::StatusOr<PlaceRange> range;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    range = cache_.FindUnbound(static_cast<uint32_t>(chunks.size()));
    if (range.ok()) cache_.Bind(range->first, chunks);
  }
  MEMTIDE_RETURN_IF_ERROR(range.status());
  const absl::Status status = space_->Bind(*range);
  if (status.ok()) return range;
  const MutexLock lock(&mutex_);
  MEMTIDE_CHECK(cache_.BeginEnd(range->places()).ok());
  cache_.Freed(range->places());
  return status;
}

absl::StatusOr<LeaseClient::PendingEnd> LeaseClient::BeginEnd(absl::Span<const PlaceId> places) {
  PendingEnd pending;
  const MutexLock lock(&mutex_);
  while (true) {
    MEMTIDE_RETURN_IF_ERROR(lost_);
    MEMTIDE_ASSIGN_OR_RETURN(pending.plan, cache_.BeginEnd(places));
    if (pending.plan.next != LeasePlan::Next::kWait) break;
    MEMTIDE_RETURN_IF_ERROR(WaitForChange(absl::nullopt));
  }
  pending.released = ChunksOf(pending.plan.release);
  pending.chunks = ChunksOf(places);
  return pending;
}

absl::Status LeaseClient::Free(PlaceRange range) {
  if (range.count > space_->places()) {
    return absl::NotFoundError(absl::StrCat("there are no ", range.count, " places"));
  }
  const std::vector<PlaceId> places = range.places();
  MEMTIDE_ASSIGN_OR_RETURN(const PendingEnd pending, BeginEnd(places));
  // The daemon may reuse the slots once it has freed the chunks, so unmap them first.
  absl::Status status = Unmap(pending.plan.release);
  if (status.ok()) {
    CountCall();
    status = session_->Free(pending.chunks);  // Ends their leases as well.
    if (!status.ok()) ReleaseInDoubt(pending.released);
  }
  if (status.ok()) space_->Unbind(range);
  const MutexLock lock(&mutex_);
  if (status.ok()) {
    cache_.Freed(places);
  } else {
    cache_.Kept(places);
  }
  Changed();
  return status;
}

absl::Status LeaseClient::Discard(absl::Span<const PlaceId> places) {
  if (places.empty()) return absl::OkStatus();
  MEMTIDE_ASSIGN_OR_RETURN(const PendingEnd pending, BeginEnd(places));
  absl::Status status = Unmap(pending.plan.release);
  if (status.ok()) {
    CountCall();
    status = session_->Discard(pending.chunks);  // Ends their leases as well.
    if (!status.ok()) ReleaseInDoubt(pending.released);
  }
  const MutexLock lock(&mutex_);
  cache_.Kept(places);
  stats_.releases += pending.released.size();
  Changed();
  return status;
}

// --- What comes when ---

void LeaseClient::BeginMoment(Moment moment) {
  std::vector<Moment> moments;
  space_->BeginMoment();
  {
    const MutexLock lock(&mutex_);
    log_.Begin(std::move(moment));
    cache_.BeginMoment();
    if (!log_.WantsReport() || !lost_.ok()) return;
    moments = log_.Take();
  }
  CountCall();
  // The moments are hints: losing them costs only time.
  session_->Report(moments).IgnoreError();
}

void LeaseClient::EndIteration() {
  const MutexLock lock(&mutex_);
  log_.EndIteration();
}

// --- State ---

void LeaseClient::FailWith(const absl::Status& reason) {
  const MutexLock lock(&mutex_);
  if (lost_.ok()) lost_ = reason;
  Changed();
}

absl::Status LeaseClient::WaitForChange(absl::optional<Instant> until) {
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

void LeaseClient::Changed() {
  changed_.SignalAll();
  if (cache_.NeedsReclaim()) reclaim_needed_.Signal();
}

std::vector<ChunkId> LeaseClient::ChunksOf(absl::Span<const PlaceId> places) const {
  std::vector<ChunkId> chunks;
  chunks.reserve(places.size());
  for (const PlaceId place : places) chunks.push_back(cache_.chunk(place));
  return chunks;
}

void LeaseClient::CountCall() {
  const MutexLock lock(&mutex_);
  ++stats_.calls;
}

LeaseStats LeaseClient::stats() const {
  const MutexLock lock(&mutex_);
  LeaseStats stats = stats_;
  const LeaseCache::Counts counts = cache_.counts();
  stats.chunks = counts.bound;
  stats.leases_held = counts.held;
  stats.leases_in_use = counts.in_use;
  stats.lease_budget = cache_.budget();
  return stats;
}

}  // namespace memtide::client
