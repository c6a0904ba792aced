#include "client/cuda_context.h"

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace memtide::client {
namespace {

absl::StatusOr<int> OrdinalOf(const std::string& uuid) {
  CudaUuid wanted = {};
  if (uuid.size() != wanted.size()) {
    return absl::InternalError("the daemon does not say which GPU its memory is on");
  }
  std::memcpy(wanted.data(), uuid.data(), wanted.size());
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, CudaDevices());
  for (const CudaDeviceFacts& device : devices) {
    if (device.uuid == wanted) return device.ordinal;
  }
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return absl::FailedPreconditionError(absl::StrCat(
      "the daemon's memory is on ", FormatCudaUuid(wanted), ", which is not among the ",
      devices.size(), " GPUs that this process sees",
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
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  MEMTIDE_ASSIGN_OR_RETURN(const int ordinal, OrdinalOf(uuid));
  std::unique_ptr<CudaContext> context(new CudaContext(driver, ordinal));
  MEMTIDE_RETURN_IF_ERROR(context->MakeEvents());
  return context;
}

absl::Status CudaContext::MakeEvents() {
  const CurrentCudaDevice current(ordinal_);
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
  if (driver_->CtxRecordEvent != nullptr) {
    // Recorded again meanwhile, the event stands for a later fence, which holds this one's work.
    return CudaStatus(cudaEventSynchronize(events_[fence % kEvents]), "waiting for the GPU");
  }
  const CurrentCudaDevice current(ordinal_);
  MEMTIDE_RETURN_IF_ERROR(current.status());
  return CudaStatus(cudaDeviceSynchronize(), "waiting for the GPU");
}

}  // namespace memtide::client
