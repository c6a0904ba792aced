// CudaContext: this process's use of one GPU, and epochs that say when launched work is complete.
//
// The context is the GPU's primary context, which the CUDA runtime and thus PyTorch use as well.
//
// Time is divided into epochs, numbered from 1. Work belongs to the epoch that is open when it has
// been launched; NoteWork returns its number and calls CUDA once in 32 times only, because a call
// for each operation would slow the program down. When an epoch is closed, an event is recorded
// that includes all work of the context so far; so an epoch's event stands for all earlier epochs,
// too. The last 256 events are kept, and work is waited for by the oldest kept event that includes
// it.
//
// Drivers before CUDA 12.5 have no event for a context. With them an epoch's event is one for each
// stream that CoverStreams has named, and while none are named, or work may be on others, no event
// is recorded and the whole context is waited for.
//
// Another library of the process may capture a CUDA graph (CuPy, Warp, TensorRT). An event for the
// context and a wait for it invalidate the capture, and so does the query of an event in CUDA's
// global mode of capture. CudaContext therefore asks CUDA for captures before each of these calls.
// CUDA tells of those on streams that the default stream waits for, and of no others. No event is
// recorded and nothing counts as complete until such a capture ends.
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
#include "absl/types/span.h"
#include "base/cuda/cuda.h"
#include "client/cuda/epoch_events.h"

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

  // Whether waits get shorter by CoverStreams.
  bool needs_streams() const { return streams_ != nullptr; }
  // From now on the program launches work on memory of chunks on these CUstreams only, and on those
  // of earlier calls, all of which exist until the process ends. More than
  // StreamEvents::kMaxStreams are as CoverAllStreams. REQUIRES: needs_streams().
  void CoverStreams(absl::Span<const uint64_t> streams);
  // The program may launch work on any stream, as before the first CoverStreams.
  // REQUIRES: needs_streams().
  void CoverAllStreams();

  // Returns the epoch of all work that the process has launched on the GPU so far.
  uint64_t NoteWork();
  // Closes the open epoch if any work was noted in it. If CUDA records no event for it, a later one
  // stands for it.
  void EndEpoch();
  // Whether all work up to the end of `epoch` is complete. False during a capture. Ends the epoch
  // if it is open. Blocks only where no event is recorded (CoverAllStreams).
  bool IsDone(uint64_t epoch);
  // Waits until all work up to the end of `epoch` is complete; may wait for later work as well.
  // Retries for a minute while a thread of the process captures a graph. UNAVAILABLE: the context
  // is lost. INTERNAL: the capture has not ended.
  absl::Status Await(uint64_t epoch);
  // As Await, for memory that the work of the epoch must not touch any more. UNAVAILABLE: the
  // context is lost and all work with it, or CUDA refuses to wait, so that the context must be
  // given up: no wait retries from then on.
  absl::Status AwaitOrGiveUp(uint64_t epoch);

 private:
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
  // CUDA's error if there is a capture that it tells of; CUDA_SUCCESS if not, or if it does not
  // answer.
  CUresult AskForCaptures() const;
  // Queries event number `event` of the ring, unless there is a capture.
  CUresult Query(size_t event);
  // As Await, with CUDA's own error.
  CUresult AwaitAfterCaptures(uint64_t epoch);
  // As AwaitAfterCaptures, without the retries.
  CUresult TryAwait(uint64_t epoch);
  // As TryAwait, by the events. CUDA_ERROR_NOT_FOUND: none stands for the epoch.
  CUresult AwaitEvent(uint64_t epoch);
  // Whether no event stands for the work, because it may be on streams that were not covered.
  bool IsUncovered() const { return uncovered_until_.load() > done_.load(); }

  const CudaDriver* const driver_;
  const CudaDeviceFacts device_;
  CUcontext context_ = nullptr;  // Retained until destruction.
  std::unique_ptr<EpochEvents> events_;
  StreamEvents* streams_ = nullptr;  // events_, if that is what they are.

  // An epoch's number is taken before its event is recorded: work of an epoch was noted, and thus
  // launched, before the next epoch was opened, so that the event includes it.
  std::atomic<uint64_t> open_{1};
  std::atomic<uint32_t> notes_{0};  // Notes in the open epoch.
  // By event: the latest epoch for which it is recorded; zero: none. The event may be recorded
  // again for a later epoch, which includes this one.
  std::array<std::atomic<uint64_t>, EpochEvents::kCount> recorded_ = {};
  // The greatest epoch known to be complete. All earlier ones are complete, too.
  std::atomic<uint64_t> done_{0};
  // Up to this epoch, work may be on streams that no event covers.
  std::atomic<uint64_t> uncovered_until_{0};
  std::atomic<bool> given_up_{false};  // By AwaitOrGiveUp.
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CUDA_CUDA_CONTEXT_H_
