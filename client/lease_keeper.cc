#include "client/lease_keeper.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide::client {

LeaseKeeper::LeaseKeeper(const LeaseCache::Options& options, Lender* lender, AddressSpace* space,
                         RegionTable* regions)
    : lender_(lender), space_(space), regions_(regions), cache_(options) {}

// --- Leasing ---

absl::Status LeaseKeeper::Acquire(absl::Span<const PlaceId> places, Access access,
                                  absl::optional<Duration> deadline) {
  return Obtain({places, access, Purpose::kUse, deadline}).status();
}

absl::Status LeaseKeeper::AnswerTouch(PlaceId place, Access access) {
  const absl::StatusOr<LeasePlan::Next> done =
      Obtain({{&place, 1}, access, Purpose::kTouch, kTouchPatience});
  // Whoever was leased the chunk just now is let on already.
  if (done.ok() && *done == LeasePlan::Next::kFetch) return absl::OkStatus();
  if (!done.ok() && !absl::IsNotFound(done.status())) return done.status();
  space_->Wake(place);
  return absl::OkStatus();
}

absl::StatusOr<LeasePlan::Next> LeaseKeeper::Obtain(const Request& request) {
  absl::optional<Instant> until;
  if (request.deadline.has_value()) until = Now() + *request.deadline;
  if (request.deadline == Duration::zero()) until = Instant::min();
  MEMTIDE_ASSIGN_OR_RETURN(Errand errand, Plan(request, until));
  if (errand.plan.next != LeasePlan::Next::kDone) {
    MEMTIDE_RETURN_IF_ERROR(CarryOut(&errand, until));
  }
  return errand.plan.next;
}

absl::StatusOr<LeaseKeeper::Errand> LeaseKeeper::Plan(const Request& request,
                                                      absl::optional<Instant> until) {
  Errand errand;
  const bool touch = request.purpose == Purpose::kTouch;
  const MutexLock lock(&mutex_);
  while (true) {
    MEMTIDE_RETURN_IF_ERROR(lost_);
    MEMTIDE_ASSIGN_OR_RETURN(errand.plan, touch ? cache_.Touch(request.places[0], request.access)
                                                : cache_.Acquire(request.places, request.access));
    if (errand.plan.next != LeasePlan::Next::kWait) break;
    const Instant start = Now();
    const absl::Status waited = WaitForChange(until);
    stats_.waited += Now() - start;
    MEMTIDE_RETURN_IF_ERROR(waited);
  }
  const LeasePlan& plan = errand.plan;
  const uint64_t missed = plan.fetch.size() + plan.upgrade.size();
  if (touch) {
    stats_.faults += plan.fetch.size();
    stats_.upgrades += plan.upgrade.size();
  } else {
    stats_.acquires += request.places.size();
    stats_.acquire_hits += request.places.size() - missed;
  }
  for (const PlaceId place : request.places) log_.Use(cache_.chunk(place), request.access);
  if (plan.next == LeasePlan::Next::kDone) return errand;
  errand.moments = log_.Take();
  errand.leased = ChunksOf(plan.fetch);
  const std::vector<ChunkId> upgraded = ChunksOf(plan.upgrade);
  errand.leased.insert(errand.leased.end(), upgraded.begin(), upgraded.end());
  errand.released = ChunksOf(plan.release);
  return errand;
}

absl::Status LeaseKeeper::CarryOut(Errand* errand, absl::optional<Instant> until) {
  LeasePlan& plan = errand->plan;
  const bool no_wait = until == Instant::min();
  const Instant start = Now();
  if (!no_wait) LetStay(plan.release);
  const Instant begun = Now();
  for (const PlaceId place : plan.release) space_->Unmap(place);
  if (!plan.release.empty() && (plan.release_first || no_wait)) {
    CountCall();
    if (!lender_->Release(errand->released).ok()) ReleaseInDoubt(errand->released);
    MarkReleased(plan.release);
    plan.release.clear();
    errand->released.clear();
  }
  absl::StatusOr<Fetched> fetched = Fetch(*errand, until);
  absl::Status status = fetched.status();
  if (fetched.ok()) {
    status = MapGranted(*errand, fetched->leases);
  } else {
    ReleaseInDoubt(errand->released);
  }
  const MutexLock lock(&mutex_);
  if (status.ok()) {
    cache_.Granted(plan);
    if (!plan.counts_uses) {
      const Instant now = Now();
      for (const PlaceId place : plan.fetch) {
        stays_until_[place] = now + std::min(now - begun, kLongestStay);
      }
    }
    cache_.SetFarthest(fetched->farthest);
  } else {
    cache_.Refused(plan);
  }
  cache_.Released(plan.release);
  stats_.releases += plan.release.size();
  stats_.waited += Now() - start;
  Changed();
  if (!status.ok()) return status;
  // Not before the lease is counted, so that whoever touched a chunk can flush it at once; under
  // the lock, so that nobody unmaps it in between; and last, for somebody waits for nothing else.
  for (const PlaceId place : plan.fetch) space_->LetOn(place, plan.access);
  for (const PlaceId place : plan.upgrade) space_->LetOn(place, plan.access);
  return status;
}

absl::StatusOr<Fetched> LeaseKeeper::Fetch(const Errand& errand, absl::optional<Instant> until) {
  FetchOptions options;
  options.chunks = errand.leased;
  options.releases = errand.released;
  options.access = errand.plan.access;
  options.moments = errand.moments;
  if (until == Instant::min()) {
    options.patience = Patience::kNoWait;
  } else if (until.has_value()) {
    // At least a moment: zero would mean no deadline of ours.
    options.deadline = std::max<Duration>(*until - Now(), std::chrono::milliseconds(1));
  }
  CountCall();
  absl::StatusOr<Fetched> fetched = lender_->Fetch(options);
  if (fetched.ok() && fetched->leases.size() != options.chunks.size()) {
    return absl::InternalError(absl::StrCat("the daemon granted ", fetched->leases.size(),
                                            " leases of ", options.chunks.size()));
  }
  return fetched;
}

absl::Status LeaseKeeper::MapGranted(const Errand& errand, const std::vector<Lease>& leases) {
  const LeasePlan& plan = errand.plan;
  absl::Status status;
  size_t mapped = 0;
  for (; mapped < plan.fetch.size(); ++mapped) {
    const Lease& lease = leases[mapped];
    const auto region = regions_->Find(lease, space_->chunk_size());
    status = region.status();
    if (status.ok()) {
      status = space_->Map(plan.fetch[mapped], region->get(), lease.offset, plan.access);
    }
    if (!status.ok()) break;
  }
  for (size_t i = 0; i < plan.upgrade.size() && status.ok(); ++i) {
    status = space_->MakeWritable(plan.upgrade[i]);
  }
  if (status.ok()) return status;
  for (size_t i = 0; i < mapped; ++i) space_->Unmap(plan.fetch[i]);
  ReleaseInDoubt({errand.leased.begin(), errand.leased.begin() + plan.fetch.size()});
  return status;
}

absl::Status LeaseKeeper::EndUse(absl::Span<const PlaceId> places) {
  const absl::Status gpu = space_->EndUse(places);
  const MutexLock lock(&mutex_);
  // Also after a failure: who was told of it cannot know that a use is left, and would keep it.
  absl::Status status = cache_.EndUse(places);
  status.Update(gpu);
  if (cache_.WantsRoom()) room_wanted_.Signal();
  return lost_.ok() ? status : lost_;
}

// --- Chunks ---

absl::StatusOr<PlaceRange> LeaseKeeper::Allocate(uint32_t count, ChunkKind kind,
                                                 Unwritten unwritten) {
  if (count == 0) return absl::InvalidArgumentError("zero chunks asked for");
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    MEMTIDE_RETURN_IF_ERROR(cache_.FindUnbound(count).status());
  }
  CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks,
                           lender_->Allocate(count, kind, unwritten));
  // That there is room was seen above, but another thread may have been faster.
  absl::StatusOr<PlaceRange> range = Bind(chunks);
  if (range.ok()) return range;
  CountCall();
  lender_->Free(chunks).IgnoreError();
  return range;
}

absl::StatusOr<PlaceRange> LeaseKeeper::Bind(const std::vector<ChunkId>& chunks) {
  absl::StatusOr<PlaceRange> range;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    range = cache_.FindUnbound(static_cast<uint32_t>(chunks.size()));
    if (range.ok()) cache_.Bind(range->first, chunks);
  }
  MEMTIDE_RETURN_IF_ERROR(range.status());
  const absl::Status status = space_->Open(*range);
  if (status.ok()) return range;
  const MutexLock lock(&mutex_);
  MEMTIDE_CHECK(cache_.BeginFree(*range).ok());
  cache_.Freed(*range);
  return status;
}

absl::Status LeaseKeeper::Free(PlaceRange range) {
  Errand errand;
  std::vector<ChunkId> chunks;
  {
    const MutexLock lock(&mutex_);
    while (true) {
      MEMTIDE_RETURN_IF_ERROR(lost_);
      MEMTIDE_ASSIGN_OR_RETURN(errand.plan, cache_.BeginFree(range));
      if (errand.plan.next != LeasePlan::Next::kWait) break;
      MEMTIDE_RETURN_IF_ERROR(WaitForChange(absl::nullopt));
    }
    errand.released = ChunksOf(errand.plan.release);
    for (uint32_t i = 0; i < range.count; ++i) {
      chunks.push_back(cache_.chunk(PlaceId(range.first.value() + i)));
    }
  }
  for (const PlaceId place : errand.plan.release) space_->Unmap(place);
  CountCall();
  const absl::Status status = lender_->Free(chunks);  // Ends their leases, too.
  if (status.ok()) {
    space_->Shut(range);
  } else {
    ReleaseInDoubt(errand.released);
  }
  const MutexLock lock(&mutex_);
  if (status.ok()) {
    cache_.Freed(range);
  } else {
    cache_.NotFreed(range);
  }
  Changed();
  return status;
}

// --- What comes when ---

void LeaseKeeper::BeginMoment(Moment moment) {
  std::vector<Moment> moments;
  {
    const MutexLock lock(&mutex_);
    log_.Begin(std::move(moment));
    cache_.BeginMoment();
    if (!log_.WantsReport() || !lost_.ok()) return;
    moments = log_.Take();
  }
  CountCall();
  // A hint that is lost costs nothing but time.
  lender_->Report(moments).IgnoreError();
}

void LeaseKeeper::EndIteration() {
  const MutexLock lock(&mutex_);
  log_.EndIteration();
}

// --- State ---

void LeaseKeeper::Lose(const absl::Status& reason) {
  const MutexLock lock(&mutex_);
  if (lost_.ok()) lost_ = reason;
  Changed();
}

absl::Status LeaseKeeper::WaitForChange(absl::optional<Instant> until) {
  if (!until.has_value()) {
    changed_.Wait(&mutex_);
    return absl::OkStatus();
  }
  if (*until == Instant::min()) return absl::UnavailableError("a chunk is being moved just now");
  const Duration left = *until - Now();
  if (left <= Duration::zero()) {
    return absl::DeadlineExceededError("a chunk that another thread moves was not there in time");
  }
  changed_.WaitFor(&mutex_, left);
  return absl::OkStatus();
}

void LeaseKeeper::Changed() {
  changed_.SignalAll();
  if (cache_.WantsRoom()) room_wanted_.Signal();
}

std::vector<ChunkId> LeaseKeeper::ChunksOf(absl::Span<const PlaceId> places) const {
  std::vector<ChunkId> chunks;
  chunks.reserve(places.size());
  for (const PlaceId place : places) chunks.push_back(cache_.chunk(place));
  return chunks;
}

void LeaseKeeper::CountCall() {
  const MutexLock lock(&mutex_);
  ++stats_.calls;
}

LeaseStats LeaseKeeper::stats() const {
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
