// CudaContext: this process's use of one GPU, and epochs that say when launched work is complete.
//
// The context is the GPU's primary context, which the CUDA runtime and thus PyTorch use as well.
//
// Time is divided into epochs, numbered from 1. Work belongs to the epoch that is open when it has
// been launched; NoteWork returns its number and calls CUDA once in 32 times only, because a call
// for each operation would slow the program down. When an epoch is closed, an event is recorded
// that includes all work of the context so far, on every stream; so an epoch's event stands for all
// earlier epochs, too. The last 256 events are kept, and work is waited for by the oldest kept
// event that includes it.
//
// Thread-safe; no method changes the thread's current device.
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

  // Returns the epoch of all work that the process has launched on the GPU so far.
  uint64_t NoteWork();
  // Closes the open epoch if any work was noted in it. If CUDA records no event for it, a later one
  // stands for it.
  void EndEpoch();
  // Whether all work up to the end of `epoch` is complete. Ends the epoch if it is open. Blocks
  // only with drivers that record no events for a context.
  bool IsDone(uint64_t epoch);
  // Waits until all work up to the end of `epoch` is complete; may wait for later work as well.
  // UNAVAILABLE: the context is lost.
  absl::Status Await(uint64_t epoch);
  // Waits until the work of the epoch cannot touch memory any more: it is complete, or the context
  // is lost and all work with it, which is UNAVAILABLE. Retries while CUDA refuses to wait (during
  // a graph capture of another thread), and CHECK-fails after a minute.
  absl::Status AwaitOrAbort(uint64_t epoch);

 private:
  // The number of kept events.
  static constexpr uint64_t kEvents = 256;
  // An epoch is closed when work was noted this often in it.
  static constexpr uint32_t kNotesPerEpoch = 32;

  CudaContext(const CudaDriver* driver, CudaDeviceFacts device)
      : driver_(driver), device_(std::move(device)) {}
  absl::Status Start();
  // Returns the number of an epoch that has an event and is `epoch` or later, the oldest such one.
  // Closes the open epoch if there is none yet.
  absl::StatusOr<uint64_t> FindEvent(uint64_t epoch);
  // Closes the open epoch and returns its number.
  absl::StatusOr<uint64_t> Close();
  void MarkDone(uint64_t epoch);
  CUevent event(uint64_t epoch) const { return events_[epoch % kEvents]; }

  const CudaDriver* const driver_;
  const CudaDeviceFacts device_;
  CUcontext context_ = nullptr;  // Retained until destruction.
  std::array<CUevent, kEvents> events_ = {};

  // An epoch's number is taken before its event is recorded: work of an epoch was noted, and thus
  // launched, before the next epoch was opened, so that the event includes it.
  std::atomic<uint64_t> open_{1};
  std::atomic<uint32_t> notes_{0};  // Notes in the open epoch.
  // By event: the latest epoch for which it is recorded; zero: none. The event may be recorded
  // again for a later epoch, which includes this one.
  std::array<std::atomic<uint64_t>, kEvents> recorded_ = {};
  // The greatest epoch known to be complete. All earlier ones are complete, too.
  std::atomic<uint64_t> done_{0};
};

// Makes a context the current one of the calling thread until destroyed. It uses the driver's
// context stack, which restores what was current before, also if that was none.
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
