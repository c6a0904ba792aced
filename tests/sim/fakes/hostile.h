// The requests of hostile and broken clients: calls with one thing wrong, or more. The oracle needs
// no telling what is wrong; it judges every call by what it says.
#ifndef MEMTIDE_TESTS_SIM_FAKES_HOSTILE_H_
#define MEMTIDE_TESTS_SIM_FAKES_HOSTILE_H_

#include <optional>

#include "tests/sim/oracle/state.h"
#include "tests/sim/random.h"

namespace memtide::sim {

// An event without call id; nothing when the state offers nothing to abuse.
std::optional<Event> MakeHostileCall(const State& state, SessionId session, uint64_t request_id,
                                     Random* random);

// A call that was answered, to be sent again with its request id; nothing when none is remembered.
std::optional<Event> MakeReplay(const State& state, SessionId session, Random* random);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_FAKES_HOSTILE_H_
