// Card: what calls, copies and kernels cost on one model of GPU, and a clock that plays it.
//
// The clock is dilated: what takes a microsecond on the card takes `dilation` microseconds here, so
// that the real work of script, client and daemon on a slow or busy machine weighs that much less.
// No bytes move and no kernel computes: memory that nothing writes costs nothing, so a model of any
// size is played with its own shapes.
//
// Processes that name one directory share a link. A copy takes the one-way rate of its direction
// or, where the other direction is busy when it begins, half of what both have together.
// Thread-safe.
#ifndef MEMTIDE_BASE_CUDA_FAKE_CARD_H_
#define MEMTIDE_BASE_CUDA_FAKE_CARD_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "base/bytes.h"
#include "base/clock.h"

namespace memtide::fake_cuda {

enum class Way { kIn, kOut };  // To the device, from it.

// The arithmetic of a kernel, and the bytes of the card's memory that it reads and writes.
struct KernelWork {
  double flop = 0, bytes = 0;
};

class Card {
 public:
  // Reads the card's file (a name and a number a line). Ends the process if that is not one, so
  // that nothing is played with other costs than it names. Processes meet in `directory`.
  Card(const std::string& file, uint64_t dilation, const std::string& directory);

  Duration Kernel(const KernelWork& work) const;
  // Occupies the link with a copy that begins at `begin` at the earliest; returns when it ends.
  Instant Copy(Way way, Bytes size, Instant begin);
  // The calling thread does this work of the host: it sleeps for the work's time less the CPU time
  // that it has used since its last work, which is what the work took here. Waits are added up
  // until they are worth a sleep.
  void Spend(const std::string& work) const;
  // The same for a call of this function of the driver, if its time is known.
  void SpendOn(const std::string& function) const;

 private:
  // When each way is free, on CLOCK_MONOTONIC, in memory that all processes share.
  struct Link {
    std::atomic<int64_t> free_at[2];
  };

  double Of(const std::string& name) const;
  Duration Played(double microseconds) const;
  Instant FreeAt(Way way) const;

  const double dilation_;
  std::map<std::string, double> costs_;
  Link* link_;
};

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_CARD_H_
