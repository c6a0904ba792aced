// The requests of well-behaved clients, as events without call ids (the simulation gives them).
// Nothing when the session cannot ask for such a thing now (it holds no lease, has no chunk).
#ifndef MEMTIDE_TESTS_SIM_FAKES_CLIENTS_H_
#define MEMTIDE_TESTS_SIM_FAKES_CLIENTS_H_

#include <optional>

#include "tests/sim/oracle/state.h"
#include "tests/sim/random.h"

namespace memtide::sim {

// REQUIRES: the session is known.
OpenCall MakeOpen(const State& state, SessionId session, Random* random);

// A call of the sort that `kind` names. REQUIRES: the session is known; `kind` is a call of a
// session with a job.
std::optional<Event> MakeCall(const State& state, OpKind kind, SessionId session,
                              uint64_t request_id, Random* random);

// A part of a step, which the session will compute. REQUIRES: the session is open.
std::optional<Event> MakePart(const State& state, SessionId session, Random* random);

// The given number of the session's leases, by preference those of `first`.
std::optional<Event> MakeRelease(const State& state, SessionId session, uint64_t request_id,
                                 const std::vector<ChunkId>& first, size_t count);

// Up to `most` different chunks of the session's job, in random order.
std::vector<ChunkId> PickChunks(const State& state, SessionId session, uint32_t most,
                                Random* random);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_FAKES_CLIENTS_H_
