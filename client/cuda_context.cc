#include "client/cuda_context.h"

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
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver_->DevicePrimaryCtxRetain(&context_, device_.ordinal),
                                     absl::StrCat("the context of GPU ", device_.ordinal)));
  const CurrentCudaContext current(*driver_, context_);
  MEMTIDE_RETURN_IF_ERROR(current.status());
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
  if (driver_->CtxRecordEvent != nullptr) {
    MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver_->CtxRecordEvent(context_, events_[fence % kEvents]),
                                       "recording what the GPU is to do first"));
  }
  return fence;
}

void CudaContext::NoteDone(uint64_t fence) {
  uint64_t before = done_.load();
  while (before < fence && !done_.compare_exchange_weak(before, fence)) {
  }
}

bool CudaContext::IsDone(uint64_t fence) {
  if (fence <= done_.load()) return true;
  if (driver_->CtxRecordEvent == nullptr || fence == kEverything) return AwaitFence(fence).ok();
  // Recorded again meanwhile, the event stands for a later fence, which holds this one's work.
  if (driver_->EventQuery(events_[fence % kEvents]) != CUDA_SUCCESS) return false;
  NoteDone(fence);
  return true;
}

absl::Status CudaContext::AwaitFence(uint64_t fence) {
  if (fence <= done_.load()) return absl::OkStatus();
  if (driver_->CtxRecordEvent != nullptr && fence != kEverything) {
    if (driver_->EventSynchronize(events_[fence % kEvents]) == CUDA_SUCCESS) {
      NoteDone(fence);
      return absl::OkStatus();
    }
    // What it was for may be under way still.
  }
  const uint64_t begun = last_.load();
  const CurrentCudaContext current(*driver_, context_);
  MEMTIDE_RETURN_IF_ERROR(current.status());
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "waiting for the GPU"));
  NoteDone(begun);
  return absl::OkStatus();
}

void CudaContext::AwaitOrLose(uint64_t fence) {
  constexpr std::chrono::milliseconds kPause(5);
  constexpr std::chrono::minutes kPatience(1);
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const absl::Status status = AwaitFence(fence);
    if (status.ok() || absl::IsUnavailable(status)) return;
    MEMTIDE_CHECK(std::chrono::steady_clock::now() - start < kPatience)
        << "memory that the GPU may be using cannot be unmapped: " << status;
    // tidy(sleep): CUDA gives no sign of when it can say.
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace memtide::client
