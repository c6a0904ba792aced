// RunClients: runs many seeds of a ClientSimulation.
#ifndef MEMTIDE_TESTS_SIM_CLIENTS_RUN_CLIENTS_H_
#define MEMTIDE_TESTS_SIM_CLIENTS_RUN_CLIENTS_H_

#include <cstdint>
#include <ostream>

#include "tests/sim/clients/client_simulation.h"

namespace memtide::sim {

// Expects that `seeds` seeds, or those of the environment (see RunSeeds), keep every promise, and
// that `seeds` seeds reach each probe from `first` to `last`. Every 16th seed runs twice, in the
// same way.
void RunClients(uint64_t seeds, ClientOutcome (*run)(uint64_t seed, std::ostream* echo),
                ClientProbe first, ClientProbe last);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_CLIENTS_RUN_CLIENTS_H_
