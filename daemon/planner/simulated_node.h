// SimulatedNode: an engine with one session, simulated links and a clock that the caller moves.
//
// Regions and stores are made and dropped at once. Ticks come every 100 ms. Deterministic;
// thread-compatible.
#ifndef MEMTIDE_DAEMON_PLANNER_SIMULATED_NODE_H_
#define MEMTIDE_DAEMON_PLANNER_SIMULATED_NODE_H_

#include <deque>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "daemon/engine/engine.h"
#include "daemon/planner/links.h"

namespace memtide {

class SimulatedNode {
 public:
  SimulatedNode(const EngineOptions& options, const LinkOptions& links);

  // Opens a job that has the whole node.
  absl::Status Open(Bytes chunk_size);
  // Makes the call and moves the clock until the engine replies. INTERNAL if no transfer or tick is
  // left that could lead to a reply.
  absl::StatusOr<Reply> Call(const Event& event);
  // Moves the clock by `time`.
  void Pass(Duration time);

  Instant now() const { return now_; }
  const LinkBytes& moved() const { return links_.moved(); }
  SessionId session() const { return SessionId(1); }
  // Unique numbers.
  CallId NextCall() { return CallId(++last_number_); }
  uint64_t NextRequest() { return ++last_number_; }

 private:
  // Passes the engine the event, and the events that follow from it without delay.
  void Post(const Event& event);
  void Take(Effect effect);
  // Moves the clock to the next event, at most to `until`.
  void Step(Instant until);

  Engine engine_;
  Links links_;
  Instant now_{std::chrono::seconds(1)}, next_tick_ = now_;
  std::vector<Effect> effects_;
  std::deque<Event> following_;
  absl::optional<Reply> reply_;
  absl::Status closed_;
  uint64_t last_number_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_PLANNER_SIMULATED_NODE_H_
