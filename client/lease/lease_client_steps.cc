// LeaseClient, steps: optimizer steps on chunks of this client.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/lease/lease_client.h"

namespace memtide::client {

absl::StatusOr<StartedPart> LeaseClient::StartPart(OwnPart* part) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, ReleaseIdle(part->places));
  {
    const MutexLock lock(&mutex_);
    part->id = next_part_++;
  }
  monitor_.CountCall();
  // The daemon follows the iteration by its moments, so it must know those before the step first.
  absl::StatusOr<LentPart> lent = session_->StartPart(*part, chunks, monitor_.TakeMoments());
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
  monitor_.CountCall();
  return session_->EndPart(id, result);
}

absl::Status LeaseClient::Commit(const CommitRequest& commit, absl::Span<const PlaceId> places,
                                 absl::Span<const PlaceId> shadows) {
  const Instant until = Now() + kRetryTimeout;
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
    monitor_.CountCall();
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
    monitor_.AwaitChange(kRetryInterval);
  }
}

CommittedStep LeaseClient::committed() const {
  const MutexLock lock(&mutex_);
  return committed_;
}

absl::StatusOr<std::vector<ChunkVersion>> LeaseClient::Versions(absl::Span<const PlaceId> places) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, monitor_.ChunksAt(places));
  monitor_.CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, session_->Versions(chunks));
  std::vector<ChunkVersion> versions;
  for (size_t i = 0; i < chunks.size(); ++i) versions.push_back({chunks[i], numbers[i]});
  return versions;
}

}  // namespace memtide::client
