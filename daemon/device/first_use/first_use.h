// MeetGpu: the answers of a GPU (ask_gpu.h), asked once for each GPU, driver and version of memtide
// and kept in a file, unless one of them failed; and what memtide does instead where an answer is
// no. Where the driver's version is unknown, they are asked once a day.
//
// Thread safety: thread-safe. Several daemons may share the directory of the files.
#ifndef MEMTIDE_DAEMON_DEVICE_FIRST_USE_FIRST_USE_H_
#define MEMTIDE_DAEMON_DEVICE_FIRST_USE_FIRST_USE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cuda/cuda.h"
#include "memtide/v1/gpu.pb.h"

namespace memtide {

struct MeetGpuOptions {
  // memtided, which is its own helper.
  std::string program;
  // Where the files are. Created if it is missing. Empty: nothing is kept.
  std::string directory;
  std::string driver;  // The version of the NVIDIA driver; empty: unknown.
};

// The options of this process: its own program, $CACHE_DIRECTORY (which systemd sets),
// $XDG_CACHE_HOME/memtide/gpus or ~/.cache/memtide/gpus, and the driver that is loaded.
MeetGpuOptions ThisProcess();

// A process of its own asks (RunGpuAsker), because a GPU that fails may end the contexts of those
// who ask it. UNAVAILABLE: it cannot be started, or does not answer in time. A file that cannot be
// read is asked for again, and one that cannot be written is not kept.
absl::StatusOr<v1::GpuAnswers> MeetGpu(const CudaDeviceFacts& facts, const MeetGpuOptions& options);

// Asks the GPU of this ordinal, and sends the answers, as text, on kHelperSocket (remote/packet.h).
// Returns the exit status.
int RunGpuAsker(int ordinal);

// One line for each answer that is no, with what memtide does instead. REQUIRES: `facts` are those
// of the GPU that gave the answers.
std::vector<std::string> Fallbacks(const CudaDeviceFacts& facts, const v1::GpuAnswers& answers);

// The answers in words, one line.
std::string Describe(const v1::GpuAnswers& answers);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_FIRST_USE_FIRST_USE_H_
