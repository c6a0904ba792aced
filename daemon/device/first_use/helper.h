// The helper process of AskGpu: what another process than the daemon does with the daemon's GPU
// memory. It is the daemon's own program, started with --gpu-helper.
#ifndef MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_H_
#define MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_H_

namespace memtide {

// The descriptor of the helper's socket.
inline constexpr int kHelperSocket = 3;

// Answers the questions on kHelperSocket (helper_protocol.h) with the GPU of this ordinal until the
// daemon closes it. Returns the exit status.
int RunGpuHelper(int ordinal);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_H_
