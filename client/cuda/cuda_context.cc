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
    // Without a GPU or a driver this process cannot use the memory, which is there.
    const absl::StatusCode code = absl::IsNotFound(devices.status())
                                      ? absl::StatusCode::kFailedPrecondition
                                      : devices.status().code();
    return absl::Status(code, absl::StrCat(where, "; ", devices.status().message()));
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

// Between two looks at an event.
constexpr std::chrono::microseconds kPollInterval(50);

void RaiseTo(uint64_t value, std::atomic<uint64_t>* to) {
  uint64_t before = to->load();
  while (before < value && !to->compare_exchange_weak(before, value)) {
  }
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
  // Without CU_EVENT_BLOCKING_SYNC, which would cost an interrupt for each event: most events are
  // never waited for.
  for (CUevent& event : events_) {
    MEMTIDE_RETURN_IF_ERROR(
        CudaStatus(driver_->EventCreate(&event, CU_EVENT_DISABLE_TIMING), "making an event"));
  }
  return absl::OkStatus();
}

CudaContext::~CudaContext() {
  if (context_ == nullptr) return;
  {
    const CurrentCudaContext current(*driver_, context_);
    for (const CUevent event : events_) {
      if (event != nullptr) driver_->EventDestroy(event);
    }
  }
  driver_->DevicePrimaryCtxRelease(device_.ordinal);
}

uint64_t CudaContext::NoteWork() {
  const uint64_t epoch = open_.load();
  if (notes_.fetch_add(1) + 1 >= kNotesPerEpoch) EndEpoch();
  return epoch;
}

void CudaContext::EndEpoch() {
  // With an older driver an epoch is only a number, and Await waits for the whole device.
  if (notes_.load() == 0 || driver_->CtxRecordEvent == nullptr) return;
  // The work that was noted has been launched, so an error here must not fail the operation. A wait
  // that finds no event closes the next epoch.
  Close().status().IgnoreError();
}

absl::StatusOr<uint64_t> CudaContext::Close() {
  const uint64_t epoch = open_.fetch_add(1);
  notes_.store(0);
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver_->CtxRecordEvent(context_, event(epoch)),
                                     "recording an event for the work of the context"));
  // Another thread may have recorded the same event for a later epoch meanwhile.
  RaiseTo(epoch, &recorded_[epoch % kEvents]);
  return epoch;
}

absl::StatusOr<uint64_t> CudaContext::FindEvent(uint64_t epoch) {
  uint64_t oldest = 0;
  for (const std::atomic<uint64_t>& recorded : recorded_) {
    const uint64_t each = recorded.load();
    if (each >= epoch && (oldest == 0 || each < oldest)) oldest = each;
  }
  if (oldest != 0) return oldest;
  return Close();
}

void CudaContext::MarkDone(uint64_t epoch) { RaiseTo(epoch, &done_); }

bool CudaContext::IsDone(uint64_t epoch) {
  if (epoch <= done_.load()) return true;
  // Without events the device can only be waited for.
  if (driver_->CtxRecordEvent == nullptr) return Await(epoch).ok();
  const absl::StatusOr<uint64_t> found = FindEvent(epoch);
  if (!found.ok() || driver_->EventQuery(event(*found)) != CUDA_SUCCESS) return false;
  MarkDone(*found);
  return true;
}

absl::Status CudaContext::Await(uint64_t epoch) {
  if (epoch <= done_.load()) return absl::OkStatus();
  if (driver_->CtxRecordEvent != nullptr) {
    const absl::StatusOr<uint64_t> found = FindEvent(epoch);
    CUresult result = found.ok() ? CUDA_ERROR_NOT_READY : CUDA_ERROR_UNKNOWN;
    while (result == CUDA_ERROR_NOT_READY) {
      result = driver_->EventQuery(event(*found));
      // tidy(sleep): an event that is waited for by cuEventSynchronize makes the CPU spin.
      if (result == CUDA_ERROR_NOT_READY) std::this_thread::sleep_for(kPollInterval);
    }
    if (result == CUDA_SUCCESS) {
      MarkDone(*found);
      return absl::OkStatus();
    }
    // The event failed, but its work may still be running: wait for the whole device below.
  }
  // The epoch ends before the wait, because work launched during the wait may not be complete after
  // it.
  const uint64_t last = open_.fetch_add(1);
  const CurrentCudaContext current(*driver_, context_);
  MEMTIDE_RETURN_IF_ERROR(current.status());
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver_->CtxSynchronize(), "waiting for the GPU"));
  MarkDone(last);
  return absl::OkStatus();
}

absl::Status CudaContext::AwaitOrAbort(uint64_t epoch) {
  constexpr std::chrono::milliseconds kPause(5);
  constexpr std::chrono::minutes kTimeout(1);
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    absl::Status status = Await(epoch);
    if (status.ok() || absl::IsUnavailable(status)) return status;
    MEMTIDE_CHECK(std::chrono::steady_clock::now() - start < kTimeout)
        << "memory that the GPU may be using cannot be unmapped: " << status;
    // tidy(sleep): CUDA does not signal the end of a capture.
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace memtide::client
