#include "daemon/service/loop.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/goes_first.h"
#include "daemon/engine/engine.h"

namespace memtide {
namespace {

// Remembers each effect that it gets, and does what a test asks for meanwhile.
class FakeSink : public EffectSink {
 public:
  void CarryOut(Effect effect) override {
    effects.push_back(std::move(effect));
    if (meanwhile) meanwhile();
  }
  std::vector<Effect> effects;
  std::function<void()> meanwhile;
  EdgeCounters counters;
};

class FakeCaller : public Loop::Caller {
 public:
  void OnReply(Reply reply) override { replies.push_back(std::move(reply)); }
  std::vector<Reply> replies;
};

// Answers renewals at once, and turns a session's end into the drop of a region of its number.
void ScriptedEngine(Instant now, const Event& event, std::vector<Effect>* effects) {
  if (const auto* renew = std::get_if<RenewCall>(&event)) {
    effects->push_back(Reply{renew->call, absl::OkStatus(), {}});
  }
  if (const auto* gone = std::get_if<ClientGone>(&event)) {
    effects->push_back(DropRegion{RegionId(static_cast<uint32_t>(gone->session.value()))});
  }
}

// The scheduling policy of the calling thread.
int Policy() { return sched_getscheduler(0) & ~SCHED_RESET_ON_FORK; }

RenewCall Renew(Loop* loop) {
  RenewCall call;
  call.call = loop->NewCall();
  return call;
}

DescribeCall Unanswered(Loop* loop) {
  DescribeCall call;
  call.call = loop->NewCall();
  return call;
}

TEST(LoopTest, AnswersACallInTheThreadThatPostsIt) {
  FakeSink sink;
  Loop loop(ScriptedEngine, &sink, &sink.counters);
  FakeCaller caller;
  loop.Call(Renew(&loop), &caller);
  ASSERT_EQ(caller.replies.size(), 1u);
  EXPECT_TRUE(caller.replies[0].status.ok());
}

TEST(LoopTest, HandlesEventsAheadOfThreadsOfOrdinaryPriority) {
  bool may = false;
  {
    const GoesFirst first;
    may = Policy() == SCHED_RR;
  }
  if (!may) GTEST_SKIP() << "the process may not have real-time priority";
  FakeSink sink;
  int policy = -1;
  const auto engine = [&policy](Instant, const Event&, std::vector<Effect>*) { policy = Policy(); };
  Loop loop(engine, &sink, &sink.counters);
  loop.Post(ClientGone{SessionId(1)});
  EXPECT_EQ(policy, SCHED_RR);
  EXPECT_EQ(Policy(), SCHED_OTHER);
}

TEST(LoopTest, OnlyQueuesWhatIsPostedFromAnEffect) {
  FakeSink sink;
  Loop loop(ScriptedEngine, &sink, &sink.counters);
  sink.meanwhile = [&] {
    if (sink.effects.size() > 1) return;
    loop.Post(ClientGone{SessionId(2)});
    EXPECT_EQ(sink.effects.size(), 1u) << "carried out inside the other effect";
  };
  loop.Post(ClientGone{SessionId(1)});
  ASSERT_EQ(sink.effects.size(), 2u);
  EXPECT_EQ(std::get<DropRegion>(sink.effects[1]).region, RegionId(2));
}

TEST(LoopTest, DropsTheReplyOfAnAbandonedCall) {
  FakeSink sink;
  CallId waiting;
  Loop loop(
      [&](Instant now, const Event& event, std::vector<Effect>* effects) {
        if (std::holds_alternative<Tick>(event)) {
          effects->push_back(Reply{waiting, absl::OkStatus(), {}});
        }
      },
      &sink, &sink.counters);
  FakeCaller caller;
  const DescribeCall call = Unanswered(&loop);
  waiting = call.call;
  loop.Call(call, &caller);
  EXPECT_TRUE(loop.Abandon(waiting));
  EXPECT_FALSE(loop.Abandon(waiting));
  loop.Post(Tick{});
  EXPECT_TRUE(caller.replies.empty());
}

TEST(LoopTest, RefusesCallsAboveItsLimitAndKeepsOtherEvents) {
  FakeSink sink;
  Loop loop(ScriptedEngine, &sink, &sink.counters);
  FakeCaller caller;
  sink.meanwhile = [&] {
    if (sink.effects.size() > 1) return;
    for (size_t i = 0; i < Loop::kMaxQueuedCalls; ++i) loop.Post(ClientGone{SessionId(2)});
    loop.Call(Unanswered(&loop), &caller);
    loop.Post(ClientGone{SessionId(3)});
  };
  loop.Post(ClientGone{SessionId(1)});
  ASSERT_EQ(caller.replies.size(), 1u);
  EXPECT_EQ(caller.replies[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sink.counters.calls_overloaded, 1u);
  EXPECT_EQ(sink.effects.size(), Loop::kMaxQueuedCalls + 2);
}

TEST(LoopTest, HandlesTheRenewalOfASessionAheadOfItsOtherCalls) {
  constexpr size_t kQueued = Loop::kMaxQueuedCalls / 2 - 1;
  FakeSink sink;
  FakeCaller first, second;
  std::vector<size_t> answered_after;
  Loop loop(
      [&](Instant now, const Event& event, std::vector<Effect>* effects) {
        if (std::holds_alternative<RenewCall>(event)) answered_after.push_back(sink.effects.size());
        ScriptedEngine(now, event, effects);
      },
      &sink, &sink.counters);
  sink.meanwhile = [&] {
    if (sink.effects.size() > 1) return;
    for (size_t i = 0; i < kQueued; ++i) loop.Post(ClientGone{SessionId()});
    loop.Call(Renew(&loop), &first);
    loop.Call(Renew(&loop), &second);  // The same session's second: it waits.
  };
  loop.Post(ClientGone{SessionId(1)});
  EXPECT_EQ(answered_after, (std::vector<size_t>{1, kQueued + 1}));
  ASSERT_EQ(first.replies.size(), 1u);
  EXPECT_TRUE(first.replies[0].status.ok());
  ASSERT_EQ(second.replies.size(), 1u);
  EXPECT_TRUE(second.replies[0].status.ok());
}

// The order in which events are handled, by session; 'r' for what the edges report.
struct Order {
  Loop::Engine Engine() {
    return [this](Instant now, const Event& event, std::vector<Effect>* effects) {
      if (const auto* evict = std::get_if<EvictCall>(&event)) {
        handled += static_cast<char>('0' + evict->session.value());
      } else if (const auto* gone = std::get_if<ClientGone>(&event)) {
        handled += static_cast<char>('0' + gone->session.value());
      } else if (std::holds_alternative<StoreDropped>(event)) {
        handled += 'r';
      } else if (std::holds_alternative<InspectCall>(event)) {
        handled += 'i';
      } else if (std::holds_alternative<ClientConnected>(event) && meanwhile) {
        std::exchange(meanwhile, nullptr)();
      }
    };
  }
  std::string handled;
  std::function<void()> meanwhile;
};

EvictCall Evict(uint64_t session, size_t chunks) {
  EvictCall call;
  call.session = SessionId(session);
  call.chunks.resize(chunks);
  return call;
}

TEST(LoopTest, UsersTakeTurnsByWhatTheirCallsCostAndSoDoTheirSessions) {
  FakeSink sink;
  Order order;
  Loop loop(order.Engine(), &sink, &sink.counters);
  for (const uint64_t session : {1, 2}) loop.Post(ClientConnected{SessionId(session), 1000, 1});
  order.meanwhile = [&] {
    for (int i = 0; i < 4; ++i) loop.Post(Evict(1, 4096));
    loop.Post(Evict(2, 1));
    loop.Post(ClientGone{SessionId(1)});  // After the calls of its session.
    for (int i = 0; i < 3; ++i) loop.Post(Evict(3, 1));
    loop.Post(InspectCall{});
  };
  loop.Post(ClientConnected{SessionId(3), 2000, 1});
  EXPECT_EQ(order.handled, "i133321111");
}

TEST(LoopTest, WhatIsReportedComesInOrderAndBeforeCallsButNotForEver) {
  FakeSink sink;
  Order order;
  Loop loop(order.Engine(), &sink, &sink.counters);
  order.meanwhile = [&] {
    for (int i = 0; i < 3; ++i) loop.Post(Evict(1, 1));
    for (int i = 0; i < 40; ++i) loop.Post(StoreDropped{});
  };
  loop.Post(ClientConnected{SessionId(1), 1000, 1});
  const std::string most(Loop::kReportsPerCall, 'r');
  EXPECT_EQ(order.handled, most + "1" + most + "1" + std::string(8, 'r') + "1");
}

TEST(LoopTest, AUserThatFillsTheQueueLeavesRoomForOthers) {
  FakeSink sink;
  Order order;
  FakeCaller flooding, others;
  Loop loop(order.Engine(), &sink, &sink.counters);
  loop.Post(ClientConnected{SessionId(1), 1000, 1});
  loop.Post(ClientConnected{SessionId(2), 1000, 1});
  order.meanwhile = [&] {
    const auto call = [&](uint64_t session, FakeCaller* caller) {
      EvictCall evict = Evict(session, 1);
      evict.call = loop.NewCall();
      loop.Call(evict, caller);
    };
    for (size_t i = 0; i < Loop::kMaxQueuedCalls; ++i) call(1 + i % 2, &flooding);
    EXPECT_EQ(flooding.replies.size(), Loop::kMaxQueuedCalls / 2);
    for (size_t i = 0; i < Loop::kMaxQueuedCalls / 4; ++i) call(3, &others);
    EXPECT_TRUE(others.replies.empty());
    InspectCall status;
    status.call = loop.NewCall();
    loop.Call(status, &others);
    EXPECT_TRUE(others.replies.empty());
  };
  loop.Post(ClientConnected{SessionId(3), 2000, 1});
  ASSERT_FALSE(flooding.replies.empty());
  EXPECT_EQ(flooding.replies[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(flooding.replies[0].status.message(),
            "8192 calls of the user wait to be handled, and 8192 of all users; a user may have as "
            "many as there is room left of 16384; make fewer calls at a time");
  EXPECT_EQ(order.handled.substr(0, 3), "i13");
}

// The engine's time is played: each tick takes 0.9 s, so that no gap between ticks is seen.
TEST(LoopTest, EndsNoSessionWhoseRenewalWaitsBehindOtherEvents) {
  constexpr int kTicks = 45;  // Two thirds of a session's lease.
  FakeSink sink;
  Engine engine({{MiB(64)}, MiB(64)});
  Instant played{std::chrono::seconds(1)};
  std::function<void()> meanwhile;
  Loop loop(
      [&](Instant now, const Event& event, std::vector<Effect>* effects) {
        if (std::holds_alternative<Tick>(event)) played += std::chrono::milliseconds(900);
        if (std::holds_alternative<ClientGone>(event)) meanwhile();
        engine.Handle(played, event, effects);
      },
      &sink, &sink.counters);
  sink.meanwhile = [&] {
    const auto* region = std::get_if<MakeRegion>(&sink.effects.back());
    if (region != nullptr) loop.Post(RegionMade{region->region, absl::OkStatus()});
  };
  FakeCaller opener, renewer;
  loop.Post(ClientConnected{SessionId(1), 1000, 1});
  OpenCall open;
  open.call = loop.NewCall();
  open.session = SessionId(1);
  open.chunk_size = MiB(2);
  loop.Call(open, &opener);
  ASSERT_EQ(opener.replies.size(), 1u);
  ASSERT_TRUE(opener.replies[0].status.ok()) << opener.replies[0].status;
  for (int i = 0; i < kTicks; ++i) loop.Post(Tick{});
  meanwhile = [&] {
    for (int i = 0; i < kTicks; ++i) loop.Post(Tick{});
    RenewCall renewal = Renew(&loop);
    renewal.session = SessionId(1);
    loop.Call(renewal, &renewer);
  };
  loop.Post(ClientGone{SessionId(2)});
  ASSERT_EQ(renewer.replies.size(), 1u);
  EXPECT_TRUE(renewer.replies[0].status.ok()) << renewer.replies[0].status;
}

TEST(LoopTest, AnswersWaitingAndLaterCallersWhenItStops) {
  FakeSink sink;
  Loop loop(ScriptedEngine, &sink, &sink.counters);
  FakeCaller before, after;
  loop.Call(Unanswered(&loop), &before);
  loop.Stop();
  loop.Call(Renew(&loop), &after);
  ASSERT_EQ(before.replies.size(), 1u);
  EXPECT_EQ(before.replies[0].status.code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(after.replies.size(), 1u);
  EXPECT_EQ(after.replies[0].status.code(), absl::StatusCode::kUnavailable);
}

TEST(LoopTest, TicksByItselfOnceStarted) {
  FakeSink sink;
  Loop loop(ScriptedEngine, &sink, &sink.counters);
  loop.Start();
  while (loop.ticks_handled() < 2) std::this_thread::yield();
}

TEST(LoopTest, WhatIsDoneBesideTicksMayPost) {
  FakeSink sink;
  std::atomic<int> posted{0};
  const auto engine = [&](Instant now, const Event& event, std::vector<Effect>* effects) {
    if (std::holds_alternative<HostMemory>(event)) ++posted;
  };
  Loop loop(engine, &sink, &sink.counters);
  loop.Start(Loop::kIdleTickPeriod, [&loop] { loop.Post(HostMemory{MiB(1)}); });
  while (posted < 2) std::this_thread::yield();
}

TEST(LoopTest, TicksAfterAnEventWhenTheLastTickIsLongAgo) {
  FakeSink sink;
  Loop loop(ScriptedEngine, &sink, &sink.counters);
  const Instant start = Now();
  uint64_t events = 0;
  for (; loop.ticks_handled() == 0; ++events) loop.Post(ClientGone{SessionId(1)});
  EXPECT_GE(Now() - start, Loop::kTickPeriod);
  EXPECT_GT(events, 1u) << "not after every event";
}

TEST(LoopTest, WaitingForACallEndsWithItsReplyOrWithItsTimeout) {
  FakeSink sink;
  Loop loop(ScriptedEngine, &sink, &sink.counters);
  EXPECT_TRUE(CallAndWait(&loop, RenewCall{}, std::chrono::seconds(30)).status.ok());
  EXPECT_EQ(CallAndWait(&loop, DescribeCall{}, std::chrono::milliseconds(1)).status.code(),
            absl::StatusCode::kDeadlineExceeded);
}

// The engine is not thread-safe: under ThreadSanitizer this test is the proof that it need not be.
TEST(LoopTest, GivesTheEngineOneEventAtATimeFromManyThreads) {
  constexpr int kThreads = 4, kCalls = 500;
  FakeSink sink;
  uint64_t handled = 0;
  Loop loop(
      [&](Instant now, const Event& event, std::vector<Effect>* effects) {
        if (!std::holds_alternative<Tick>(event)) ++handled;
        ScriptedEngine(now, event, effects);
      },
      &sink, &sink.counters);
  std::vector<FakeCaller> callers(kThreads);
  std::vector<std::thread> threads;
  std::atomic<int> answered{0};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kCalls; ++j) {
        if (CallAndWait(&loop, RenewCall{}, std::chrono::seconds(30)).status.ok()) ++answered;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, kThreads * kCalls);
  EXPECT_EQ(handled, static_cast<uint64_t>(kThreads * kCalls));
}

}  // namespace
}  // namespace memtide
