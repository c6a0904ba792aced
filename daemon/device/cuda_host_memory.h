// CudaHostMemory: the host memory that copies use, pinned with cuMemHostRegister.
//
// Memory is pinned in pieces of at most 64 GiB, because larger ones have been seen to fail. A range
// that cannot be pinned stays in the table and is tried again after a reset of the GPU.
//
// Thread safety: thread-safe, except that PinAgain must not overlap with other calls.
#ifndef MEMTIDE_DAEMON_DEVICE_CUDA_HOST_MEMORY_H_
#define MEMTIDE_DAEMON_DEVICE_CUDA_HOST_MEMORY_H_

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/cuda/cuda.h"
#include "base/mutex.h"

namespace memtide {

class CudaHostMemory {
 public:
  // REQUIRES (all): the GPU's context is current in the calling thread.
  explicit CudaHostMemory(const CudaDriver* driver) : driver_(driver) {}

  // An error says why the range, which is added all the same, is not pinned. REQUIRES: the range
  // overlaps no other.
  absl::Status Add(char* memory, Bytes size);
  // REQUIRES: `memory` was added.
  void Remove(char* memory);
  // Pins every range again after a reset, which unpins all. Returns the last failure; its range
  // stays unpinned.
  absl::Status PinAgain();

 private:
  struct Range {
    Bytes size;
    bool pinned = false;
  };

  absl::Status UnpinPiece(char* memory);
  // Unpins the pieces of the first `size` bytes. A failure is retried once and then ignored.
  void Unpin(char* memory, Bytes size);
  absl::Status Pin(char* memory, Bytes size);

  const CudaDriver* const driver_;
  Mutex mutex_;
  std::map<char*, Range> ranges_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_CUDA_HOST_MEMORY_H_
