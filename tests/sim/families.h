// Families of seeds: what the tests of this folder simulate, by name, so that golden_hashes.txt can
// have all of them.
#ifndef MEMTIDE_TESTS_SIM_FAMILIES_H_
#define MEMTIDE_TESTS_SIM_FAMILIES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <ostream>

#include "tests/sim/clients/client_simulation.h"
#include "tests/sim/config.h"

namespace memtide::sim {

// Seeds 1 to `seeds` of Simulation. `config` is empty where a seed makes no such node.
struct Family {
  const char* name;
  uint64_t seeds;
  std::optional<Config> (*config)(uint64_t seed);
};

// Seeds 1 to `seeds` of a ClientSimulation.
struct ClientFamily {
  const char* name;
  uint64_t seeds;
  ClientOutcome (*run)(uint64_t seed, std::ostream* echo);
};

extern const Family kPlain;
// A device runs on with what killed clients left; on every second node there are several.
extern const Family kQuarantine;
// Clients discard chunks, some of which never reach SSD; every second node has several devices.
extern const Family kActivations;
// Clients compute parts of steps; every second node as above, too, and every third has several
// devices.
extern const Family kParts;
// The disk says that all is well and has other bytes; every second node as above, too.
extern const Family kLies;
// Writes to SSD have budgets; every second node has parts and activations, too.
extern const Family kBudgets;

extern const ClientFamily kRanks;
extern const ClientFamily kKeptRanks;
extern const ClientFamily kCommonContents;
extern const ClientFamily kQuotas;
extern const ClientFamily kPipelines;

// A hash that changes when any of the traces does, or their order. `hash`: of the traces before, 0
// at first.
inline uint64_t WithTrace(uint64_t hash, uint64_t trace_hash) {
  constexpr uint64_t kPrimeOfFnv = 0x100000001b3;
  return (hash ^ trace_hash) * kPrimeOfFnv;
}

// A row of golden_hashes.txt is for this many seeds.
inline constexpr uint64_t kSeedsOfRow = 10;

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_FAMILIES_H_
