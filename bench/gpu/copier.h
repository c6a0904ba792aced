// Copier: another process that copies between pinned host memory and the GPU, as the daemon does
// beside a script. For probes; use from one thread.
#ifndef MEMTIDE_BENCH_GPU_COPIER_H_
#define MEMTIDE_BENCH_GPU_COPIER_H_

#include <string>

#include "bench/gpu/child.h"

namespace memtide::bench {

class Copier {
 public:
  // Starts the process, and returns when its memory is ready. `ways`: "in", to the GPU, "out", or
  // "both".
  explicit Copier(const std::string& ways = "both");

  // Begin to copy 64 MiB in all directions at once, again and again, and stop. Stop returns the
  // speed since then, in GB/s, both directions together. REQUIRES: they are called by turns.
  void Start();
  double Stop();

 private:
  Child child_;
};

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_COPIER_H_
