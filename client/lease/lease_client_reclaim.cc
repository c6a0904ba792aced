// LeaseClient, reclaim: leases are unmapped, then released, then free to be leased again.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/lease/lease_client.h"

namespace memtide::client {

absl::Status LeaseClient::Unmap(absl::Span<const PlaceId> places) {
  absl::Status status;
  for (const PlaceId place : places) status.Update(space_->Unmap(place));
  return status.ok() ? status : LoseDevice(status);
}

absl::Status LeaseClient::LoseDevice(const absl::Status& why) {
  const absl::Status lost = absl::UnavailableError(absl::StrCat(
      "this process has lost the GPU, and the session with it, so that what kernels left half "
      "written is not taken for content (--resume starts from the last commit): ",
      why.message()));
  FailWith(lost);
  regions_->Close();
  session_->Close();
  return lost;
}

absl::Status LeaseClient::ReleaseLeases(std::vector<PlaceId> places) {
  AwaitMinResidency(places);
  // In the order in which their work on a GPU will be complete.
  std::stable_sort(places.begin(), places.end(), [this](PlaceId a, PlaceId b) {
    return space_->FenceOf(a) < space_->FenceOf(b);
  });
  absl::Status status;
  for (size_t first = 0; first < places.size();) {
    // The places whose work is complete by now share a call to the daemon; none of them waits for
    // the others.
    size_t end = first;
    absl::Status unmapped;
    do {
      unmapped.Update(Unmap({&places[end++], 1}));
    } while (end < places.size() && space_->IsDone(space_->FenceOf(places[end])));
    const std::vector<PlaceId> batch(places.begin() + first, places.begin() + end);
    if (unmapped.ok()) {
      status.Update(EndLeases(batch));
    } else {
      status.Update(unmapped);
      MarkReleased(batch);
    }
    first = end;
  }
  return status;
}

absl::Status LeaseClient::EndLeases(const std::vector<PlaceId>& places) {
  std::vector<ChunkId> chunks;
  {
    const MutexLock lock(&mutex_);
    chunks = ChunksOf(places);
  }
  CountCall();
  const absl::Status status = session_->Release(chunks);
  if (!status.ok()) ReleaseInDoubt(chunks);
  MarkReleased(places);
  return status;
}

void LeaseClient::AwaitMinResidency(const std::vector<PlaceId>& places) {
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

void LeaseClient::ReleaseInDoubt(const std::vector<ChunkId>& chunks) {
  for (const ChunkId chunk : chunks) {
    CountCall();
    // Errors are expected: FAILED_PRECONDITION if the lease had ended, UNAVAILABLE if the session
    // is lost and its leases with it. One call per chunk, because a call fails as a whole.
    session_->Release({&chunk, 1}).IgnoreError();
  }
}

void LeaseClient::MarkReleased(const std::vector<PlaceId>& places) {
  const MutexLock lock(&mutex_);
  cache_.Released(places);
  stats_.releases += places.size();
  Changed();
}

void LeaseClient::Revoke(const Revocation& revocation) {
  const MutexLock lock(&mutex_);
  cache_.Revoke(revocation.chunks, revocation.additional);
  reclaim_needed_.Signal();
}

uint32_t LeaseClient::Budget(uint32_t lease_budget, uint32_t slots) {
  // One slot stays without a lease, because without a free slot no chunk could ever move.
  return std::min(lease_budget, std::max<uint32_t>(2, slots) - 1);
}

void LeaseClient::ApplyDeviceShare(const DeviceShare& share) {
  cache_.SetBudget(std::max<uint32_t>(1, share.lease_budget));
  stats_.slots = share.device_slots;
  Changed();
}

void LeaseClient::SetSoftBudget(const LeaseBudget& budget) {
  const MutexLock lock(&mutex_);
  cache_.SetSoftBudget(std::max<uint32_t>(1, budget.leases), budget.max_in_use);
  stats_.slots = budget.slots;
  Changed();
  reclaim_needed_.Signal();
}

absl::Status LeaseClient::Resize(Bytes device_share, Duration deadline) {
  CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(const DeviceShare share, session_->Resize(device_share, deadline));
  const MutexLock lock(&mutex_);
  ApplyDeviceShare(share);
  return absl::OkStatus();
}

void LeaseClient::RegionGone(RegionId region, const DeviceShare& share) {
  const MutexLock lock(&mutex_);
  gone_.push_back(region);
  ApplyDeviceShare(share);
  reclaim_needed_.Signal();
}

void LeaseClient::ReturnRegions(const std::vector<RegionId>& regions) {
  if (regions.empty()) return;
  // No place maps them: the daemon sends RegionGone after all leases in a region have ended.
  for (const RegionId region : regions) regions_->Remove(region);
  CountCall();
  // A failure means that the session ended, and its regions with it.
  session_->ReturnRegions(regions).IgnoreError();
}

void LeaseClient::RunReclaimer() {
  mutex_.Lock();
  while (!stopping_) {
    // In a lost session there is nothing to release: the thread waits for StopReclaimer.
    if (!lost_.ok() || (gone_.empty() && !cache_.NeedsReclaim())) {
      reclaim_needed_.Wait(&mutex_);
      continue;
    }
    std::vector<RegionId> gone;
    gone.swap(gone_);
    std::vector<PlaceId> places = cache_.TakeRevoked();
    const std::vector<PlaceId> ahead = cache_.TakeForHeadroom();
    places.insert(places.end(), ahead.begin(), ahead.end());
    // Unmapping waits for the GPU, and releasing for the daemon: neither may happen under the lock.
    mutex_.Unlock();
    // A failure means that the session ended, which every later call reports.
    ReleaseLeases(places).IgnoreError();
    ReturnRegions(gone);
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void LeaseClient::StopReclaimer() {
  const MutexLock lock(&mutex_);
  stopping_ = true;
  reclaim_needed_.SignalAll();
}

absl::Status LeaseClient::Flush() {
  std::vector<PlaceId> places;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    places = cache_.TakeAllIdle();
  }
  return ReleaseLeases(places);
}

absl::Status LeaseClient::Evict(absl::Span<const PlaceId> places) {
  std::vector<PlaceId> idle, absent;
  std::vector<ChunkId> leased, chunks;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    for (const PlaceId place : places) {
      if (!cache_.IsBound(place)) {
        return absl::NotFoundError(absl::StrCat("place ", place.value(), " holds no chunk"));
      }
      if (cache_.IsAbsent(place)) absent.push_back(place);
    }
    // Leases are taken after all places are checked, so an error changes nothing.
    idle = cache_.TakeIdle(places);
    leased = ChunksOf(idle);
    chunks = ChunksOf(absent);
    chunks.insert(chunks.end(), leased.begin(), leased.end());
  }
  if (chunks.empty()) return absl::OkStatus();
  absl::Status status = Unmap(idle);
  if (status.ok()) {
    CountCall();
    status = session_->Evict(chunks);  // Ends their leases as well.
    if (!status.ok()) ReleaseInDoubt(leased);
  }
  MarkReleased(idle);
  return status;
}

absl::Status LeaseClient::Prefetch(absl::Span<const PlaceId> places) {
  std::vector<ChunkId> chunks;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    for (const PlaceId place : places) {
      if (!cache_.IsBound(place)) {
        return absl::NotFoundError(absl::StrCat("place ", place.value(), " holds no chunk"));
      }
      if (cache_.IsAbsent(place)) chunks.push_back(cache_.chunk(place));
    }
  }
  if (chunks.empty()) return absl::OkStatus();
  CountCall();
  return session_->Prefetch(chunks);
}

}  // namespace memtide::client
