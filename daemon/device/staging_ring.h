// StagingRing: pinned buffers, through which CudaDevice copies from and to host memory that is not
// pinned.
//
// CUDA stages such copies itself, at a half to a quarter of the link's rate, and holds the calling
// thread meanwhile. Here the calling thread copies one piece between its memory and a buffer while
// the copy engine is busy with the others. The buffers are few, and pinned before anything else, so
// they are there however little can be pinned: each direction has a lane for each of the two copies
// that the Mover has in flight.
//
// Thread safety: thread-safe, except that Pin and Unpin must not overlap with other calls.
#ifndef MEMTIDE_DAEMON_DEVICE_STAGING_RING_H_
#define MEMTIDE_DAEMON_DEVICE_STAGING_RING_H_

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/cuda/cuda.h"
#include "base/mutex.h"
#include "base/numa.h"

namespace memtide {

class StagingRing {
 public:
  enum Direction { kIn, kOut, kDirections };
  static constexpr size_t kLanes = 2;  // In each direction.
  static constexpr Bytes kLane = MiB(4);
  static constexpr Bytes kSize = Bytes(kLane.count() * kLanes * kDirections);

  // The memory for the buffers of one copy, for as long as it runs. The constructor waits while all
  // lanes of the direction are in use. REQUIRES: a copy holds one lane at most, and lanes are
  // pinned.
  class Lane {
   public:
    Lane(StagingRing* ring, Direction direction);
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    char* memory() const { return memory_; }
    Bytes size() const { return size_; }

   private:
    StagingRing* const ring_;
    const Direction direction_;
    char* memory_ = nullptr;
    Bytes size_;
  };

  // Makes the buffers' memory, near the GPU if `node` is one. RESOURCE_EXHAUSTED: there is none.
  static absl::StatusOr<std::unique_ptr<StagingRing>> Make(const CudaDriver* driver,
                                                           absl::optional<int> node);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // Pins all lanes, or smaller ones if the machine permits no more. An error says why there are
  // none. Also after a reset of the GPU, which unpins them. REQUIRES (both): the GPU's context is
  // current, and no lane is in use.
  absl::Status Pin();
  void Unpin();
  // Zero: there are no lanes.
  Bytes pinned() const;

 private:
  StagingRing(const CudaDriver* driver, char* memory) : driver_(driver), memory_(memory) {}

  const CudaDriver* const driver_;
  char* const memory_;

  mutable Mutex mutex_;
  CondVar changed_;
  Bytes lane_ ABSL_GUARDED_BY(mutex_);  // The size of each. Zero: none is pinned.
  std::array<std::array<bool, kLanes>, kDirections> used_ ABSL_GUARDED_BY(mutex_) = {};
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_STAGING_RING_H_
