#include "base/cuda/fake/capture.h"

#include <atomic>

#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/process.h"

namespace memtide::fake_cuda {
namespace {

// A capture is under way, its stream is a blocking one, and nothing has invalidated it.
std::atomic<bool> g_capturing{false}, g_blocking{false}, g_valid{true};

}  // namespace

void BeginCapture(CaptureOn stream) {
  g_blocking = stream == CaptureOn::kBlockingStream;
  g_valid = true;
  g_capturing = true;
}

bool EndCapture() {
  g_capturing = false;
  return g_valid;
}

bool InvalidateCapture() {
  if (!g_capturing) return false;
  g_valid = false;
  return true;
}

// The default stream waits for blocking streams, and so cannot be used until the capture of one has
// ended, also if it was invalidated.
CUresult StreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  Call call(&TheProcess(), "cuStreamIsCapturing", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  const bool implicit = stream == CU_STREAM_LEGACY && g_capturing && g_blocking;
  return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

}  // namespace memtide::fake_cuda
