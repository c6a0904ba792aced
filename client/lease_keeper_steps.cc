// Steps by the daemon on chunks of this client.
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/lease_keeper.h"

namespace memtide::client {
namespace {

// Whoever uses a chunk while a step is published is done with it in less, or for good.
constexpr Duration kPublishPatience = std::chrono::seconds(10);
constexpr Duration kPublishAgain = std::chrono::milliseconds(5);

}  // namespace

absl::StatusOr<std::vector<ChunkId>> LeaseKeeper::TakeFromHere(absl::Span<const PlaceId> places) {
  std::vector<PlaceId> idle;
  std::vector<ChunkId> chunks;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_RETURN_IF_ERROR(lost_);
    MEMTIDE_ASSIGN_OR_RETURN(chunks, BoundTo(places));
    idle = cache_.TakeIdle(places);
  }
  MEMTIDE_RETURN_IF_ERROR(GiveBack(idle));
  return chunks;
}

absl::StatusOr<uint64_t> LeaseKeeper::Step(const StepPart& part) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, TakeFromHere(part.places));
  std::vector<Moment> moments;
  {
    const MutexLock lock(&mutex_);
    moments = log_.Take();
  }
  CountCall();
  return lender_->Step(part, chunks, moments);
}

absl::Status LeaseKeeper::Publish(const Publication& publication, absl::Span<const PlaceId> places,
                                  absl::Span<const PlaceId> fresh) {
  const Instant until = Now() + kPublishPatience;
  while (true) {
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks, TakeFromHere(places));
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> fresh_chunks, TakeFromHere(fresh));
    CountCall();
    const absl::Status status = lender_->Publish(publication, chunks, fresh_chunks);
    if (!absl::IsAborted(status) || Now() >= until) return status;
    const MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, kPublishAgain);
  }
}

absl::StatusOr<std::vector<ChunkId>> LeaseKeeper::BoundTo(absl::Span<const PlaceId> places) const {
  for (const PlaceId place : places) {
    if (cache_.IsBound(place)) continue;
    return absl::NotFoundError(absl::StrCat("place ", place.value(), " holds no chunk"));
  }
  return ChunksOf(places);
}

absl::StatusOr<std::vector<ChunkId>> LeaseKeeper::ChunkIds(PlaceRange range) const {
  std::vector<PlaceId> places;
  for (uint32_t i = 0; i < range.count; ++i) places.emplace_back(range.first.value() + i);
  const MutexLock lock(&mutex_);
  return BoundTo(places);
}

absl::StatusOr<std::vector<ChunkVersion>> LeaseKeeper::Versions(absl::Span<const PlaceId> places) {
  std::vector<ChunkId> chunks;
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_ASSIGN_OR_RETURN(chunks, BoundTo(places));
  }
  CountCall();
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, lender_->Versions(chunks));
  std::vector<ChunkVersion> versions;
  for (size_t i = 0; i < chunks.size(); ++i) versions.push_back({chunks[i], numbers[i]});
  return versions;
}

absl::StatusOr<PlaceRange> LeaseKeeper::Attach(const std::vector<ChunkId>& chunks) {
  if (chunks.empty()) return absl::InvalidArgumentError("zero chunks named");
  {
    const MutexLock lock(&mutex_);
    std::set<ChunkId> named;
    for (const ChunkId chunk : chunks) {
      if (named.insert(chunk).second && !cache_.IsBound(chunk)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", chunk.value(), " has a place already"));
    }
  }
  return Bind(chunks);
}

}  // namespace memtide::client
