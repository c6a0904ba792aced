// Config: one random node, its users and its bad luck. Plain values, made from a seed.
#ifndef MEMTIDE_TESTS_SIM_CONFIG_H_
#define MEMTIDE_TESTS_SIM_CONFIG_H_

#include <array>
#include <cstdint>
#include <string>

#include "daemon/engine/engine.h"

namespace memtide::sim {

enum class OpKind : uint8_t {
  kConnect,
  kOpen,
  kHang,  // The client stops renewing, without dying.
  kClose,
  kGone,
  kAllocate,
  kFetch,
  kRelease,
  kWrite,  // A client writes into a chunk that it holds a write lease on.
  kEvict,
  kFree,
  kDescribe,
  kInspect,
  kDrain,
  kReplay,    // A client sends an earlier call again, with its request id.
  kHostile,   // A malformed, stale or foreign call.
  kComplete,  // The fake node finishes one piece of work.
  kTick,
  kSettle,  // Faults stop, clients give everything back: all that waits must end.
  kResize,
  kReturnRegions,  // A client lets go of regions that it was asked for.
  kReport,         // A client tells what it used.
  kHostMemory,     // Programs beside the daemon take memory of the machine, or give it back.
  kStep,           // A client has the engine compute new content of some chunks from others.
  kPublish,        // A client commits steps that are done; again, or out of order, at times.
  kRestart,        // The daemon dies and another one takes up what is recorded.
  kDiscard,        // A client ends what chunks hold.
  kPart,           // A client asks for a part of a step that it will compute itself.
  kEndPart,        // It goes on with such a part: computes it, or ends it.
};
inline constexpr int kOpKinds = 29;

// Percent of the fake node's work of each sort that fails. `part`: of the parts that clients end,
// those that they have not computed. `lie`: of the transfers of the disk, those that it says to
// have done well although the bytes are others.
struct Faults {
  uint32_t disk_read = 0, disk_write = 0, copy = 0, make = 0, step = 0, part = 0, lie = 0;
};

struct Config {
  uint64_t seed = 0;
  // Pools in chunks of this size; jobs may choose other sizes.
  Bytes chunk_size = MiB(2);
  uint32_t device_slots = 0, host_slots = 4, ssd_slots = 0;
  uint32_t devices = 1;          // Each has device_slots; without these there is none.
  bool activations = false;      // See WithActivations.
  bool parts = false;            // See WithParts.
  bool paced = false;            // See WithBudgets.
  bool slot_regions = false;     // The device lends its memory slot by slot.
  uint32_t host_reserve = 0;     // Slots that the machine is to have for programs.
  bool quarantine = false;       // Kernels of killed clients run on, until ClientQuiet.
  bool persistent_jobs = false;  // Jobs with a time to live outlive the daemon.
  bool elastic = false;          // Most jobs have elastic shares.
  Limits limits;
  uint32_t uids = 1;       // Tenants.
  uint32_t job_names = 1;  // Names per tenant that sessions share. Zero: no sharing.
  // All sessions of a job ask for the same, so that it does not matter whose wish counts.
  Duration time_to_live{0};
  // Slots that an Open asks for, per tier; zero: all that is free.
  uint32_t device_share = 0, host_share = 0, ssd_share = 0;
  uint32_t device_percent = 75;  // Fetches that want the device, where there is a choice.
  Faults faults;
  uint32_t tick_ms = 20;  // How far a tick goes, at most 100.
  uint32_t steps = 300;
  std::array<uint32_t, kOpKinds> weights{};
};

Config MakeConfig(uint64_t seed);
// The same node, whose clients also discard content, and allocate transient chunks and such with a
// home in host memory.
Config WithActivations(Config config);
// The same node, whose clients also compute parts of their steps. Without host memory: no change.
Config WithParts(Config config);
// The same node with two or three such devices. Without one: no change.
Config WithDevices(Config config);
// The same node with a disk that lies, whose contents are all verified. Without one: no change.
Config WithLies(Config config);
// The same node, where writes to SSD have daily budgets. They are used up from the beginning on.
Config WithBudgets(Config config);
// The bytes that all chunks together may be written to SSD in this time, by the budget.
Bytes BudgetOf(const Config& config, Duration time);
EngineOptions ToOptions(const Config& config);
// One line, for people: what was random about this seed.
std::string Describe(const Config& config);
// As C++ source, for a test: what differs from Config(). Weights and steps made the steps and do
// not matter any more.
std::string ToSource(const Config& config);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_CONFIG_H_
