// AskGpu: asks a GPU and its driver for what memtide relies on, by doing it, in a second or two.
//
// Attributes of a device say what a driver could do, and not what a container, a virtual machine or
// a security module lets through. So memory is passed to another process, mapped beside running
// work and another process's copies, which make a map ten times as slow, copied beside the work of
// another process, and pinned.
#ifndef MEMTIDE_DAEMON_DEVICE_FIRST_USE_ASK_GPU_H_
#define MEMTIDE_DAEMON_DEVICE_FIRST_USE_ASK_GPU_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/cuda/cuda.h"
#include "memtide/v1/gpu.pb.h"

namespace memtide {

// `program`: memtided, which is its own helper (helper.h). Makes the GPU's context current in this
// thread, and may break it. A question that fails is a failure in the answers. Errors: those of
// LoadCudaDriver and UseGpu; UNAVAILABLE: the helper cannot be started.
absl::StatusOr<v1::GpuAnswers> AskGpu(const CudaDeviceFacts& facts, const std::string& program);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_FIRST_USE_ASK_GPU_H_
