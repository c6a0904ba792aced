// The fake's captures of CUDA graphs: that one is under way, and what ends it (fake_cuda.h).
#ifndef MEMTIDE_BASE_CUDA_FAKE_CAPTURE_H_
#define MEMTIDE_BASE_CUDA_FAKE_CAPTURE_H_

#include <cuda.h>

namespace memtide::fake_cuda {

// Invalidates the capture, if there is one, and returns whether there is. Each call that conflicts
// with captures of any thread begins with it.
bool InvalidateCapture();
CUresult StreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status);

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_CAPTURE_H_
