// How CudaDevice survives the loss of its GPU.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/device/cuda_device.h"

namespace memtide {

namespace {

// A call causes few restarts: a GPU that is lost at every attempt would hold the thread for ever.
constexpr int kMostAttempts = 2;
// Copies that memory has failed together are repeated one by one. One that meets the context of
// another's repeated copy, which has failed again, has not been tried by itself.
constexpr int kMostAttemptsBesideOthers = 4;

}  // namespace

absl::Status CudaDevice::Run(const std::function<absl::Status()>& work) {
  for (int attempt = 1;; ++attempt) {
    uint64_t generation = 0;
    bool is_begun = false;
    absl::Status status;
    {
      const CudaGate::Use use(&gate_);
      generation = use.generation();
      MEMTIDE_RETURN_IF_ERROR(Lost());
      // The current context is a property of the calling thread, and several threads come here.
      status = UseGpu(facts_.ordinal);
      // It worked when the device was opened. Whatever the error is, the GPU is lost now: one that
      // falls off the bus says "unavailable" (46) or "unknown" (999).
      if (!status.ok()) status = absl::UnavailableError(status.message());
      is_begun = status.ok();
      if (is_begun) status = work();
    }
    if (absl::IsDataLoss(status)) {
      // Content of the memory that failed is not read again. The error has ended the context, and
      // copies that begin in it would inherit the error.
      Restart(generation, status).IgnoreError();
      return status;
    }
    const int most =
        is_begun && !IsCudaMemoryError(status) ? kMostAttempts : kMostAttemptsBesideOthers;
    if (attempt >= most || status.code() != absl::StatusCode::kUnavailable) return status;
    MEMTIDE_RETURN_IF_ERROR(Restart(generation, status));
  }
}

absl::Status CudaDevice::Lost() const {
  MutexLock lock(&mutex_);
  return lost_;
}

absl::Status CudaDevice::Restart(uint64_t generation, const absl::Status& why) {
  if (!gate_.Close(generation)) return Lost();
  Pinned pinned;
  const absl::Status revived = Revive(&pinned);
  absl::Status lost;
  if (!revived.ok()) {
    lost = absl::UnavailableError(
        absl::StrCat(why.message(), "; its context could not be restarted: ", revived.message()));
    options_.lost(lost);
    MutexLock lock(&mutex_);
    lost_ = absl::UnavailableError(absl::StrCat(Describe(), " was lost: ", lost.message()));
  }
  gate_.Open();
  // `warn` is the owner's code, so it runs outside the gate.
  options_.warn(lost.ok() ? absl::StrCat(Describe(), " was lost (", why.message(),
                                         ") and restarted; memory lent by descriptor was opened "
                                         "again")
                          : std::string(Lost().message()));
  WarnOfRing(pinned.ring);
  WarnUnpinned(pinned.host);
  return Lost();
}

// REQUIRES: the gate is closed.
absl::Status CudaDevice::Revive(Pinned* pinned) {
  // The first reset may only report the error that caused the restart. CUDA's documentation
  // promises nothing after such errors except to a new process; the calls below find out whether
  // this one can go on.
  if (!ResetGpu(facts_.ordinal).ok()) MEMTIDE_RETURN_IF_ERROR(ResetGpu(facts_.ordinal));
  MEMTIDE_RETURN_IF_ERROR(UseGpu(facts_.ordinal));
  // The reset has destroyed the streams.
  ++contexts_;
  streams_ = {};
  std::set<CudaMemory*> memories;
  {
    MutexLock lock(&mutex_);
    memories = memories_;
  }
  for (CudaMemory* const memory : memories) memory->Forget();
  MEMTIDE_RETURN_IF_ERROR(MakeStreams());
  // Copies also work from memory that is not pinned.
  pinned->ring = ring_->Pin();
  pinned->host = host_.PinAgain();
  for (CudaMemory* const memory : memories) MEMTIDE_RETURN_IF_ERROR(memory->Reopen());
  return absl::OkStatus();
}

}  // namespace memtide
