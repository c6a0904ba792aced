// Op: one step of a simulation, small enough to be pasted into a test.
//
// The numbers are not ids: each step reads them relative to the state that it meets ("the who-th
// live session, modulo their number"), so that any subsequence of a run is a valid run. Relative
// numbers make a failing run shrinkable.
#ifndef MEMTIDE_TESTS_SIM_OP_H_
#define MEMTIDE_TESTS_SIM_OP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/config.h"

namespace memtide::sim {

struct Op {
  OpKind kind = OpKind::kTick;
  uint32_t who = 0;  // Which session, or which piece of work of the fake node.
  uint32_t how = 0;  // Seeds the choices inside the step.
};

// The steps of a seed: what each config weighs, in an order that begins with sessions.
std::vector<Op> MakeOps(const Config& config);

// As C++ source: {{OpKind::kFetch, 1, 77}, ...}.
std::string ToSource(const std::vector<Op>& ops);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_OP_H_
