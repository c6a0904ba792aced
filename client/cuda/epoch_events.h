// EpochEvents: a ring of events. An event is complete when all work is complete that this process
// had launched in a GPU's context when the event was recorded, on the streams that it covers:
//
//   MakeContextEvents   every stream: one CUDA event for the context (CUDA 12.5, driver 555, or
//                       newer)
//   StreamEvents        the streams that Cover has named: one CUDA event for each of them
//
// An event that is recorded again covers what it covered before, and more.
//
// Thread-safe. Ownership: the context must outlive the events, which are destroyed with it current.
#ifndef MEMTIDE_CLIENT_CUDA_EPOCH_EVENTS_H_
#define MEMTIDE_CLIENT_CUDA_EPOCH_EVENTS_H_

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/cuda.h"
#include "base/mutex.h"

namespace memtide::client {

class EpochEvents {
 public:
  static constexpr size_t kCount = 256;

  virtual ~EpochEvents() = default;
  // Records event number `index`, less than kCount, for all work launched so far.
  virtual absl::Status Record(size_t index) = 0;
  // CUDA_SUCCESS: the event is complete, or was never recorded. CUDA_ERROR_NOT_READY: it is not.
  virtual CUresult Query(size_t index) = 0;
};

// REQUIRES: the driver has cuCtxRecordEvent; `context` is current.
absl::StatusOr<std::unique_ptr<EpochEvents>> MakeContextEvents(const CudaDriver& driver,
                                                               CUcontext context);

class StreamEvents : public EpochEvents {
 public:
  // The most streams that are recorded one by one. Each costs a call of the driver, which is not
  // measured on a GPU yet.
  static constexpr size_t kMaxStreams = 32;

  StreamEvents(const CudaDriver& driver, CUcontext context);
  ~StreamEvents() override;
  StreamEvents(const StreamEvents&) = delete;
  StreamEvents& operator=(const StreamEvents&) = delete;

  // Adds these streams to the ones that are covered from the next Record on. They must exist as
  // long as this object. False: there would be more than kMaxStreams, and none is added.
  bool Cover(absl::Span<const CUstream> streams);

  absl::Status Record(size_t index) override;
  CUresult Query(size_t index) override;

 private:
  std::vector<CUstream> covered() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the first `count` CUDA events of event `index`, and makes those that do not exist.
  absl::StatusOr<std::vector<CUevent>> Events(size_t index, size_t count)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const CudaDriver& driver_;
  const CUcontext context_;
  mutable Mutex mutex_;
  std::vector<CUstream> covered_ ABSL_GUARDED_BY(mutex_);
  // By event: one CUDA event for each stream of covered_, in its order, once it was recorded.
  std::array<std::vector<CUevent>, kCount> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CUDA_EPOCH_EVENTS_H_
