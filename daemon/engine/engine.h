// Engine: the deterministic core. Events in, effects out, and the only place that orders steps.
//
// Pure: no locks, threads, clocks, system calls, CUDA or gRPC. The same sequence of (time, event)
// gives the same sequence of effects, bit for bit, so the same code runs in the daemon, in the
// seeded simulation, and in replay. Thread-compatible: one caller at a time.
//
// How a fetch proceeds (one direction, no cycles: this is why it cannot deadlock):
//   1 admission: leases of a tier never outnumber its slots; calls that would are queued, oldest
//     first, and idle leases are asked back;
//   2 a slot at the wanted tier, freed by dropping a clean victim or writing back a dirty one;
//   3 for a chunk on SSD that is wanted on the device: a host slot to pass through, taken only
//     after the device slot;
//   4 the transfers; 5 the grant. Every chunk owns, from its allocation on, a slot at the lowest
//     tier of the node (its home), so writing back always ends.
#ifndef MEMTIDE_DAEMON_ENGINE_ENGINE_H_
#define MEMTIDE_DAEMON_ENGINE_ENGINE_H_

#include <memory>
#include <vector>

#include "base/memory_kind.h"
#include "daemon/engine/effects.h"
#include "daemon/engine/events.h"
#include "daemon/engine/types.h"

namespace memtide {

inline constexpr Bytes kChunkAlignment = MiB(2);  // One huge page.
inline constexpr Bytes kMaxChunkSize = GiB(1);    // One registered io_uring buffer.
inline constexpr Bytes kMaxRegionSize = GiB(1);   // Likewise.

// Who leaves a tier, and who comes ahead. The daemon places by foresight; the others, which only
// evict on demand, are there to be compared with.
enum class Placement : uint8_t { kForesight, kLru, kFifo, kBelady };

struct EngineOptions {
  // Zero: the node has no such pool. At least one of host and device must be there; SSD needs host.
  Bytes device_capacity, host_capacity, ssd_capacity;
  Limits limits;
  // Memory of the machine that is kept available for programs, as far as jobs can spare host slots.
  Bytes host_reserve;
  // How the node's device can lend its memory, best first. Not empty.
  std::vector<MemoryKind> device_kinds = {MemoryKind::kSharedMemory};
  Placement placement = Placement::kForesight;
  // Somebody keeps the memory of jobs with a time to live, and what Record says of them, beyond the
  // daemon's end.
  bool keeps = false;
};

class EngineState;

class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Appends to *effects what must be done, in order. REQUIRES: `now` does not go back.
  void Handle(Instant now, const Event& event, std::vector<Effect>* effects);

  // Aborts when an invariant is broken: ledgers that do not sum, a leased chunk without a copy,
  // a slot with two owners. Costs time linear in the chunks; for tests and the simulation.
  void CheckInvariants() const;

 private:
  std::unique_ptr<EngineState> state_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_ENGINE_H_
