// LeaseClient, steps: optimizer steps on chunks of this client.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/lease/lease_client.h"

namespace memtide::client {
namespace {

// Commit and Duplicate retry this long while a chunk is in use. A use that lasts longer would not
// end soon.
constexpr Duration kCommitTimeout = std::chrono::seconds(10);
constexpr Duration kCommitRetryInterval = std::chrono::milliseconds(5);

}  // namespace

absl::StatusOr<std::vector<ChunkId>> LeaseClient::ReleaseIdle(absl::Span<const PlaceId> places) {
  std::vector<PlaceId> idle;
  std::vector<ChunkId> chunks;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    MEMTIDE_ASSIGN_OR_RETURN(chunks, ResolvePlaces(places));
    idle = cache_.TakeIdle(places);
  }
  MEMTIDE_RETURN_IF_ERROR(ReleaseLeases(idle));
  return chunks;
}

absl::StatusOr<StartedPart> LeaseClient::StartPart(OwnPart* part) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, ReleaseIdle(part->places));
  std::vector<Moment> moments;
  {
    const MutexLock lock(&mutex_);
    // The daemon follows the iteration by its moments, so it must know those before the step first.
    moments = log_.Take();
    part->id = next_part_++;
  }
  CountCall();
  absl::StatusOr<LentPart> lent = session_->StartPart(*part, chunks, moments);
  absl::Status status = lent.status();
  StartedPart started;
  std::vector<std::shared_ptr<Region>> regions;
  for (size_t i = 0; status.ok() && i < lent->leases.size(); ++i) {
    absl::StatusOr<RegionTable::Address> address =
        regions_->Map(lent->leases[i], space_->chunk_size());
    status = address.status();
    if (!status.ok()) break;
    started.addresses.push_back(address->at);
    regions.push_back(std::move(address->region));
  }
  if (!status.ok()) {
    // The daemon ignores the call if the part has not begun, or if another rank has made it.
    session_->EndPart(part->id, PartResult()).IgnoreError();
    return status;
  }
  started.outcome = std::move(lent->outcome);
  if (started.outcome.state != PartState::kComputing) return started;
  const MutexLock lock(&mutex_);
  parts_.emplace(part->id, std::move(regions));
  return started;
}

absl::Status LeaseClient::EndPart(uint64_t id, const PartResult& result) {
  std::vector<std::shared_ptr<Region>> regions;  // Destroyed after `lock`: unmapping is slow.
  {
    const MutexLock lock(&mutex_);
    const auto found = parts_.find(id);
    if (found == parts_.end()) {
      return absl::NotFoundError(absl::StrCat("there is no part ", id, " that has not ended"));
    }
    regions = std::move(found->second);
    parts_.erase(found);
  }
  CountCall();
  return session_->EndPart(id, result);
}

absl::Status LeaseClient::Commit(const CommitRequest& commit, absl::Span<const PlaceId> places,
                                 absl::Span<const PlaceId> shadows) {
  const Instant until = Now() + kCommitTimeout;
  while (true) {
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, ReleaseIdle(places));
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> shadow_chunks, ReleaseIdle(shadows));
    const auto& unwritten = commit.unwritten;
    if (!unwritten.empty() &&
        !std::equal(chunks.begin(), chunks.end(), unwritten.begin(), unwritten.end(),
                    [](ChunkId chunk, const ChunkVersion& each) { return chunk == each.chunk; })) {
      return absl::AbortedError(
          "other chunks are at these places than had the versions; read the versions again");
    }
    CountCall();
    const absl::Status status = session_->Commit(commit, chunks, shadow_chunks);
    if (status.ok()) {
      const MutexLock lock(&mutex_);
      committed_ = commit.committed;
    }
    if (!absl::IsAborted(status) || Now() >= until) return status;
    // ABORTED: a chunk was written, and no later try succeeds, or one is leased. The lease may come
    // from a page fault of this process after ReleaseIdle, so each attempt releases again.
    if (!unwritten.empty()) {
      const absl::StatusOr<std::vector<ChunkVersion>> now = Versions(places);
      if (!now.ok() || *now != unwritten) return status;
    }
    // The lease may also be another session's, whose end is not signalled here, so the wait is
    // short.
    const MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, kCommitRetryInterval);
  }
}

CommittedStep LeaseClient::committed() const {
  const MutexLock lock(&mutex_);
  return committed_;
}

absl::StatusOr<std::vector<size_t>> LeaseClient::Offer(absl::Span<const PlaceId> places) {
  if (places.empty()) return std::vector<size_t>();
  std::vector<ChunkId> chunks;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    MEMTIDE_ASSIGN_OR_RETURN(chunks, ResolvePlaces(places));
  }
  CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(OfferResult offered, session_->Offer(chunks));
  std::vector<size_t> shared = std::move(offered.shared);
  if (offered.leased.empty()) return shared;
  // Only leases that are in the way end: most chunks are equal to none.
  const std::vector<size_t> again = std::move(offered.leased);
  std::vector<PlaceId> leased;
  for (const size_t number : again) leased.push_back(places[number]);
  MEMTIDE_ASSIGN_OR_RETURN(chunks, ReleaseIdle(leased));
  CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(offered, session_->Offer(chunks));
  for (const size_t number : offered.shared) shared.push_back(again[number]);
  return shared;
}

absl::Status LeaseClient::OfferWhenWritten(absl::Span<const PlaceId> places) {
  if (places.empty()) return absl::OkStatus();
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, ReleaseIdle(places));
  CountCall();
  return session_->OfferWhenWritten(chunks);
}

absl::StatusOr<PlaceRange> LeaseClient::Duplicate(absl::Span<const PlaceId> places,
                                                  uint32_t copies) {
  if (places.empty() || copies == 0) {
    return absl::InvalidArgumentError("duplicates of no chunk, or none of each, were requested");
  }
  // From now on the daemon moves what is written.
  leases_move_.store(true);
  const Instant until = Now() + kCommitTimeout;
  while (true) {
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, ReleaseIdle(places));
    CountCall();
    absl::StatusOr<std::vector<ChunkId>> made = session_->Duplicate(chunks, copies);
    if (made.ok()) {
      absl::StatusOr<PlaceRange> range = Bind(*made);
      if (!range.ok()) session_->Free(*made).IgnoreError();
      return range;
    }
    // As in Commit().
    if (!absl::IsAborted(made.status()) || Now() >= until) return made.status();
    const MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, kCommitRetryInterval);
  }
}

absl::StatusOr<std::vector<ChunkId>> LeaseClient::ResolvePlaces(
    absl::Span<const PlaceId> places) const {
  for (const PlaceId place : places) {
    if (cache_.IsBound(place)) continue;
    return absl::NotFoundError(absl::StrCat("place ", place.value(), " holds no chunk"));
  }
  return ChunksOf(places);
}

absl::StatusOr<std::vector<ChunkId>> LeaseClient::ChunkIds(PlaceRange range) const {
  const uint32_t most = space_->places();
  if (range.first.value() > most || range.count > most - range.first.value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        range.count, " places from ", range.first.value(), " are not among the ", most));
  }
  const std::vector<PlaceId> places = range.places();
  const MutexLock lock(&mutex_);
  return ResolvePlaces(places);
}

absl::StatusOr<std::vector<ChunkVersion>> LeaseClient::Versions(absl::Span<const PlaceId> places) {
  std::vector<ChunkId> chunks;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_ASSIGN_OR_RETURN(chunks, ResolvePlaces(places));
  }
  CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, session_->Versions(chunks));
  std::vector<ChunkVersion> versions;
  for (size_t i = 0; i < chunks.size(); ++i) versions.push_back({chunks[i], numbers[i]});
  return versions;
}

absl::StatusOr<PlaceRange> LeaseClient::Attach(const std::vector<ChunkId>& chunks) {
  if (chunks.empty()) return absl::InvalidArgumentError("cannot attach zero chunks");
  {
    const MutexLock lock(&mutex_);
    std::set<ChunkId> named;
    for (const ChunkId chunk : chunks) {
      if (named.insert(chunk).second && !cache_.IsBound(chunk)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", chunk.value(), " is bound to a place already, or named twice"));
    }
  }
  return Bind(chunks);
}

}  // namespace memtide::client
