// CudaContext: this process's use of one GPU, and fences that say when launched work is complete.
//
// The context is the GPU's primary context, which the CUDA runtime and thus PyTorch use as well.
// Fences may be recorded from any thread; they do not change the thread's current device.
// Thread-safe.
#ifndef MEMTIDE_CLIENT_CUDA_CUDA_CONTEXT_H_
#define MEMTIDE_CLIENT_CUDA_CUDA_CONTEXT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/cuda.h"

namespace memtide::client {

class CudaContext {
 public:
  // Opens the GPU with this UUID of 16 bytes. Errors: those of ReserveCudaSpace.
  static absl::StatusOr<std::unique_ptr<CudaContext>> Open(const std::string& uuid);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  // The GPU's number in this process.
  int ordinal() const { return device_.ordinal; }
  // Whether memory can be imported by descriptor and mapped.
  bool descriptors() const { return device_.descriptors; }

  CUcontext context() const { return context_; }

  // Stands for all work launched before the wait. RecordFence never returns it.
  static constexpr uint64_t kEverything = UINT64_MAX;
  // Returns a fence for all work that the process has launched on the GPU so far. Later fences are
  // greater. On an error the caller uses kEverything instead.
  absl::StatusOr<uint64_t> RecordFence();
  // Whether the work of the fence is complete. Blocks only for kEverything.
  bool IsDone(uint64_t fence);
  // Waits until the work of the fence is complete; may wait for later work as well.
  absl::Status AwaitFence(uint64_t fence);
  // Waits until the work of the fence cannot touch memory any more: it is complete, or the context
  // is lost and all work with it. Retries while CUDA refuses to wait (during a graph capture of
  // another thread), and CHECK-fails after a minute.
  void AwaitOrAbort(uint64_t fence);

 private:
  // The number of fences with an event of their own. Waiting for an older one waits for a later
  // one.
  static constexpr uint64_t kEvents = 256;

  CudaContext(const CudaDriver* driver, CudaDeviceFacts device)
      : driver_(driver), device_(std::move(device)) {}
  absl::Status Start();
  void MarkDone(uint64_t fence);

  const CudaDriver* const driver_;
  const CudaDeviceFacts device_;
  CUcontext context_ = nullptr;  // Retained until destruction.
  std::array<cudaEvent_t, kEvents> events_ = {};

  std::atomic<uint64_t> last_{0};
  // The greatest fence known to be complete. All smaller ones are complete too, because a fence
  // takes its number before it records its event.
  std::atomic<uint64_t> done_{0};
};

// Makes a context the current one of the calling thread until destroyed. It uses the driver's
// context stack, because cudaSetDevice would create a context on the previous device when restoring
// it.
class CurrentCudaContext {
 public:
  CurrentCudaContext(const CudaDriver& driver, CUcontext context);
  ~CurrentCudaContext();
  CurrentCudaContext(const CurrentCudaContext&) = delete;
  CurrentCudaContext& operator=(const CurrentCudaContext&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  const absl::Status status_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CUDA_CUDA_CONTEXT_H_
