// Giving leases back: unmapped first, then told to the daemon, then free to be asked for again.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/lease_keeper.h"

namespace memtide::client {

absl::Status LeaseKeeper::GiveBack(const std::vector<PlaceId>& places) {
  if (places.empty()) return absl::OkStatus();
  LetStay(places);
  for (const PlaceId place : places) space_->Unmap(place);
  std::vector<ChunkId> chunks;
  {
    const MutexLock lock(&mutex_);
    chunks = ChunksOf(places);
  }
  CountCall();
  const absl::Status status = lender_->Release(chunks);
  if (!status.ok()) ReleaseInDoubt(chunks);
  MarkReleased(places);
  return status;
}

void LeaseKeeper::LetStay(const std::vector<PlaceId>& places) {
  Instant until = Instant::min();
  const MutexLock lock(&mutex_);
  for (const PlaceId place : places) {
    const auto found = stays_until_.find(place);
    if (found == stays_until_.end()) continue;
    until = std::max(until, found->second);
    stays_until_.erase(found);
  }
  for (Instant now = Now(); now < until && lost_.ok() && !stopping_; now = Now()) {
    changed_.WaitFor(&mutex_, until - now);
  }
}

void LeaseKeeper::ReleaseInDoubt(const std::vector<ChunkId>& chunks) {
  for (const ChunkId chunk : chunks) {
    CountCall();
    // FAILED_PRECONDITION: it had ended already. Lost: it ends with the session.
    lender_->Release({&chunk, 1}).IgnoreError();
  }
}

void LeaseKeeper::MarkReleased(const std::vector<PlaceId>& places) {
  const MutexLock lock(&mutex_);
  cache_.Released(places);
  stats_.releases += places.size();
  Changed();
}

void LeaseKeeper::Revoke(const Revocation& wanted) {
  const MutexLock lock(&mutex_);
  cache_.Revoke(wanted.chunks, wanted.others);
  room_wanted_.Signal();
}

uint32_t LeaseKeeper::Budget(uint32_t lease_budget, uint32_t slots) {
  return std::min(lease_budget, std::max<uint32_t>(2, slots) - 1);
}

void LeaseKeeper::TakeBudget(const Resized& left) {
  cache_.SetBudget(std::max<uint32_t>(1, Budget(left.lease_budget, left.device_slots)));
  Changed();
}

void LeaseKeeper::ChangeBudget(uint32_t lease_budget, uint32_t most_in_use) {
  const MutexLock lock(&mutex_);
  cache_.Economise(std::max<uint32_t>(1, lease_budget), most_in_use);
  Changed();
  room_wanted_.Signal();
}

absl::Status LeaseKeeper::Resize(Bytes device_share, Duration deadline) {
  CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(const Resized left, lender_->Resize(device_share, deadline));
  const MutexLock lock(&mutex_);
  TakeBudget(left);
  return absl::OkStatus();
}

void LeaseKeeper::RegionGone(RegionId region, const Resized& left) {
  const MutexLock lock(&mutex_);
  gone_.push_back(region);
  TakeBudget(left);
  room_wanted_.Signal();
}

void LeaseKeeper::ReturnRegions(const std::vector<RegionId>& regions) {
  if (regions.empty()) return;
  // Nothing of them is mapped: their leases ended before the daemon said that they are gone.
  for (const RegionId region : regions) regions_->Remove(region);
  CountCall();
  // A failure is the session's end, and with it the regions'.
  lender_->ReturnRegions(regions).IgnoreError();
}

void LeaseKeeper::KeepRoom() {
  mutex_.Lock();
  while (!stopping_) {
    if (!lost_.ok() || (gone_.empty() && !cache_.WantsRoom())) {
      room_wanted_.Wait(&mutex_);
      continue;
    }
    std::vector<RegionId> gone;
    gone.swap(gone_);
    std::vector<PlaceId> places = cache_.TakeRevoked();
    const std::vector<PlaceId> ahead = cache_.TakeRoomAhead();
    places.insert(places.end(), ahead.begin(), ahead.end());
    mutex_.Unlock();
    // A failure is the session's end, of which everybody is told.
    GiveBack(places).IgnoreError();
    ReturnRegions(gone);
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void LeaseKeeper::StopKeepingRoom() {
  const MutexLock lock(&mutex_);
  stopping_ = true;
  room_wanted_.SignalAll();
}

absl::Status LeaseKeeper::Flush() {
  std::vector<PlaceId> places;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    places = cache_.TakeAllIdle();
  }
  return GiveBack(places);
}

absl::Status LeaseKeeper::Evict(absl::Span<const PlaceId> places) {
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
    idle = cache_.TakeIdle(places);
    leased = ChunksOf(idle);
    chunks = ChunksOf(absent);
    chunks.insert(chunks.end(), leased.begin(), leased.end());
  }
  if (chunks.empty()) return absl::OkStatus();
  for (const PlaceId place : idle) space_->Unmap(place);
  CountCall();
  const absl::Status status = lender_->Evict(chunks);  // Ends their leases, too.
  if (!status.ok()) ReleaseInDoubt(leased);
  MarkReleased(idle);
  return status;
}

absl::Status LeaseKeeper::Prefetch(absl::Span<const PlaceId> places) {
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
  return lender_->Prefetch(chunks);
}

}  // namespace memtide::client
