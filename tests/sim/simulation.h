// Simulation: one engine among fakes and an oracle, driven by steps.
//
// No threads, no clock, no chance but the config's and the steps' seeds: the same config and steps
// give the same trace, bit for bit. Stops at the first broken promise. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_SIMULATION_H_
#define MEMTIDE_TESTS_SIM_SIMULATION_H_

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "tests/sim/fakes/fake_node.h"
#include "tests/sim/fakes/fault_injector.h"
#include "tests/sim/op.h"
#include "tests/sim/oracle/model.h"
#include "tests/sim/oracle/verdict.h"
#include "tests/sim/probes.h"
#include "tests/sim/trace.h"

namespace memtide::sim {

struct Outcome {
  std::string broken;  // Empty: every promise was kept.
  std::string last;    // The last events and effects.
  uint64_t trace_hash = 0;
  uint64_t events = 0;
  size_t steps = 0;  // Steps that were taken.
  Probes probes;
};

class Simulation {
 public:
  // Runs all steps, then lets everything end: faults stop, every chunk is read once more, sessions
  // leave, memory must come back. `config` need not outlive the call; `fault_injector` may be null.
  // Each line of the trace also goes to `echo`, unless that is null.
  static Outcome Run(const Config& config, const std::vector<Op>& ops,
                     FaultInjector* fault_injector = nullptr, std::ostream* echo = nullptr);

 private:
  Simulation(const Config& config, FaultInjector* fault_injector, std::ostream* echo);

  void Step(const Op& op);
  void StepSession(OpKind kind, SessionId session, Random* random);
  void StepGone(SessionId session, Random* random);
  void StepWrite(SessionId session, Random* random);
  // The client of a part that it computes goes on with it.
  void StepEndPart(SessionId session, Random* random);
  void EndPart(PartKey part, bool computed, uint64_t non_finite_gradients);
  std::vector<PartKey> PartsOf(SessionId session) const;
  // The client has computed some of its parts, before it ends without a word about them.
  void ComputeSome(SessionId session, Random* random);
  // The daemon dies, and another one takes up what it recorded.
  void Restart();
  void StepComplete(size_t index, Random* random);

  // Hands one event to everybody, in order.
  void Feed(Event event);
  // Gives the call an id first.
  void Ask(Event call);
  // The sessions that the event may end, with the places at the device that each may write.
  std::map<SessionId, std::vector<MemoryPlace>> MayDie(const Event& event) const;
  // The oracle judges it by what is free in the pools at that moment.
  void AskForMemory(Event call);
  void AnswerRevokes();
  void PassTime(Duration time);
  void RenewSessions();

  // No faults, clients give back what they get: whatever waits must end.
  void Settle();
  bool SettleOnce();
  // Reads every chunk once.
  void ReadAll();
  // All leave; all memory must come back.
  void EndAll();

  std::vector<SessionId> Sessions(bool open_only) const;
  uint64_t NewRequestId() { return next_request_++; }

  const Config config_;
  FaultInjector* const fault_injector_;
  Verdict verdict_;
  Probes probes_;
  FakeNode node_;
  Model model_;
  std::unique_ptr<Engine> engine_;
  Trace trace_;
  Instant now_;
  Duration since_tick_{0};
  uint64_t next_call_ = 1, next_session_ = 1, next_request_ = 1, next_stamp_ = 1;
  uint64_t events_ = 0;
  bool dies_in_publish_ = false;  // The next one, once it is recorded.
  Random luck_;                   // The luck of a restart: what it leaves.
  std::vector<Revoke> revokes_;   // Not yet answered.
  Random patience_;               // Whether clients answer them.
};

// The command to see it again.
std::string HowToReproduce(const Config& config);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_SIMULATION_H_
