#include "daemon/device/staging_ring.h"

#include <sys/mman.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/device/cuda_host_memory.h"

namespace memtide {
namespace {

// Below this, a copy of a piece takes no longer than to queue it.
constexpr Bytes kSmallestLane = KiB(512);
constexpr uint64_t kAllLanes = StagingRing::kLanes * StagingRing::kDirections;

}  // namespace

StagingRing::Lane::Lane(StagingRing* ring, Direction direction)
    : ring_(ring), direction_(direction) {
  MutexLock lock(&ring->mutex_);
  MEMTIDE_CHECK(!ring->lane_.IsZero()) << "no lanes are pinned";
  auto& used = ring->used_[direction];
  auto lane = std::find(used.begin(), used.end(), false);
  while (lane == used.end()) {
    ring->changed_.Wait(&ring->mutex_);
    lane = std::find(used.begin(), used.end(), false);
  }
  *lane = true;
  const size_t index = lane - used.begin();
  size_ = ring->lane_;
  memory_ = ring->memory_ + size_.count() * (kLanes * direction + index);
}

StagingRing::Lane::~Lane() {
  MutexLock lock(&ring_->mutex_);
  const uint64_t index = Bytes(memory_ - ring_->memory_) / size_ % kLanes;
  ring_->used_[direction_][index] = false;
  ring_->changed_.SignalAll();
}

absl::StatusOr<std::unique_ptr<StagingRing>> StagingRing::Make(const CudaDriver* driver,
                                                               absl::optional<int> node) {
  void* const memory = mmap(nullptr, kSize.count(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no addresses for ", FormatBytes(kSize), " of staging buffers"));
  }
  // A forked child would make this process's pages others than those that are pinned.
  madvise(memory, kSize.count(), MADV_DONTFORK);
  madvise(memory, kSize.count(), MADV_DONTDUMP);
  // Buffers on another node work, only slower.
  if (node) PreferNode(static_cast<char*>(memory), kSize, *node).IgnoreError();
  return std::unique_ptr<StagingRing>(new StagingRing(driver, static_cast<char*>(memory)));
}

StagingRing::~StagingRing() { munmap(memory_, kSize.count()); }

absl::Status StagingRing::Pin() {
  absl::Status status;
  for (Bytes lane = kLane;; lane = Bytes(lane.count() / 2)) {
    status = PinRange(*driver_, memory_, lane * kAllLanes);
    if (status.ok()) {
      MutexLock lock(&mutex_);
      lane_ = lane;
      return status;
    }
    if (status.code() != absl::StatusCode::kResourceExhausted || lane <= kSmallestLane) break;
  }
  MutexLock lock(&mutex_);
  lane_ = Bytes();
  return status;
}

void StagingRing::Unpin() {
  const Bytes was = pinned();
  if (was.IsZero()) return;
  UnpinRange(*driver_, memory_, was);
  MutexLock lock(&mutex_);
  lane_ = Bytes();
}

Bytes StagingRing::pinned() const {
  MutexLock lock(&mutex_);
  return lane_ * kAllLanes;
}

}  // namespace memtide
