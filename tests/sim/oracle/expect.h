// Which answers the protocol permits to a call, judged when it arrives. Events while a call waits
// (a deadline, a failing disk, a freed chunk) are added by the model when the reply comes.
#ifndef MEMTIDE_TESTS_SIM_ORACLE_EXPECT_H_
#define MEMTIDE_TESTS_SIM_ORACLE_EXPECT_H_

#include "tests/sim/oracle/state.h"

namespace memtide::sim {

// The codes that the reply to `event` may have. Where several things are wrong with a call any of
// their codes will do, but OK will not. REQUIRES: `event` is a call; state.pools is of this moment
// when it is an Open.
Codes PermittedCodes(const State& state, const Event& event);

// Whether the call must be answered in the step that asks: all but those that wait for memory.
bool AnsweredAtOnce(const State& state, const Event& event, const Codes& permitted);

// Whether the call ends leases in the step that asks, whatever becomes of the rest of it.
bool GivesBack(const Event& event);

// PermittedCodes() for an OpenCall (expect_open.cc).
Codes PermittedToOpen(const State& state, const OpenCall& call);
// The same for calls about steps (expect_steps.cc).
Codes PermittedToStep(const State& state, const StepCall& call);
Codes PermittedToEndPart(const State& state, const EndPartCall& call);
Codes PermittedToCommit(const State& state, const CommitCall& call);

// True when the session cannot make calls on chunks; then *codes says what it hears.
bool NotOpen(const State& state, SessionId session, Codes* codes);

inline constexpr uint32_t kLeastSlots = 4;  // "less free ... than four chunks".
// Slots of an elastic share that no other job gets; or most of them, where there are fewer.
inline constexpr uint32_t kLeastClaim = 12;

// OK, unless something is wrong.
inline Codes OkOr(const Codes& errors) {
  return errors.empty() ? Codes{absl::StatusCode::kOk} : errors;
}

// Slots that an Open which makes a job must get at `tier`.
uint32_t ExpectedSlots(const State& state, const OpenCall& call, Tier tier);

// The job that an Open would join; null when it would make one.
const JobState* JobToJoin(const State& state, const OpenCall& call);

// Every Open of the same job that waits for its memory.
std::vector<const OpenCall*> OpeningTwins(const State& state, const OpenCall& call);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_ORACLE_EXPECT_H_
