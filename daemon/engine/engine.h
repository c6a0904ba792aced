// Engine: the deterministic core. Takes events, returns effects, and alone orders what happens.
//
// Pure: no locks, threads, clocks, system calls, CUDA or gRPC. The same sequence of (time, event)
// gives the same sequence of effects, bit for bit, so that the same code runs in the daemon, in the
// seeded simulation and in replay. Thread-compatible: one caller at a time.
//
// A fetch takes these steps in one direction. Without a cycle there is no deadlock:
//
// 1. Admission. The pins of a tier never outnumber its slots. A call that would exceed them waits,
// and leases are revoked. Waiting calls have their turns by age. A new call that fits goes before
// them, as its session may need it to give leases back.
//
// 2. A slot at the wanted tier, freed by dropping a clean victim or by writing back a dirty one.
//
// 3. For a chunk on SSD that is wanted on the device: a host slot to pass through, taken only after
// the device slot.
//
// 4. The transfers.
//
// 5. The grant.
//
// Every chunk but a reader of a common content owns a slot at its home, or claims one, from its
// allocation to its end, so that a write-back always finds room.
#ifndef MEMTIDE_DAEMON_ENGINE_ENGINE_H_
#define MEMTIDE_DAEMON_ENGINE_ENGINE_H_

#include <memory>
#include <vector>

#include "base/memory_kind.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "daemon/engine/interface/quota.h"
#include "daemon/engine/interface/types.h"
#include "daemon/policy/placement_policy.h"
#include "proto/protocol.h"

namespace memtide {

// The contents whose bytes on SSD are compared with sums that were made when they were written.
enum class Verify : uint8_t {
  kOff,
  kKept,  // Contents of jobs with a time to live.
  kAll,
};

struct EngineOptions {
  // One for each device of the node, not zero. A job has its device share on one of them.
  std::vector<Bytes> device_capacities;
  // Zero: the node has no such pool. Host memory or a device must be there; SSD needs host memory.
  Bytes host_capacity, ssd_capacity;
  Limits limits;
  // The reserve: memory that balloons leave to other programs, as far as jobs can do without host
  // slots.
  Bytes host_reserve;
  // How each of the devices can lend its memory, best first. Not empty.
  std::vector<MemoryKind> device_kinds = {MemoryKind::kSharedMemory};
  // Clean drops for each one whose copy is first compared with the copy in host memory, on a device
  // that does not catch writes of clients that lease for reading (decision 21). Zero: none is.
  uint32_t clean_drops_per_check = 0;
  // The device runs on for a moment with what a killed client gave it to do, so that slots which
  // the client had leased are quarantined until ClientQuiet.
  bool quarantine_device_slots = false;
  // Which chunks are evicted, and whether any are prefetched. Never nullptr.
  const PlacementPolicy* placement = &PredictivePolicy();
  // The memory of jobs with a time to live, and their records, outlive the daemon.
  bool persistent_jobs = false;
  Verify verify = Verify::kOff;
  // The directories of the SSD pool. Empty: one without a budget.
  std::vector<SsdDrive> ssd_drives;
  Bytes user_ssd_per_day;  // The most that a user's jobs write to SSD in 24 hours. Zero: no budget.
  std::vector<Quota> quotas = {};  // One for each subject.
};

class Dispatcher;

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
  std::unique_ptr<Dispatcher> dispatcher_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_ENGINE_H_
