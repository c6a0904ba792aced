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
      monitor_(places, job),
      leases_move_(job.has_ranks),
      committed_(job.committed) {}

// --- Leasing ---

absl::Status LeaseClient::Acquire(absl::Span<const PlaceId> places, Access access,
                                  absl::optional<Duration> deadline) {
  absl::optional<Instant> until;
  if (deadline.has_value()) until = Now() + *deadline;
  if (deadline == Duration::zero()) until = Instant::min();
  return EnsureLeased({places, access, /*is_fault=*/false, until});
}

absl::Status LeaseClient::HandleFault(PlaceId place, Access access) {
  const LeaseRequest request{{&place, 1}, access, /*is_fault=*/true, Now() + kFaultTimeout};
  absl::StatusOr<PendingFetch> pending = monitor_.Plan(request);
  // Threads that wait are resumed by it. A chunk that the daemon does not know is lost.
  if (pending.ok() && pending->plan.next == LeasePlan::Next::kFetch) {
    return CarryOut(&*pending, request.until);
  }
  // The chunk was freed meanwhile: the next access finds no memory there.
  if (!pending.ok() && !absl::IsNotFound(pending.status())) return pending.status();
  // Nothing was mapped, so nothing else resumes the thread that faulted.
  space_->Wake(place);
  return absl::OkStatus();
}

absl::Status LeaseClient::EnsureLeased(const LeaseRequest& request) {
  MEMTIDE_ASSIGN_OR_RETURN(PendingFetch pending, monitor_.Plan(request));
  if (pending.plan.next == LeasePlan::Next::kDone) return absl::OkStatus();
  return CarryOut(&pending, request.until);
}

absl::Status LeaseClient::CarryOut(PendingFetch* pending, absl::optional<Instant> until) {
  LeasePlan& plan = pending->plan;
  const bool no_wait = until == Instant::min();
  const Instant start = Now();
  if (!no_wait) monitor_.AwaitMinResidency(plan.release);
  const Instant begun = Now();
  // Places are unmapped before any call names them: the daemon may lend their slots to other chunks
  // at once.
  const absl::Status unmapped = Unmap(plan.release);
  const Instant call_begin = Now();
  // In all other cases the fetch carries the releases, which saves a call.
  if (unmapped.ok() && !plan.release.empty() && (plan.release_first || no_wait)) {
    monitor_.CountCall();
    if (!session_->Release(pending->released).ok()) ReleaseInDoubt(pending->released);
    monitor_.Released(plan.release);
    plan.release.clear();
    pending->released.clear();
  }
  absl::StatusOr<FetchResult> fetched =
      unmapped.ok() ? Fetch(*pending, until) : absl::StatusOr<FetchResult>(unmapped);
  const Instant call_end = Now();
  absl::Status status = fetched.status();
  if (fetched.ok()) {
    status = MapGranted(*pending, fetched->leases);
  } else if (unmapped.ok()) {
    // A fetch that failed may have ended these leases, or not.
    ReleaseInDoubt(pending->released);
  }
  const Instant end = Now();
  Waits waits = {end - start, call_end - call_begin, end - call_end, call_begin - begun};
  if (plan.is_ahead) waits = {};
  if (!status.ok()) {
    monitor_.Refused(plan, waits);
    return status;
  }
  // The blocked threads resume after the lease is counted, so that a thread which faulted a chunk
  // in can flush it at once, and when nothing of this request can fail any more.
  monitor_.Granted(plan, *fetched, begun, waits, [&] {
    for (const PlaceId place : plan.fetch) space_->ResumeWaiters(place, plan.access);
    for (const PlaceId place : plan.upgrade) space_->ResumeWaiters(place, plan.access);
  });
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
  monitor_.CountCall();
  absl::StatusOr<FetchResult> fetched = session_->Fetch(options);
  monitor_.Ended(pending, fetched.ok() ? &fetched->ahead : nullptr);
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
  return monitor_.EndUse(places);
}

void LeaseClient::BeginMoment(Moment moment) {
  space_->BeginMoment();
  monitor_.BeginMoment(std::move(moment));
}

void LeaseClient::RunAhead() {
  CountNoBlockingCalls();
  while (absl::optional<PendingFetch> pending = monitor_.NextAhead()) {
    if (!pending->leased.empty()) {
      // A chunk may have gone meanwhile: then the program's own fetch waits for it.
      CarryOut(&*pending, Instant::min()).IgnoreError();
      continue;
    }
    if (pending->moments.empty() && pending->asks == 0) continue;
    monitor_.CountCall();
    // The moments are hints: losing them costs only time.
    const absl::StatusOr<ChunksAhead> ahead = session_->Report(pending->moments);
    monitor_.Ended(*pending, ahead.ok() ? &*ahead : nullptr);
  }
}

void LeaseClient::EndIteration() {
  space_->EndIteration();
  monitor_.EndIteration();
}

}  // namespace memtide::client
