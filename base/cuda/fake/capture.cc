#include "base/cuda/fake/capture.h"

#include <atomic>

#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/process.h"

namespace memtide::fake_cuda {
namespace {

enum class State { kNone, kOnBlockingStream, kOnOtherStream, kInvalidated };
std::atomic<State> g_state{State::kNone};

}  // namespace

void BeginCapture(CaptureOn stream) {
  g_state = stream == CaptureOn::kBlockingStream ? State::kOnBlockingStream : State::kOnOtherStream;
}

bool EndCapture() { return g_state.exchange(State::kNone) != State::kInvalidated; }

bool InvalidateCapture() {
  if (g_state == State::kNone) return false;
  g_state = State::kInvalidated;
  return true;
}

// The default stream waits for blocking streams, and so cannot be used while one captures.
CUresult StreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  Call call(&TheProcess(), "cuStreamIsCapturing", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  const bool implicit = stream == CU_STREAM_LEGACY && g_state == State::kOnBlockingStream;
  return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

}  // namespace memtide::fake_cuda
