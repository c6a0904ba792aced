// CudaContext: this process's use of one GPU, and when what it has begun there is done.
//
// The context is the GPU's primary one, which the CUDA runtime, and so PyTorch, uses too. Fences
// are recorded from any thread and without a change of that thread's current device. Thread-safe.
#ifndef MEMTIDE_CLIENT_CUDA_CONTEXT_H_
#define MEMTIDE_CLIENT_CUDA_CONTEXT_H_

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
  // `uuid`: as ReserveCudaSpace.
  static absl::StatusOr<std::unique_ptr<CudaContext>> Open(const std::string& uuid);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  // As this process counts its GPUs.
  int ordinal() const { return device_.ordinal; }
  // Whether memory can be taken in by descriptor, and mapped.
  bool descriptors() const { return device_.descriptors; }

  CUcontext context() const { return context_; }

  // Not of RecordFence: what has been begun when it is awaited.
  static constexpr uint64_t kEverything = UINT64_MAX;
  // A number for all work that the process has begun on the GPU so far. Numbers grow. Where this
  // fails, kEverything stands for that work.
  absl::StatusOr<uint64_t> RecordFence();
  // Whether the work of that fence is done. Blocks for kEverything only.
  bool IsDone(uint64_t fence);
  // Waits until the work of that fence is done, or later work as well.
  absl::Status AwaitFence(uint64_t fence);
  // The same where no answer but yes will do: asks again while CUDA cannot say (a capture of
  // another thread forbids to wait). Returns also when the context is lost, and all its work with
  // it. Ends the process when neither is so for a minute.
  void AwaitOrLose(uint64_t fence);

 private:
  // Fences that can be waited for exactly; of an older one, a later one's work is waited for.
  static constexpr uint64_t kEvents = 256;

  CudaContext(const CudaDriver* driver, CudaDeviceFacts device)
      : driver_(driver), device_(std::move(device)) {}
  absl::Status Start();
  void NoteDone(uint64_t fence);

  const CudaDriver* const driver_;
  const CudaDeviceFacts device_;
  CUcontext context_ = nullptr;  // Retained.
  std::array<cudaEvent_t, kEvents> events_ = {};

  std::atomic<uint64_t> last_{0};
  // The greatest fence known to be done. So are those below it: each number is taken before its
  // event is recorded.
  std::atomic<uint64_t> done_{0};
};

// Makes a context the calling thread's current one, until destroyed; then the one before is, or
// none. By the driver's stack: the runtime would make a context on the GPU that it takes for
// current.
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

#endif  // MEMTIDE_CLIENT_CUDA_CONTEXT_H_
