// Copies and fills that go past the caches.
//
// For chunks: megabytes that nobody reads again soon. glibc's memcpy keeps to ordinary stores until
// its non-temporal threshold, which large caches push to hundreds of megabytes, and so reads each
// destination line before overwriting it. The widest vectors the CPU has are chosen at run time.
// Below kStreamingThreshold these are memcpy and memset. Thread-safe; the bytes are visible to
// other threads as after memcpy (the streaming stores are fenced).
#ifndef MEMTIDE_DAEMON_DEVICE_NT_COPY_H_
#define MEMTIDE_DAEMON_DEVICE_NT_COPY_H_

#include <cstddef>
#include <vector>

#include "base/bytes.h"

namespace memtide {

inline constexpr Bytes kStreamingThreshold = MiB(1);

// REQUIRES: the ranges do not overlap. Any alignment.
void StreamCopy(char* to, const char* from, Bytes size);
void StreamZero(char* to, Bytes size);

// One way of doing the above. `copy` and `zero` want `to` at a multiple of 64 and a size that is a
// multiple of kStreamingBlock; they end with a store fence.
struct StreamingKernel {
  const char* name;
  bool supported;  // By this CPU.
  void (*copy)(char* to, const char* from, size_t size);
  void (*zero)(char* to, size_t size);
};
inline constexpr size_t kStreamingBlock = 256;

// Every way this build knows, widest first. Empty where there is none for the architecture.
const std::vector<StreamingKernel>& StreamingKernels();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_NT_COPY_H_
