// Copies and fills with non-temporal stores, which bypass the caches.
//
// For chunks: megabytes that are not read again soon. glibc's memcpy uses ordinary stores up to its
// non-temporal threshold, which is hundreds of megabytes on CPUs with large caches, and so reads
// each destination line before it overwrites it. The widest vectors of the CPU are chosen at run
// time. Below kStreamingThreshold these functions are memcpy and memset.
//
// Thread safety: thread-safe. A store fence makes the bytes visible to other threads as after
// memcpy.
#ifndef MEMTIDE_DAEMON_DEVICE_STREAMING_COPY_H_
#define MEMTIDE_DAEMON_DEVICE_STREAMING_COPY_H_

#include <cstddef>
#include <vector>

#include "base/bytes.h"

namespace memtide {

inline constexpr Bytes kStreamingThreshold = MiB(1);

// REQUIRES: the ranges do not overlap. Any alignment.
void StreamCopy(char* to, const char* from, Bytes size);
void StreamZero(char* to, Bytes size);

// One implementation of the above. `copy` and `zero` end with a store fence.
// REQUIRES: `to` is a multiple of 64, `size` a multiple of kStreamingBlock.
struct StreamingKernel {
  const char* name;
  bool supported;  // By this CPU.
  void (*copy)(char* to, const char* from, size_t size);
  void (*zero)(char* to, size_t size);
};
inline constexpr size_t kStreamingBlock = 256;

// The implementations in this build, widest vectors first. Empty on other architectures.
const std::vector<StreamingKernel>& StreamingKernels();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_STREAMING_COPY_H_
