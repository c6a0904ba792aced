#include "daemon/engine/tables/admission_queue.h"

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "daemon/engine/tables/pending_calls.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr ChunkIndex kA(1), kB(2), kC(3);

class AdmissionQueueTest : public testing::Test {
 protected:
  // A call that reads `reads` and writes `writes`.
  static std::unique_ptr<Waiter> Fetch(std::vector<ChunkIndex> reads,
                                       std::vector<ChunkIndex> writes = {}) {
    auto waiter = std::make_unique<Waiter>();
    waiter->tier = Tier::kHost;
    waiter->chunks = std::move(reads);
    waiter->first_written = waiter->chunks.size();
    waiter->chunks.insert(waiter->chunks.end(), writes.begin(), writes.end());
    return waiter;
  }
  static std::unique_ptr<Waiter> Step(std::vector<ChunkIndex> chunks) {
    auto waiter = Fetch(std::move(chunks));
    waiter->then = RunStep();
    return waiter;
  }

  AdmissionQueue calls_;
};

TEST_F(AdmissionQueueTest, ACallIsFoundByTheChunksThatItNamesAndByTheOneThatItWatches) {
  const auto a = Fetch({kA}, {kB}), b = Fetch({kB, kC});
  calls_.Add(*a, 1, WaitsFor::kRoom);
  calls_.Add(*b, 0, WaitsFor::kLease);
  calls_.CheckInvariants();
  EXPECT_LT(a->waiting.age(), b->waiting.age());
  EXPECT_EQ(calls_.NextWatching(kA, 0), nullptr);
  EXPECT_EQ(calls_.NextWatching(kB, 0), a.get());
  EXPECT_EQ(calls_.NextWatching(kB, a->waiting.age()), b.get());
  EXPECT_EQ(calls_.NextWatching(kB, b->waiting.age()), nullptr);
  EXPECT_EQ(calls_.NextNaming(kA, 0)->access, Access::kRead);
  EXPECT_EQ(calls_.NextNaming(kB, 0)->access, Access::kWrite);
  EXPECT_EQ(calls_.NextNaming(kB, a->waiting.age())->waiter, b.get());
  EXPECT_EQ(calls_.NextNaming(kC, b->waiting.age()), nullptr);
}

TEST_F(AdmissionQueueTest, ACallThatGoesIsFoundNoMore) {
  auto a = Fetch({kA, kB});
  const auto b = Step({kA});
  calls_.Add(*a, 0, WaitsFor::kRoom);
  calls_.Add(*b, 0, WaitsFor::kRoom);
  a.reset();
  calls_.CheckInvariants();
  EXPECT_EQ(calls_.NextWatching(kA, 0), b.get());
  EXPECT_EQ(calls_.NextNaming(kB, 0), nullptr);
  EXPECT_EQ(calls_.OldestFetchForRoom(Tier::kHost), nullptr);
  b->waiting.Leave();
  b->waiting.Leave();
  EXPECT_EQ(b->waiting.age(), 0u);
  EXPECT_EQ(calls_.NextStepForRoom(Tier::kHost, 0), nullptr);
  EXPECT_TRUE(calls_.empty());
  calls_.CheckInvariants();
}

TEST_F(AdmissionQueueTest, CallsForRoomAreInTheOrderOfAgeFetchesApartFromSteps) {
  const auto a = Fetch({kA}), b = Fetch({kA}), s = Step({kB}), t = Step({kB});
  for (Waiter* waiter : {s.get(), a.get(), t.get(), b.get()})
    calls_.Add(*waiter, 0, WaitsFor::kRoom);
  EXPECT_EQ(calls_.OldestFetchForRoom(Tier::kHost), a.get());
  EXPECT_EQ(calls_.OldestFetchForRoom(Tier::kDevice), nullptr);
  EXPECT_EQ(calls_.NextStepForRoom(Tier::kHost, 0), s.get());
  EXPECT_EQ(calls_.NextStepForRoom(Tier::kHost, s->waiting.age()), t.get());
  EXPECT_EQ(calls_.NextStepForRoom(Tier::kHost, t->waiting.age()), nullptr);
  calls_.Watch(*a, 0, WaitsFor::kLease);
  calls_.Watch(*s, 0, WaitsFor::kLease);
  calls_.CheckInvariants();
  EXPECT_EQ(calls_.OldestFetchForRoom(Tier::kHost), b.get());
  EXPECT_EQ(calls_.NextStepForRoom(Tier::kHost, 0), t.get());
  EXPECT_EQ(calls_.excluded(Tier::kHost), 2u);
}

TEST_F(AdmissionQueueTest, ACallKeepsItsAgeWhenItWatchesAnotherChunk) {
  const auto a = Fetch({kA, kB}), b = Fetch({kB});
  calls_.Add(*a, 0, WaitsFor::kLease);
  calls_.Add(*b, 0, WaitsFor::kRoom);
  calls_.Watch(*a, 1, WaitsFor::kRoom);
  calls_.CheckInvariants();
  EXPECT_EQ(calls_.NextWatching(kA, 0), nullptr);
  EXPECT_EQ(calls_.NextWatching(kB, 0), a.get());
  EXPECT_EQ(calls_.OldestFetchForRoom(Tier::kHost), a.get());
}

TEST_F(AdmissionQueueTest, OnlyChangesOfWatchedChunksAreNotedAndTheNewestIsTakenFirst) {
  EXPECT_FALSE(calls_.NoteChange(kA));
  const auto a = Fetch({kA, kC}), b = Fetch({kB});
  calls_.Add(*a, 0, WaitsFor::kLease);
  calls_.Add(*b, 0, WaitsFor::kLease);
  EXPECT_TRUE(calls_.NoteChange(kA));
  EXPECT_TRUE(calls_.NoteChange(kB));
  EXPECT_FALSE(calls_.NoteChange(kC)) << "it is named, but not watched";
  a->waiting.Leave();
  b->waiting.Leave();
  EXPECT_FALSE(calls_.empty());
  EXPECT_EQ(calls_.TakeChanged(), kB);
  EXPECT_EQ(calls_.TakeChanged(), kA);
  EXPECT_FALSE(calls_.TakeChanged().has_value());
  EXPECT_TRUE(calls_.empty());
}

TEST_F(AdmissionQueueTest, ExcludedCallsAreServedInTurn) {
  auto a = Fetch({kA});
  const auto b = Step({kA}), c = Fetch({kA});
  for (Waiter* waiter : {a.get(), b.get(), c.get()}) calls_.Add(*waiter, 0, WaitsFor::kLease);
  EXPECT_EQ(&calls_.NextExcluded(Tier::kHost), a.get());
  EXPECT_EQ(&calls_.NextExcluded(Tier::kHost), b.get());
  EXPECT_EQ(&calls_.NextExcluded(Tier::kHost), c.get());
  EXPECT_EQ(&calls_.NextExcluded(Tier::kHost), a.get());
  a.reset();
  EXPECT_EQ(&calls_.NextExcluded(Tier::kHost), b.get());
}

TEST_F(AdmissionQueueTest, TheLargestCallIsSoughtAtItsTierForEitherReason) {
  const auto a = Fetch({kA}), b = Step({kA, kB}), c = Fetch({kA, kB, kC});
  calls_.Add(*a, 0, WaitsFor::kRoom);
  EXPECT_EQ(calls_.LargestAt(Tier::kHost), 1u);
  calls_.Add(*b, 0, WaitsFor::kRoom);
  EXPECT_EQ(calls_.LargestAt(Tier::kHost), 2u);
  calls_.Add(*c, 0, WaitsFor::kLease);
  EXPECT_EQ(calls_.LargestAt(Tier::kHost), 3u);
  EXPECT_EQ(calls_.LargestAt(Tier::kDevice), 0u);
}

TEST_F(AdmissionQueueTest, TheIndexesAgreeUnderRandomCalls) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<Waiter>> waiters;
    for (int i = 0; i < 200; ++i) {
      const WaitsFor reason = random() % 2 == 0 ? WaitsFor::kRoom : WaitsFor::kLease;
      if (waiters.empty() || random() % 3 == 0) {
        waiters.push_back(random() % 2 == 0 ? Fetch({kA, kB}, {kC}) : Step({kB, kC}));
        calls_.Add(*waiters.back(), random() % 2, reason);
        continue;
      }
      std::swap(waiters[random() % waiters.size()], waiters.back());
      if (random() % 2 == 0) {
        calls_.Watch(*waiters.back(), random() % 2, reason);
      } else {
        waiters.pop_back();
      }
      calls_.CheckInvariants();
    }
  }
  EXPECT_TRUE(calls_.empty());
}

using AdmissionQueueDeathTest = AdmissionQueueTest;

TEST_F(AdmissionQueueDeathTest, WhatOnlyTheEngineCanGetWrongEndsTheProcess) {
  const auto a = Fetch({kA}), b = Fetch({kA});
  calls_.Add(*a, 0, WaitsFor::kLease);
  EXPECT_DEATH(calls_.Add(*a, 0, WaitsFor::kLease), "waits already");
  EXPECT_DEATH(calls_.Watch(*b, 0, WaitsFor::kLease), "does not wait");
  EXPECT_DEATH(calls_.NextExcluded(Tier::kDevice), "excluded.empty");
  EXPECT_DEATH(
      {
        auto waiter = Fetch({kA});
        AdmissionQueue calls;
        calls.Add(*waiter, 0, WaitsFor::kRoom);
      },
      "outlives its job");
  calls_.NoteChange(kA);
  EXPECT_DEATH(calls_.CheckInvariants(), "not taken");
  calls_.TakeChanged();
}

}  // namespace
}  // namespace memtide
