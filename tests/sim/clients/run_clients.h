// RunClients: runs many seeds of a ClientSimulation.
#ifndef MEMTIDE_TESTS_SIM_CLIENTS_RUN_CLIENTS_H_
#define MEMTIDE_TESTS_SIM_CLIENTS_RUN_CLIENTS_H_

#include "tests/sim/families.h"

namespace memtide::sim {

// Expects that the family's seeds, or those of the environment (see RunSeeds), keep every promise
// in the way that golden_hashes.txt says, or in the same way twice, and that the family's seeds
// reach each probe from `first` to `last`.
void RunClients(const ClientFamily& family, ClientProbe first, ClientProbe last);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_CLIENTS_RUN_CLIENTS_H_
