#include "daemon/service/loop.h"

#include <variant>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/goes_first.h"

namespace memtide {

Loop::Loop(Engine engine, EffectSink* sink, EdgeCounters* counters)
    : engine_(std::move(engine)), sink_(sink), counters_(counters) {}

Loop::~Loop() { Stop(); }

void Loop::Start(Duration period, std::function<void()> beside) {
  MEMTIDE_CHECK(!ticker_.joinable()) << "started twice";
  ticker_ =
      std::thread([this, period, beside = std::move(beside)] { TickUntilStopped(period, beside); });
}

void Loop::Stop() {
  absl::flat_hash_map<CallId, Caller*> callers;
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    changed_.SignalAll();
    // The thread in Drain may be delivering a reply, so callers_ is taken once it has ended.
    while (draining_) changed_.Wait(&mutex_);
    reports_.clear();
    calls_.Clear();
    renewals_.clear();
    callers.swap(callers_);
  }
  // The ticker needs the lock to see stopped_, so it is joined without it.
  if (ticker_.joinable()) ticker_.join();
  for (const auto& [call, caller] : callers) {
    caller->OnReply({call, absl::UnavailableError("the daemon stops"), {}});
  }
}

void Loop::Post(Event event) {
  {
    MutexLock lock(&mutex_);
    if (stopped_) return;
    const auto* renewal = std::get_if<RenewCall>(&event);
    // A renewal overtakes the queue, so that no session expires because the loop is behind.
    const bool ahead =
        renewal != nullptr && renewals_.try_emplace(renewal->session, *renewal).second;
    if (!ahead && CallQueue::Takes(event)) {
      calls_.Push(std::move(event));
    } else if (!ahead) {
      reports_.push_back(std::move(event));
    }
    // The thread in Drain finds the event before it leaves (decision 5).
    if (draining_) return;
    draining_ = true;
  }
  Drain();
}

// Only calls are refused. Completions and connections must not be lost, and the first renewal of a
// session does not use the queue.
bool Loop::Register(CallId call, const Sender& sender, Caller* caller) {
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    if (stopped_) {
      refused = absl::UnavailableError("the daemon stops");
    } else if (!sender.renewed.has_value() || renewals_.contains(*sender.renewed)) {
      refused = calls_.CheckRoom(sender.session);
      if (!refused.ok()) ++counters_->calls_overloaded;
    }
    if (refused.ok()) {
      // The caller is entered before its event is posted, because the reply may come within Post().
      MEMTIDE_CHECK(callers_.emplace(call, caller).second) << "call id used twice: " << call;
      return true;
    }
  }
  caller->OnReply({call, std::move(refused), {}});
  return false;
}

bool Loop::Abandon(CallId call) {
  MutexLock lock(&mutex_);
  return callers_.erase(call) > 0;
}

absl::optional<Event> Loop::Next() {
  if (!reports_.empty() && (calls_.empty() || reports_in_row_ < kReportsPerCall)) {
    ++reports_in_row_;
    absl::optional<Event> event = std::move(reports_.front());
    reports_.pop_front();
    return event;
  }
  reports_in_row_ = 0;
  if (calls_.empty()) return absl::nullopt;
  return calls_.Pop();
}

// Runs in one thread at a time, which draining_ ensures. Each round handles the waiting renewals,
// then one event.
void Loop::Drain() {
  // All clients wait for this thread, and it is whichever posted first.
  const GoesFirst first;
  for (;;) {
    Renewals renewals;
    absl::optional<Event> event;
    {
      MutexLock lock(&mutex_);
      if (stopped_ || (reports_.empty() && calls_.empty() && renewals_.empty())) {
        draining_ = false;
        if (stopped_) changed_.SignalAll();  // Only Stop waits for this; ticks must not wake by it.
        return;
      }
      renewals.swap(renewals_);
      event = Next();
    }
    for (const auto& [session, renewal] : renewals) Handle(Now(), renewal);
    const Instant now = Now();
    if (event.has_value()) Handle(now, *event);
    // Under load the ticker's Tick waits behind the queue, so Drain makes ticks of its own.
    if (now - last_tick_ < kTickPeriod) continue;
    // A tick ends sessions that were not renewed in time, so the renewals that came while the event
    // was handled go before it.
    renewals.clear();
    {
      MutexLock lock(&mutex_);
      renewals.swap(renewals_);
    }
    for (const auto& [session, renewal] : renewals) Handle(Now(), renewal);
    Handle(Now(), Tick{});
  }
}

void Loop::Handle(Instant now, const Event& event) {
  engine_(now, event, &effects_);
  if (std::holds_alternative<Tick>(event)) {
    last_tick_ = now;
    ticks_handled_.fetch_add(1, std::memory_order_relaxed);
  }
  // The engine has returned, so that an effect may post: its event waits in the queue.
  for (Effect& effect : effects_) CarryOut(std::move(effect));
  effects_.clear();
}

void Loop::CarryOut(Effect effect) {
  if (auto* reply = std::get_if<Reply>(&effect)) {
    Deliver(std::move(*reply));
  } else {
    sink_->CarryOut(std::move(effect));
  }
}

void Loop::Deliver(Reply reply) {
  Caller* caller = nullptr;
  {
    MutexLock lock(&mutex_);
    const auto it = callers_.find(reply.call);
    // Abandon may have removed the caller.
    if (it == callers_.end()) return;
    caller = it->second;
    callers_.erase(it);
  }
  caller->OnReply(std::move(reply));
}

void Loop::TickUntilStopped(Duration period, const std::function<void()>& beside) {
  for (;;) {
    {
      MutexLock lock(&mutex_);
      const Instant due = Now() + period;
      for (Instant now = Now(); !stopped_ && now < due; now = Now()) {
        changed_.WaitFor(&mutex_, due - now);
      }
      if (stopped_) return;
    }
    // `beside` may block, so it runs without the lock.
    if (beside) beside();
    Post(Tick{});
  }
}

namespace internal {

void WaitingCaller::OnReply(Reply reply) {
  MutexLock lock(&mutex_);
  reply_ = std::move(reply);
  done_ = true;
  replied_.SignalAll();
}

Reply WaitingCaller::Wait(Loop* loop, CallId call, Duration timeout) {
  const Instant due = Now() + timeout;
  {
    MutexLock lock(&mutex_);
    for (Instant now = Now(); !done_ && now < due; now = Now()) {
      replied_.WaitFor(&mutex_, due - now);
    }
    if (done_) return std::move(reply_);
  }
  if (loop->Abandon(call)) {
    return {call, absl::DeadlineExceededError("the engine did not answer in time"), {}};
  }
  MutexLock lock(&mutex_);
  // Abandon came too late: OnReply is about to use this object, or has just done so.
  while (!done_) replied_.Wait(&mutex_);
  return std::move(reply_);
}

}  // namespace internal
}  // namespace memtide
