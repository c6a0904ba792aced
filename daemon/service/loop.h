// Loop: hands events to the engine one at a time, and carries out what the engine answers.
//
// There is no thread of the loop's own: the thread that posts an event drains the queue, unless
// another thread is draining it, so a call usually runs to its reply in the thread that received
// it. A post from inside an effect, or while another thread drains, only queues. The engine and
// every effect run outside the lock, one after the other. Meanwhile the thread goes before all of
// ordinary priority, where the process may do that (base/goes_first.h, decision 49).
//
// Users take turns, and so do the sessions of each (CallQueue). Reports of the edges, such as the
// end of a transfer, come in their order and before the calls that wait, because they end waits of
// others; one call is handled after kReportsPerCall of them. Deadlines pass with ticks: one
// is handled after an event that finds the last one kTickPeriod ago, and, when nothing else
// happens, a small thread posts one in each period of Start (kIdleTickPeriod is long, for each
// wake-up of a thread costs a virtual machine 80 us).
//
// Renewals precede all other events, one of each session, and each tick: a session is never ended
// for the time that its renewal waited here, however far behind the loop is.
//
// Replies go to the Caller registered with the call; for one that was abandoned the reply is
// dropped. All other effects go to the sink. Thread-safe; does not own the sink or the callers.
#ifndef MEMTIDE_DAEMON_SERVICE_LOOP_H_
#define MEMTIDE_DAEMON_SERVICE_LOOP_H_

#include <atomic>
#include <deque>
#include <functional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/engine/interface/events.h"
#include "daemon/metrics/edge_counters.h"
#include "daemon/service/call_queue.h"

namespace memtide {

// Carries out the effects that are not replies. Called by one thread at a time, in order; must not
// block. May post.
class EffectSink {
 public:
  virtual ~EffectSink() = default;
  virtual void CarryOut(Effect effect) = 0;
};

class Loop {
 public:
  static constexpr std::chrono::milliseconds kTickPeriod{50};
  static constexpr std::chrono::milliseconds kIdleTickPeriod{200};
  // The calls that may wait; see CallQueue for what a user may have of them. More are refused with
  // RESOURCE_EXHAUSTED. Other events are bounded by what causes them: a completion for each
  // transfer, a connection for each descriptor, a renewal for each session.
  static constexpr size_t kMaxQueuedCalls = 16384;
  static constexpr int kReportsPerCall = 16;

  // Engine::Handle of the engine that this loop serves, or a stand-in for it in tests.
  using Engine = std::function<void(Instant now, const Event& event, std::vector<Effect>* effects)>;

  // Waits for a reply. OnReply is called exactly once for each Call, unless Abandon returned true.
  class Caller {
   public:
    virtual ~Caller() = default;
    virtual void OnReply(Reply reply) = 0;
  };

  // `counters` must outlive the loop.
  Loop(Engine engine, EffectSink* sink, EdgeCounters* counters);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Begins to tick, at least once in a period. `beside`, if it is given, is called by the thread of
  // the idle ticks before each; it may block a little, and post.
  void Start(Duration period = kIdleTickPeriod, std::function<void()> beside = nullptr);
  // Handles no event from here on, and returns when the current one has been handled. Every waiting
  // caller, and every later one, is answered UNAVAILABLE. REQUIRES: not called from an effect.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Dropped after Stop. The first renewal of a session that is queued goes ahead of other events;
  // more of them wait as all calls do, so that no session delays others with renewals.
  void Post(Event event) ABSL_LOCKS_EXCLUDED(mutex_);

  // A fresh id for a call.
  CallId NewCall() { return CallId(next_call_.fetch_add(1, std::memory_order_relaxed)); }
  // Posts a call event, whose `call` came from NewCall, on behalf of `caller`, which must live
  // until its reply, or until Abandon returned true.
  template <typename CallEvent>
  void Call(CallEvent event, Caller* caller) ABSL_LOCKS_EXCLUDED(mutex_) {
    const CallId call = event.call;
    const absl::optional<SessionId> session = SessionOf<CallEvent>::In(event);
    const bool renews = std::is_same_v<CallEvent, RenewCall>;
    if (Register(call, {session, renews ? session : absl::nullopt}, caller)) Post(std::move(event));
  }
  // Gives up waiting. True: OnReply will not be called any more. False: it was or is being called.
  bool Abandon(CallId call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Grows with each tick that the engine has handled: a loop that stands still is stuck.
  uint64_t ticks_handled() const { return ticks_handled_.load(std::memory_order_relaxed); }

 private:
  using Renewals = absl::flat_hash_map<SessionId, RenewCall>;

  struct Sender {
    absl::optional<SessionId> session;
    absl::optional<SessionId> renewed;  // The session, of a RenewCall.
  };
  bool Register(CallId call, const Sender& sender, Caller* caller) ABSL_LOCKS_EXCLUDED(mutex_);
  // The event that is handled next; nullopt: none waits.
  absl::optional<Event> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);
  void Handle(Instant now, const Event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void CarryOut(Effect effect) ABSL_LOCKS_EXCLUDED(mutex_);
  void Deliver(Reply reply) ABSL_LOCKS_EXCLUDED(mutex_);
  void TickUntilStopped(Duration period, const std::function<void()>& beside)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Engine engine_;
  EffectSink* const sink_;
  EdgeCounters* const counters_;
  std::atomic<uint64_t> next_call_{1};
  std::atomic<uint64_t> ticks_handled_{0};
  std::thread ticker_;

  Mutex mutex_;
  CondVar changed_;  // draining_ or stopped_.
  std::deque<Event> reports_ ABSL_GUARDED_BY(mutex_);
  CallQueue calls_ ABSL_GUARDED_BY(mutex_){kMaxQueuedCalls};
  int reports_in_row_ ABSL_GUARDED_BY(mutex_) = 0;  // Since the last call.
  Renewals renewals_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<CallId, Caller*> callers_ ABSL_GUARDED_BY(mutex_);
  // Some thread is in Drain; only that thread touches the engine, the sink, effects_ and
  // last_tick_.
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Effect> effects_;  // Kept for its capacity.
  Instant last_tick_ = Now();
};

// Makes a call and waits for its reply: for threads that may block (metrics, shutdown). Answers
// DEADLINE_EXCEEDED when none came in time.
template <typename CallEvent>
Reply CallAndWait(Loop* loop, CallEvent event, Duration timeout);

namespace internal {

class WaitingCaller : public Loop::Caller {
 public:
  void OnReply(Reply reply) override ABSL_LOCKS_EXCLUDED(mutex_);
  // The reply; or DEADLINE_EXCEEDED, if `timeout` passed and Abandon() ended the call.
  Reply Wait(Loop* loop, CallId call, Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  CondVar replied_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  Reply reply_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace internal

template <typename CallEvent>
Reply CallAndWait(Loop* loop, CallEvent event, Duration timeout) {
  internal::WaitingCaller caller;
  event.call = loop->NewCall();
  const CallId call = event.call;
  loop->Call(std::move(event), &caller);
  return caller.Wait(loop, call, timeout);
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_LOOP_H_
