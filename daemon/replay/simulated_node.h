// SimulatedNode: an engine with one session, simulated links and a clock that the caller moves.
//
// The functions that callers pass run while the clock stands, and do not move it.
//
// Regions and stores are made and dropped at once. Ticks come every 100 ms. Deterministic;
// thread-compatible.
#ifndef MEMTIDE_DAEMON_REPLAY_SIMULATED_NODE_H_
#define MEMTIDE_DAEMON_REPLAY_SIMULATED_NODE_H_

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "daemon/engine/engine.h"
#include "daemon/replay/links.h"

namespace memtide {

class SimulatedNode {
 public:
  SimulatedNode(const EngineOptions& options, const LinkOptions& links);

  // Opens a job that has the whole node.
  absl::Status Open(Bytes chunk_size);
  // Makes the call and moves the clock until the engine replies. INTERNAL if no transfer or tick is
  // left that could lead to a reply.
  template <typename Called>
  absl::StatusOr<Reply> Call(const Called& called) {
    absl::optional<Reply> reply;
    Start(called, [&reply](const Reply& given) { reply = given; });
    absl::Status status = PassUntil([&reply] { return reply.has_value(); });
    if (status.ok()) status = reply->status;
    if (!status.ok()) {
      waiting_.erase(called.call);
      return status;
    }
    return *std::move(reply);
  }
  // Makes the call, and passes its reply to `then`, now or while the clock moves.
  template <typename Called>
  void Start(const Called& called, std::function<void(const Reply&)> then) {
    waiting_.emplace(called.call, std::move(then));
    Post(called);
  }
  // Calls `what` when it is `when`, at the earliest when the clock moves next.
  void At(Instant when, std::function<void()> what) { timers_.emplace(when, std::move(what)); }
  // Moves the clock by `time`.
  void Pass(Duration time);
  // Moves the clock until it is so. Errors as of Call.
  absl::Status PassUntil(const std::function<bool()>& is_so);

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
  void PassOnReply();
  // Moves the clock to the next event, at most to `until`.
  void Step(Instant until);

  Engine engine_;
  Links links_;
  Instant now_{std::chrono::seconds(1)}, next_tick_ = now_;
  std::vector<Effect> effects_;
  std::deque<Event> following_;
  std::map<CallId, std::function<void(const Reply&)>> waiting_;  // For replies.
  std::deque<Reply> replies_;                                    // Not yet passed on.
  std::multimap<Instant, std::function<void()>> timers_;
  bool is_posting_ = false;
  absl::Status closed_;
  uint64_t last_number_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_SIMULATED_NODE_H_
