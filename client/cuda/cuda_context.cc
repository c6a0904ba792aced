#include "client/cuda/cuda_context.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cuda/cuda_space.h"
#include "client/cuda/current_context.h"

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
// An epoch that is never reached.
constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// Whether CUDA refused because a thread of the process captures a graph.
bool IsOfCapture(CUresult error) {
  return error >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         error <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

void RaiseTo(uint64_t value, std::atomic<uint64_t>* to) {
  uint64_t before = to->load();
  while (before < value && !to->compare_exchange_weak(before, value)) {
  }
}

}  // namespace

absl::StatusOr<std::string> CudaDeviceUuid(uint32_t ordinal) {
  const absl::StatusOr<std::vector<CudaDeviceFacts>> devices = CudaDevices();
  if (!devices.ok() && !absl::IsNotFound(devices.status())) return devices.status();
  const size_t count = devices.ok() ? devices->size() : 0;
  if (ordinal < count) {
    const CudaUuid& uuid = (*devices)[ordinal].uuid;
    return std::string(uuid.data(), uuid.size());
  }
  return absl::FailedPreconditionError(
      absl::StrCat("device: \"cuda:", ordinal, "\", but this process sees ", count, " GPUs",
                   devices.ok() ? "" : absl::StrCat(" (", devices.status().message(), ")")));
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
  if (driver_->events.RecordContext != nullptr) {
    MEMTIDE_ASSIGN_OR_RETURN(events_, MakeContextEvents(*driver_, context_));
    return absl::OkStatus();
  }
  auto streams = std::make_unique<StreamEvents>(*driver_, context_);
  streams_ = streams.get();
  events_ = std::move(streams);
  CoverAllStreams();
  return absl::OkStatus();
}

CudaContext::~CudaContext() {
  if (context_ == nullptr) return;
  events_.reset();
  driver_->DevicePrimaryCtxRelease(device_.ordinal);
}

void CudaContext::CoverAllStreams() { uncovered_until_.store(kNever); }

void CudaContext::CoverStreams(absl::Span<const uint64_t> streams) {
  std::vector<CUstream> covered;
  for (const uint64_t stream : streams) covered.push_back(reinterpret_cast<CUstream>(stream));
  if (!streams_->Cover(covered)) return CoverAllStreams();
  // The work so far may be on other streams. It is in epochs before the one that begins here.
  uint64_t all = kNever;
  uncovered_until_.compare_exchange_strong(all, open_.fetch_add(1));
}

uint64_t CudaContext::NoteWork() {
  const uint64_t epoch = open_.load();
  if (notes_.fetch_add(1) + 1 >= kNotesPerEpoch) EndEpoch();
  return epoch;
}

void CudaContext::EndEpoch() {
  if (notes_.load() == 0 || uncovered_until_.load() == kNever) return;
  // The work that was noted has been launched, so an error here must not fail the operation. A wait
  // that finds no event closes the next epoch.
  Close().status().IgnoreError();
}

CUresult CudaContext::AskForCaptures() const {
  if (driver_->CtxPushCurrent(context_) != CUDA_SUCCESS) return CUDA_SUCCESS;
  CUstreamCaptureStatus of_default = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult answer = driver_->StreamIsCapturing(CU_STREAM_LEGACY, &of_default);
  CUcontext popped = nullptr;
  driver_->CtxPopCurrent(&popped);
  // Another error is left to the call that follows: a lost device is found where it was before.
  return IsOfCapture(answer) ? answer : CUDA_SUCCESS;
}

absl::StatusOr<uint64_t> CudaContext::Close() {
  const uint64_t epoch = open_.fetch_add(1);
  notes_.store(0);
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(AskForCaptures(), "recording an event"));
  MEMTIDE_RETURN_IF_ERROR(events_->Record(epoch % EpochEvents::kCount));
  // Another thread may have recorded the same event for a later epoch meanwhile.
  RaiseTo(epoch, &recorded_[epoch % EpochEvents::kCount]);
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
  // Without events the context can only be waited for.
  if (IsUncovered()) return TryAwait(epoch) == CUDA_SUCCESS;
  const absl::StatusOr<uint64_t> found = FindEvent(epoch);
  if (!found.ok()) return false;
  if (Query(*found % EpochEvents::kCount) != CUDA_SUCCESS) return false;
  MarkDone(*found);
  return true;
}

CUresult CudaContext::Query(size_t event) {
  const CUresult refused = AskForCaptures();
  return refused != CUDA_SUCCESS ? refused : events_->Query(event);
}

CUresult CudaContext::AwaitEvent(uint64_t epoch) {
  absl::StatusOr<uint64_t> found = FindEvent(epoch);
  while (found.ok()) {
    const size_t event = *found % EpochEvents::kCount;
    const CUresult result = Query(event);
    if (result == CUDA_SUCCESS) MarkDone(*found);
    if (result != CUDA_ERROR_NOT_READY) return result;
    // tidy(sleep): an event that is waited for by cuEventSynchronize makes the CPU spin.
    std::this_thread::sleep_for(kPollInterval);
    // An event that was recorded again stands for later work, which need not be waited for.
    if (recorded_[event].load() != *found) found = FindEvent(epoch);
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult CudaContext::TryAwait(uint64_t epoch) {
  if (epoch <= done_.load()) return CUDA_SUCCESS;
  // If the event failed, its work may still be running, and the whole context is waited for.
  if (!IsUncovered() && AwaitEvent(epoch) == CUDA_SUCCESS) return CUDA_SUCCESS;
  if (const CUresult refused = AskForCaptures(); refused != CUDA_SUCCESS) return refused;
  // The epoch ends before the wait, because work launched during the wait may not be complete after
  // it.
  const uint64_t last = open_.fetch_add(1);
  CUresult result = driver_->CtxPushCurrent(context_);
  if (result != CUDA_SUCCESS) return result;
  result = driver_->CtxSynchronize();
  CUcontext popped = nullptr;
  driver_->CtxPopCurrent(&popped);
  if (result == CUDA_SUCCESS) MarkDone(last);
  return result;
}

CUresult CudaContext::AwaitAfterCaptures(uint64_t epoch) {
  constexpr std::chrono::milliseconds kPause(5);
  constexpr std::chrono::minutes kTimeout(1);
  const auto start = std::chrono::steady_clock::now();
  CUresult result = TryAwait(epoch);
  while (IsOfCapture(result) && !given_up_.load() &&
         std::chrono::steady_clock::now() - start < kTimeout) {
    // tidy(sleep): CUDA does not signal the end of a capture.
    std::this_thread::sleep_for(kPause);
    result = TryAwait(epoch);
  }
  return result;
}

absl::Status CudaContext::Await(uint64_t epoch) {
  return CudaStatus(AwaitAfterCaptures(epoch), "waiting for the GPU");
}

absl::Status CudaContext::AwaitOrGiveUp(uint64_t epoch) {
  const absl::Status status =
      CudaStatus(AwaitAfterCaptures(epoch), "waiting for work on memory to be unmapped");
  if (status.ok()) return status;
  // The session ends, and with it all leases: no other place waits for a minute, too.
  given_up_.store(true);
  return absl::UnavailableError(status.message());
}

}  // namespace memtide::client
