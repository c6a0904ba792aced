// CudaHostMemory: the host memory that copies use, pinned with cudaHostRegister.
//
// In pieces of at most 64 GiB, as larger ones have been seen to fail. Memory that cannot be pinned
// is remembered all the same, and tried again after a reset of the GPU. Thread-safe, but CudaDevice
// keeps PinAgain apart from the rest.
#ifndef MEMTIDE_DAEMON_DEVICE_CUDA_HOST_MEMORY_H_
#define MEMTIDE_DAEMON_DEVICE_CUDA_HOST_MEMORY_H_

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/mutex.h"

namespace memtide {

class CudaHostMemory {
 public:
  // Not OK: it is there, and not pinned; why. REQUIRES: it is not there yet, and ends before and
  // begins after all that is.
  absl::Status Add(char* memory, Bytes size);
  // REQUIRES: it is there.
  void Remove(char* memory);
  // After a reset, which unpins everything. What fails is unpinned, and the last failure returned.
  absl::Status PinAgain();

 private:
  struct Range {
    Bytes size;
    bool pinned = false;
  };

  Mutex mutex_;
  std::map<char*, Range> ranges_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_CUDA_HOST_MEMORY_H_
