// Giving leases back: unmapped first, then told to the daemon, then free to be asked for again.
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/lease_keeper.h"

namespace memtide::client {

absl::Status LeaseKeeper::GiveBack(const std::vector<PlaceId>& places) {
  if (places.empty()) return absl::OkStatus();
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

void LeaseKeeper::KeepRoom() {
  mutex_.Lock();
  while (!stopping_) {
    if (!lost_.ok() || !cache_.WantsRoom()) {
      room_wanted_.Wait(&mutex_);
      continue;
    }
    std::vector<PlaceId> places = cache_.TakeRevoked();
    const std::vector<PlaceId> ahead = cache_.TakeRoomAhead();
    places.insert(places.end(), ahead.begin(), ahead.end());
    mutex_.Unlock();
    // A failure is the session's end, of which everybody is told.
    GiveBack(places).IgnoreError();
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
