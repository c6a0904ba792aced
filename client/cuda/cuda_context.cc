#include "client/cuda/cuda_context.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide::client {
namespace {

absl::StatusOr<CudaDeviceFacts> FindDevice(const std::string& uuid) {
  CudaUuid wanted = {};
  if (uuid.size() != wanted.size()) {
    return absl::InternalError("the daemon's reply does not name the GPU that its memory is on");
  }
  std::memcpy(wanted.data(), uuid.data(), wanted.size());
  const std::string where = absl::StrCat("the daemon's memory is on ", FormatCudaUuid(wanted));
  const absl::StatusOr<std::vector<CudaDeviceFacts>> devices = CudaDevices();
  if (!devices.ok()) {
    return absl::Status(devices.status().code(),
                        absl::StrCat(where, "; ", devices.status().message()));
  }
  // The GPU may be hidden from this process or numbered differently, so it is found by its UUID.
  for (const CudaDeviceFacts& device : *devices) {
    if (device.uuid == wanted) return device;
  }
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return absl::FailedPreconditionError(absl::StrCat(
      where, ", which is not among the ", devices->size(), " GPUs that this process sees",
      visible == nullptr ? absl::StrCat("; is the GPU passed into this container?")
                         : absl::StrCat(": CUDA_VISIBLE_DEVICES is \"", visible, "\"")));
}

}  // namespace

CurrentCudaContext::CurrentCudaContext(const CudaDriver& driver, CUcontext context)
    : driver_(driver),
      status_(CudaStatus(driver.CtxPushCurrent(context), "entering the context")) {}

CurrentCudaContext::~CurrentCudaContext() {
  CUcontext popped = nullptr;
  if (status_.ok()) driver_.CtxPopCurrent(&popped);
}

absl::StatusOr<std::unique_ptr<CudaContext>> CudaContext::Open(const std::string& uuid) {
  MEMTIDE_ASSIGN_OR_RETURN(CudaDeviceFacts device, FindDevice(uuid));
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  std::unique_ptr<CudaContext> context(new CudaContext(driver, std::move(device)));
  MEMTIDE_RETURN_IF_ERROR(context->Start());
  return context;
}

absl::Status CudaContext::Start() {
  // The primary context is the one that the CUDA runtime uses, and torch with it.
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver_->DevicePrimaryCtxRetain(&context_, device_.ordinal),
                                     absl::StrCat("the context of GPU ", device_.ordinal)));
  const CurrentCudaContext current(*driver_, context_);
  MEMTIDE_RETURN_IF_ERROR(current.status());
  // With cudaEventBlockingSync a thread that waits sleeps instead of spinning.
  for (cudaEvent_t& event : events_) {
    MEMTIDE_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                   "making an event"));
  }
  return absl::OkStatus();
}

CudaContext::~CudaContext() {
  if (context_ == nullptr) return;
  {
    const CurrentCudaContext current(*driver_, context_);
    for (const cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  driver_->DevicePrimaryCtxRelease(device_.ordinal);
}

absl::StatusOr<uint64_t> CudaContext::RecordFence() {
  const uint64_t fence = last_.fetch_add(1) + 1;
  // With an older driver a fence is only a number, and AwaitFence waits for the whole device.
  if (driver_->CtxRecordEvent != nullptr) {
    MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver_->CtxRecordEvent(context_, events_[fence % kEvents]),
                                       "recording an event for the work of the context"));
  }
  return fence;
}

void CudaContext::MarkDone(uint64_t fence) {
  uint64_t before = done_.load();
  while (before < fence && !done_.compare_exchange_weak(before, fence)) {
  }
}

bool CudaContext::IsDone(uint64_t fence) {
  if (fence <= done_.load()) return true;
  // Without an event the device can only be waited for.
  if (driver_->CtxRecordEvent == nullptr || fence == kEverything) return AwaitFence(fence).ok();
  // If the event was recorded again, it stands for a later fence, which includes this fence's work.
  if (driver_->EventQuery(events_[fence % kEvents]) != CUDA_SUCCESS) return false;
  MarkDone(fence);
  return true;
}

absl::Status CudaContext::AwaitFence(uint64_t fence) {
  if (fence <= done_.load()) return absl::OkStatus();
  if (driver_->CtxRecordEvent != nullptr && fence != kEverything) {
    if (driver_->EventSynchronize(events_[fence % kEvents]) == CUDA_SUCCESS) {
      MarkDone(fence);
      return absl::OkStatus();
    }
    // The event failed, but its work may still be running: wait for the whole device below.
  }
  // Read before the wait, because work launched during the wait may not be complete after it.
  const uint64_t begun = last_.load();
  const CurrentCudaContext current(*driver_, context_);
  MEMTIDE_RETURN_IF_ERROR(current.status());
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "waiting for the GPU"));
  MarkDone(begun);
  return absl::OkStatus();
}

void CudaContext::AwaitOrAbort(uint64_t fence) {
  constexpr std::chrono::milliseconds kPause(5);
  constexpr std::chrono::minutes kTimeout(1);
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const absl::Status status = AwaitFence(fence);
    if (status.ok() || absl::IsUnavailable(status)) return;
    MEMTIDE_CHECK(std::chrono::steady_clock::now() - start < kTimeout)
        << "memory that the GPU may be using cannot be unmapped: " << status;
    // tidy(sleep): CUDA does not signal the end of a capture.
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace memtide::client
