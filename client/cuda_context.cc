#include "client/cuda_context.h"

#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace memtide::client {
namespace {

absl::StatusOr<CudaDeviceFacts> FindDevice(const std::string& uuid) {
  CudaUuid wanted = {};
  if (uuid.size() != wanted.size()) {
    return absl::InternalError("the daemon does not say which GPU its memory is on");
  }
  std::memcpy(wanted.data(), uuid.data(), wanted.size());
  const std::string where = absl::StrCat("the daemon's memory is on ", FormatCudaUuid(wanted));
  const absl::StatusOr<std::vector<CudaDeviceFacts>> devices = CudaDevices();
  if (!devices.ok()) {
    return absl::Status(devices.status().code(),
                        absl::StrCat(where, "; ", devices.status().message()));
  }
  for (const CudaDeviceFacts& device : *devices) {
    if (device.uuid == wanted) return device;
  }
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return absl::FailedPreconditionError(absl::StrCat(
      where, ", which is not among the ", devices->size(), " GPUs that this process sees",
      visible == nullptr ? absl::StrCat("; is it passed into this container?")
                         : absl::StrCat(": CUDA_VISIBLE_DEVICES is \"", visible, "\"")));
}

}  // namespace

CurrentCudaDevice::CurrentCudaDevice(int ordinal) {
  status_ = CudaStatus(cudaGetDevice(&before_), "asking for the current GPU");
  if (status_.ok()) status_ = CudaStatus(cudaSetDevice(ordinal), absl::StrCat("GPU ", ordinal));
}

CurrentCudaDevice::~CurrentCudaDevice() {
  // It was current, so it can be again.
  if (status_.ok()) cudaSetDevice(before_);
}

absl::StatusOr<std::unique_ptr<CudaContext>> CudaContext::Open(const std::string& uuid) {
  MEMTIDE_ASSIGN_OR_RETURN(CudaDeviceFacts device, FindDevice(uuid));
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  std::unique_ptr<CudaContext> context(new CudaContext(driver, std::move(device)));
  MEMTIDE_RETURN_IF_ERROR(context->MakeEvents());
  return context;
}

absl::Status CudaContext::MakeEvents() {
  const CurrentCudaDevice current(ordinal());
  MEMTIDE_RETURN_IF_ERROR(current.status());
  for (cudaEvent_t& event : events_) {
    MEMTIDE_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                   "making an event"));
  }
  return CudaStatus(driver_->CtxGetCurrent(&context_), "asking for the context");
}

CudaContext::~CudaContext() {
  for (const cudaEvent_t event : events_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

absl::StatusOr<uint64_t> CudaContext::RecordFence() {
  const uint64_t fence = last_.fetch_add(1) + 1;
  if (driver_->CtxRecordEvent != nullptr) {
    MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver_->CtxRecordEvent(context_, events_[fence % kEvents]),
                                       "recording what the GPU is to do first"));
  }
  return fence;
}

absl::Status CudaContext::AwaitFence(uint64_t fence) {
  if (driver_->CtxRecordEvent != nullptr && fence != kEverything) {
    // Recorded again meanwhile, the event stands for a later fence, which holds this one's work.
    const cudaEvent_t event = events_[fence % kEvents];
    if (CudaStatus(cudaEventSynchronize(event), "waiting for the GPU").ok()) {
      return absl::OkStatus();
    }
    // What it was for may be under way still.
  }
  const CurrentCudaDevice current(ordinal());
  MEMTIDE_RETURN_IF_ERROR(current.status());
  return CudaStatus(cudaDeviceSynchronize(), "waiting for the GPU");
}

}  // namespace memtide::client
