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
  monitor_.FailWith(lost);
  regions_->Close();
  session_->Close();
  return lost;
}

absl::Status LeaseClient::ReleaseLeases(std::vector<PlaceId> places) {
  monitor_.AwaitMinResidency(places);
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
      monitor_.Released(batch);
    }
    first = end;
  }
  return status;
}

absl::Status LeaseClient::EndLeases(const std::vector<PlaceId>& places) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, monitor_.ChunksAt(places));
  monitor_.CountCall();
  const absl::Status status = session_->Release(chunks);
  if (!status.ok()) ReleaseInDoubt(chunks);
  monitor_.Released(places);
  return status;
}

absl::Status LeaseClient::EndBy(absl::FunctionRef<absl::Status()> call,
                                absl::Span<const PlaceId> mapped,
                                const std::vector<ChunkId>& leased) {
  // The daemon may lend the slots to others once it has answered, so unmap them first.
  MEMTIDE_RETURN_IF_ERROR(Unmap(mapped));
  monitor_.CountCall();
  absl::Status status = call();
  if (!status.ok()) ReleaseInDoubt(leased);
  return status;
}

void LeaseClient::ReleaseInDoubt(const std::vector<ChunkId>& chunks) {
  for (const ChunkId chunk : chunks) {
    monitor_.CountCall();
    // Errors are expected: FAILED_PRECONDITION if the lease had ended, UNAVAILABLE if the session
    // is lost and its leases with it. One call per chunk, because a call fails as a whole.
    session_->Release({&chunk, 1}).IgnoreError();
  }
}

uint32_t LeaseClient::Budget(uint32_t lease_budget, uint32_t slots) {
  // One slot stays without a lease, because without a free slot no chunk could ever move.
  return std::min(lease_budget, std::max<uint32_t>(2, slots) - 1);
}

absl::Status LeaseClient::Resize(Bytes device_share, Duration deadline) {
  monitor_.CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(const DeviceShare share, session_->Resize(device_share, deadline));
  monitor_.SetShare(share);
  return absl::OkStatus();
}

void LeaseClient::ReturnRegions(const std::vector<RegionId>& regions) {
  if (regions.empty()) return;
  // The daemon sends RegionGone after all leases in a region have ended.
  for (const RegionId id : regions) {
    if (const std::shared_ptr<Region> region = regions_->Remove(id)) space_->Forget(*region);
  }
  monitor_.CountCall();
  // A failure means that the session ended, and its regions with it.
  session_->ReturnRegions(regions).IgnoreError();
}

void LeaseClient::RunReclaimer() {
  CountNoBlockingCalls();
  while (const absl::optional<Reclaim> reclaim = monitor_.NextReclaim()) {
    // A failure means that the session ended, which every later call reports.
    ReleaseLeases(reclaim->places).IgnoreError();
    ReturnRegions(reclaim->regions);
  }
}

absl::Status LeaseClient::Flush() {
  MEMTIDE_ASSIGN_OR_RETURN(const PendingRelease pending, monitor_.TakeIdle(absl::nullopt));
  return ReleaseLeases(pending.idle);
}

absl::StatusOr<std::vector<ChunkId>> LeaseClient::ReleaseIdle(absl::Span<const PlaceId> places) {
  MEMTIDE_ASSIGN_OR_RETURN(PendingRelease pending, monitor_.TakeIdle(places));
  MEMTIDE_RETURN_IF_ERROR(ReleaseLeases(pending.idle));
  return std::move(pending.chunks);
}

absl::Status LeaseClient::Evict(absl::Span<const PlaceId> places) {
  MEMTIDE_ASSIGN_OR_RETURN(const PendingRelease pending, monitor_.TakeToEvict(places));
  if (pending.chunks.empty()) return absl::OkStatus();
  const absl::Status status =
      EndBy([&] { return session_->Evict(pending.chunks); }, pending.idle, pending.released);
  monitor_.Released(pending.idle);
  monitor_.Kept(pending.absent, /*released=*/0);
  return status;
}

}  // namespace memtide::client
