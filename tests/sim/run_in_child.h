// Runs a simulation in a child process, so that a check of the engine that ends the process is an
// outcome like any other.
#ifndef MEMTIDE_TESTS_SIM_RUN_IN_CHILD_H_
#define MEMTIDE_TESTS_SIM_RUN_IN_CHILD_H_

#include <string>
#include <vector>

#include "tests/sim/fakes/fault_injector.h"
#include "tests/sim/op.h"

namespace memtide::sim {

// The promise that was broken, or the message of the check. Empty: none. `fault` strikes about once
// in `one_in` opportunities. REQUIRES: the process has one thread.
std::string RunInChild(const Config& config, const std::vector<Op>& ops, Fault fault = Fault::kNone,
                       uint32_t one_in = 1);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_RUN_IN_CHILD_H_
