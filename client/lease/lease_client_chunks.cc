// LeaseClient, chunks: their places, from allocation to the end of their content.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/lease/lease_client.h"

namespace memtide::client {

absl::StatusOr<PlaceRange> LeaseClient::Allocate(uint32_t count, ChunkKind kind,
                                                 InitialContent initial_content, HomeTier home) {
  if (count == 0) return absl::InvalidArgumentError("cannot allocate zero chunks");
  // Fail before the call to the daemon if there is no room for the chunks.
  MEMTIDE_RETURN_IF_ERROR(monitor_.CheckRoom(count));
  monitor_.CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks,
                           session_->Allocate(count, kind, initial_content, home));
  // Another thread may have bound the unbound places that were found above.
  absl::StatusOr<PlaceRange> range = Bind(chunks);
  if (range.ok()) return range;
  monitor_.CountCall();
  session_->Free(chunks).IgnoreError();
  return range;
}

absl::StatusOr<PlaceRange> LeaseClient::Bind(const std::vector<ChunkId>& chunks) {
  MEMTIDE_ASSIGN_OR_RETURN(const PlaceRange range, monitor_.Bind(chunks));
  const absl::Status status = space_->Bind(range);
  if (status.ok()) return range;
  monitor_.Unbind(range);
  return status;
}

absl::Status LeaseClient::Free(PlaceRange range) {
  if (range.count > space_->places()) {
    return absl::NotFoundError(absl::StrCat("there are no ", range.count, " places"));
  }
  const std::vector<PlaceId> places = range.places();
  MEMTIDE_ASSIGN_OR_RETURN(const PendingEnd pending, monitor_.BeginEnd(places));
  const absl::Status status =
      EndBy([&] { return session_->Free(pending.chunks); }, pending.plan.release, pending.released);
  if (status.ok()) {
    space_->Unbind(range);
    monitor_.Freed(places);
  } else {
    monitor_.Kept(places, 0);
  }
  return status;
}

absl::Status LeaseClient::Discard(absl::Span<const PlaceId> places) {
  if (places.empty()) return absl::OkStatus();
  MEMTIDE_ASSIGN_OR_RETURN(const PendingEnd pending, monitor_.BeginEnd(places));
  const absl::Status status = EndBy([&] { return session_->Discard(pending.chunks); },
                                    pending.plan.release, pending.released);
  monitor_.Kept(places, pending.released.size());
  return status;
}

absl::StatusOr<std::vector<size_t>> LeaseClient::Offer(absl::Span<const PlaceId> places) {
  if (places.empty()) return std::vector<size_t>();
  MEMTIDE_RETURN_IF_ERROR(monitor_.lost());
  MEMTIDE_ASSIGN_OR_RETURN(std::vector<ChunkId> chunks, monitor_.ChunksAt(places));
  monitor_.CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(OfferResult offered, session_->Offer(chunks));
  std::vector<size_t> shared = std::move(offered.shared);
  if (offered.leased.empty()) return shared;
  // Only leases that are in the way end: most chunks are equal to none.
  const std::vector<size_t> again = std::move(offered.leased);
  std::vector<PlaceId> leased;
  for (const size_t number : again) leased.push_back(places[number]);
  MEMTIDE_ASSIGN_OR_RETURN(chunks, ReleaseIdle(leased));
  monitor_.CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(offered, session_->Offer(chunks));
  for (const size_t number : offered.shared) shared.push_back(again[number]);
  return shared;
}

absl::Status LeaseClient::OfferWhenWritten(absl::Span<const PlaceId> places) {
  if (places.empty()) return absl::OkStatus();
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, ReleaseIdle(places));
  monitor_.CountCall();
  return session_->OfferWhenWritten(chunks);
}

absl::StatusOr<PlaceRange> LeaseClient::Duplicate(absl::Span<const PlaceId> places,
                                                  uint32_t copies) {
  if (places.empty() || copies == 0) {
    return absl::InvalidArgumentError("duplicates of no chunk, or none of each, were requested");
  }
  // From now on the daemon moves what is written.
  leases_move_.store(true);
  const Instant until = Now() + kRetryTimeout;
  while (true) {
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, ReleaseIdle(places));
    monitor_.CountCall();
    absl::StatusOr<std::vector<ChunkId>> made = session_->Duplicate(chunks, copies);
    if (made.ok()) {
      absl::StatusOr<PlaceRange> range = Bind(*made);
      if (!range.ok()) session_->Free(*made).IgnoreError();
      return range;
    }
    // As in Commit().
    if (!absl::IsAborted(made.status()) || Now() >= until) return made.status();
    monitor_.AwaitChange(kRetryInterval);
  }
}

absl::StatusOr<std::vector<ChunkId>> LeaseClient::ChunkIds(PlaceRange range) const {
  const uint32_t most = space_->places();
  if (range.first.value() > most || range.count > most - range.first.value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        range.count, " places from ", range.first.value(), " are not among the ", most));
  }
  return monitor_.ChunksAt(range.places());
}

absl::StatusOr<PlaceRange> LeaseClient::Attach(const std::vector<ChunkId>& chunks) {
  if (chunks.empty()) return absl::InvalidArgumentError("cannot attach zero chunks");
  MEMTIDE_RETURN_IF_ERROR(monitor_.CheckUnbound(chunks));
  return Bind(chunks);
}

}  // namespace memtide::client
