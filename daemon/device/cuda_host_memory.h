// CudaHostMemory: the host memory that copies use, pinned with cuMemHostRegister as far as the
// machine permits.
//
// How much a process can pin is no number that could be read: it depends on the machine (WSL2
// permits 0.75 to 1 GiB in all), the container and the other processes. So the limit is found: when
// the first range cannot be pinned for lack of memory, what is pinned is the limit, an eighth of it
// (256 MiB at most) is unpinned again for the CUDA of scripts and of this process, and later ranges
// stay unpinned without an attempt. Once half of the limit is unpinned it is forgotten.
//
// Memory is pinned in pieces of at most 64 GiB, because larger ones have been seen to fail. A range
// that cannot be pinned stays in the table and is tried again after a reset of the GPU.
//
// A process has one GPU and one CudaHostMemory. Where a daemon has several GPUs, each of their
// processes pins all of the host memory, and finds the limit by itself.
//
// Thread safety: thread-safe, except that calls for one range must not overlap. No lock is held
// during a call of CUDA.
#ifndef MEMTIDE_DAEMON_DEVICE_CUDA_HOST_MEMORY_H_
#define MEMTIDE_DAEMON_DEVICE_CUDA_HOST_MEMORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/cuda/cuda.h"
#include "base/mutex.h"

namespace memtide {

// Pins or unpins one range. An error of PinRange leaves nothing pinned; a failure of UnpinRange is
// retried once and then ignored. REQUIRES: the GPU's context is current in the calling thread.
absl::Status PinRange(const CudaDriver& driver, char* memory, Bytes size);
void UnpinRange(const CudaDriver& driver, char* memory, Bytes size);

class CudaHostMemory {
 public:
  struct Amounts {
    Bytes added, pinned;
  };

  // Keeps the pin of a range for as long as it exists, which is during a copy.
  class Use {
   public:
    // [begin, begin + size) is any host memory.
    Use(CudaHostMemory* memory, const char* begin, Bytes size);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    // Whether all of the memory is in one range that is pinned.
    bool pinned() const { return range_ != nullptr; }

   private:
    CudaHostMemory* const memory_;
    char* range_ = nullptr;
  };

  // REQUIRES (all but Use and amounts): the GPU's context is current in the calling thread.
  explicit CudaHostMemory(const CudaDriver* driver) : driver_(driver) {}

  // An error says why the range, which is added all the same, is not pinned. REQUIRES: it overlaps
  // no other.
  absl::Status Add(char* memory, Bytes size);
  // REQUIRES: `memory` was added, and no copy uses it.
  void Remove(char* memory);
  // Unpins ranges that no copy uses until `size` bytes are unpinned, and pins no more than what is
  // left. Returns what was unpinned: less than `size` if copies use the rest.
  Bytes Release(Bytes size);
  // Pins every range again after a reset of the GPU, which has unpinned all. Returns the last
  // failure; its range stays unpinned. REQUIRES: no copy and no other call is in flight.
  absl::Status PinAgain();

  // Both are read in one moment, so that `pinned` is never more than `added`.
  Amounts amounts() const;

 private:
  struct Range {
    Bytes size;
    bool pinned = false;
    bool changing = false;  // Release is unpinning it, without the lock.
    // A reset may have left it pinned, although no copy uses it so.
    bool may_be_pinned = false;
    uint64_t uses = 0;  // Copies.
  };
  using Victims = std::vector<std::pair<char*, Bytes>>;

  absl::Status Refusal(Bytes size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Victims Choose(Bytes size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Answers a failed pin: finds the limit, if it was for lack of memory.
  void Learn(const absl::Status& failure);

  const CudaDriver* const driver_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<char*, Range, std::less<>> ranges_ ABSL_GUARDED_BY(mutex_);
  Amounts amounts_ ABSL_GUARDED_BY(mutex_);
  // The most that is pinned. Absent: as much as there is.
  absl::optional<Bytes> limit_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_CUDA_HOST_MEMORY_H_
