// The helper process of AskGpu: what another process does with the GPU memory of the one that asks.
// Both are the daemon's own program (remote/helper_process.h).
#ifndef MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_H_
#define MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_H_

namespace memtide {

// The flags that start the daemon's program in one of its two parts.
inline constexpr char kAskerFlag[] = "--gpu-asker", kHelperFlag[] = "--gpu-helper";

// Answers the questions on kHelperSocket (helper_protocol.h) with the GPU of this ordinal until the
// process that asks closes it. Returns the exit status.
int RunGpuHelper(int ordinal);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_FIRST_USE_HELPER_H_
