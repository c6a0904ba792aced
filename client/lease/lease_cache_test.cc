#include "client/lease/lease_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "client/testing/places.h"

namespace memtide::client {
namespace {

using Next = LeasePlan::Next;

// A cache of `places` places, all bound: place i holds chunk 100 + i.
LeaseCache Bound(uint32_t places, uint32_t budget) {
  LeaseCache cache({places, budget});
  std::vector<ChunkId> chunks;
  for (uint32_t i = 0; i < places; ++i) chunks.push_back(ChunkId(100 + i));
  cache.Bind(PlaceId(0), chunks);
  return cache;
}

// Reports a plan as carried out, like LeaseClient.
void Complete(LeaseCache* cache, const LeasePlan& plan) {
  if (plan.next != Next::kFetch) return;
  cache->Granted(plan);
  cache->Released(plan.release);
}

void Acquire(LeaseCache* cache, std::initializer_list<uint32_t> places, Access access) {
  auto plan = cache->Acquire(Places(places), access);
  ASSERT_TRUE(plan.ok()) << plan.status();
  Complete(cache, *plan);
}

void Hold(LeaseCache* cache, std::initializer_list<uint32_t> places, Access access) {
  Acquire(cache, places, access);
  ASSERT_TRUE(cache->EndUse(Places(places)).ok());
}

TEST(LeaseCacheTest, AHeldLeaseIsAHit) {
  LeaseCache cache = Bound(4, 2);
  Hold(&cache, {1}, Access::kWrite);
  EXPECT_EQ(cache.Acquire(Places({1}), Access::kRead)->next, Next::kDone);
  EXPECT_EQ(cache.counts().in_use, 1u);
}

TEST(LeaseCacheTest, TheOldestIdleLeaseIsReleased) {
  LeaseCache cache = Bound(4, 2);
  Hold(&cache, {0}, Access::kRead);
  Hold(&cache, {1}, Access::kRead);
  Hold(&cache, {0}, Access::kRead);
  const auto plan = cache.Acquire(Places({2}), Access::kRead);
  EXPECT_EQ(plan->release, Places({1}));
  EXPECT_FALSE(plan->release_first);
}

TEST(LeaseCacheTest, HintedLeasesAreReleasedBeforeTheOldest) {
  LeaseCache cache = Bound(6, 3);
  Hold(&cache, {0}, Access::kRead);
  Acquire(&cache, {1}, Access::kRead);
  Hold(&cache, {2}, Access::kRead);
  // Place 1 is in use; 5 is not leased, 99 is unknown.
  const ChunkId eviction_hints[] = {ChunkId(199), ChunkId(105), ChunkId(101), ChunkId(102),
                                    ChunkId(100)};
  cache.SetEvictionHints(eviction_hints, 0);
  cache.BeginMoment();
  EXPECT_EQ(cache.Acquire(Places({3}), Access::kRead)->release, Places({2}));
}

TEST(LeaseCacheTest, HintsAreIgnoredForChunksOfTheCurrentMoment) {
  LeaseCache cache = Bound(6, 3);
  for (const uint32_t place : {0u, 1u, 2u}) Hold(&cache, {place}, Access::kRead);
  const ChunkId eviction_hints[] = {ChunkId(102), ChunkId(101), ChunkId(100)};
  cache.SetEvictionHints(eviction_hints, 0);
  EXPECT_EQ(cache.Acquire(Places({3}), Access::kRead)->release, Places({0}));
}

TEST(LeaseCacheTest, LeavingLeasesAreTakenInTheMomentAfterTheirLastUse) {
  LeaseCache cache = Bound(6, 6);
  Hold(&cache, {0, 1}, Access::kRead);
  Acquire(&cache, {2}, Access::kRead);
  const ChunkId eviction_hints[] = {ChunkId(102), ChunkId(101), ChunkId(100)};
  cache.SetEvictionHints(eviction_hints, 2);
  EXPECT_FALSE(cache.NeedsReclaim());
  EXPECT_EQ(cache.TakeRevoked(), Places({}));
  cache.BeginMoment();
  EXPECT_TRUE(cache.NeedsReclaim());
  EXPECT_EQ(cache.TakeRevoked(), Places({1})) << "2 is in use, 0 does not leave";
  ASSERT_TRUE(cache.EndUse(Places({2})).ok());
  EXPECT_EQ(cache.TakeRevoked(), Places({2}));
}

TEST(LeaseCacheTest, LeasesAheadNeedNoReleaseAndCountNoUse) {
  LeaseCache cache = Bound(6, 4);
  Hold(&cache, {0}, Access::kRead);
  Acquire(&cache, {1}, Access::kRead);
  EXPECT_EQ(cache.PlanAhead().next, LeasePlan::Next::kDone);
  cache.SetAhead({{ChunkId(102), ChunkId(103), ChunkId(199)}, {ChunkId(100), ChunkId(101)}});
  // 1 is in use, so that it cannot be upgraded now. One lease fits below the headroom.
  const LeasePlan writes = cache.PlanAhead();
  EXPECT_EQ(writes.upgrade, Places({0}));
  EXPECT_TRUE(writes.fetch.empty() && writes.release.empty());
  EXPECT_EQ(cache.counts().plans_ahead, 1u);
  EXPECT_EQ(cache.counts().ended_ahead, 0u);
  cache.Granted(writes);
  EXPECT_EQ(cache.counts().ended_ahead, 1u);
  EXPECT_TRUE(cache.HasAhead());
  const LeasePlan reads = cache.PlanAhead();
  EXPECT_EQ(reads.fetch, Places({2}));
  cache.Granted(reads);
  EXPECT_FALSE(cache.HasAhead());
  EXPECT_EQ(cache.counts().ended_ahead, 2u);
  EXPECT_EQ(cache.counts().in_use, 1u);
  EXPECT_EQ(cache.Acquire(Places({2}), Access::kRead)->next, LeasePlan::Next::kDone);
  cache.CheckInvariants();
}

TEST(LeaseCacheTest, ASmallerBudgetIsReachedAsUsesEnd) {
  LeaseCache cache = Bound(6, 5);
  Hold(&cache, {0, 1}, Access::kRead);
  Acquire(&cache, {2, 3, 4}, Access::kRead);
  cache.limits().SetBudget(2);
  EXPECT_EQ(cache.Acquire(Places({0, 1, 5}), Access::kRead).status().code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(cache.EndUse(Places({2, 3, 4})).ok());
  EXPECT_TRUE(cache.NeedsReclaim());
  const std::vector<PlaceId> taken = cache.TakeForHeadroom();
  EXPECT_EQ(taken, Places({0, 1, 2, 3}));
  cache.Released(taken);
  EXPECT_LE(cache.counts().held, 2u);
  cache.limits().SetBudget(6);
  EXPECT_FALSE(cache.NeedsReclaim());
  cache.CheckInvariants();
}

TEST(LeaseCacheTest, ASoftBudgetLimitsIdleLeasesOnly) {
  LeaseCache cache = Bound(8, 6);
  Hold(&cache, {0, 1, 2, 3}, Access::kRead);
  cache.limits().SetSoftBudget(2, 0);
  EXPECT_TRUE(cache.NeedsReclaim());
  cache.Released(cache.TakeForHeadroom());
  EXPECT_LE(cache.counts().held, 3u) << "four may be touched at once";
  Acquire(&cache, {2, 3, 4, 5, 6, 7}, Access::kRead);
  EXPECT_EQ(cache.counts().in_use, 6u);
  EXPECT_EQ(cache.Acquire(Places({0, 1, 2, 3, 4, 5, 6}), Access::kRead).status().code(),
            absl::StatusCode::kResourceExhausted);
  cache.limits().SetSoftBudget(9, 0);
  EXPECT_EQ(cache.limits().budget(), 6u);
  cache.CheckInvariants();
}

TEST(LeaseCacheTest, MaxInUseLimitsAllUsesTogether) {
  LeaseCache cache = Bound(8, 6);
  Acquire(&cache, {0, 1, 2, 3}, Access::kRead);
  cache.limits().SetSoftBudget(2, 3);
  EXPECT_EQ(cache.Acquire(Places({4}), Access::kRead).status().code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(cache.Fault(PlaceId(4), Access::kRead).ok())
      << "a fault is not limited by max_in_use";
  cache.limits().SetSoftBudget(2, 5);
  Acquire(&cache, {5}, Access::kRead);
  cache.limits().SetSoftBudget(6, 0);
  Acquire(&cache, {6, 7}, Access::kRead);
  cache.CheckInvariants();
}

TEST(LeaseCacheTest, ASoftBudgetLeavesHeadroomForFaults) {
  LeaseCache cache = Bound(12, 9);
  Acquire(&cache, {0, 1, 2, 3}, Access::kRead);
  cache.limits().SetSoftBudget(2, 4);
  // A loop over three arrays needs them all at once.
  for (const uint32_t faulted : {5, 6, 7}) {
    Complete(&cache, *cache.Fault(PlaceId(faulted), Access::kRead));
  }
  for (const uint32_t faulted : {5, 6, 7}) {
    EXPECT_EQ(cache.Fault(PlaceId(faulted), Access::kRead)->next, LeasePlan::Next::kDone);
  }
  cache.CheckInvariants();
}

TEST(LeaseCacheTest, RecentlyFaultedPlacesAreReleasedLast) {
  LeaseCache cache = Bound(6, 4);
  for (const uint32_t faulted : {0, 1}) {
    Complete(&cache, *cache.Fault(PlaceId(faulted), Access::kRead));
  }
  Hold(&cache, {2}, Access::kRead);
  Hold(&cache, {3}, Access::kRead);
  const auto first = cache.Acquire(Places({4}), Access::kRead);
  EXPECT_EQ(first->release, Places({2}));
  Complete(&cache, *first);
  const auto second = cache.Acquire(Places({5, 2}), Access::kRead);
  EXPECT_EQ(second->release, Places({3, 0}));
}

TEST(LeaseCacheTest, AWriteToAReadLeaseIsAnUpgrade) {
  LeaseCache cache = Bound(2, 2);
  Hold(&cache, {0}, Access::kRead);
  const auto plan = cache.Acquire(Places({0}), Access::kWrite);
  EXPECT_EQ(plan->upgrade, Places({0}));
  EXPECT_TRUE(plan->fetch.empty());
  EXPECT_EQ(cache.Acquire(Places({0}), Access::kRead)->next, Next::kWait);
  Complete(&cache, *plan);
  EXPECT_EQ(cache.Acquire(Places({0}), Access::kWrite)->next, Next::kDone);
}

TEST(LeaseCacheTest, ARefusedUpgradeLeavesTheReadLease) {
  LeaseCache cache = Bound(2, 2);
  Hold(&cache, {0}, Access::kRead);
  const auto plan = cache.Acquire(Places({0}), Access::kWrite);
  cache.Refused(*plan);
  EXPECT_EQ(cache.counts().idle, 1u);
  EXPECT_EQ(cache.Acquire(Places({0}), Access::kRead)->next, Next::kDone);
}

TEST(LeaseCacheTest, MovingPlacesAreWaitedForAndNothingIsMarked) {
  LeaseCache cache = Bound(4, 3);
  const auto first = cache.Acquire(Places({0}), Access::kRead);
  const auto second = cache.Acquire(Places({1, 0}), Access::kRead);
  EXPECT_EQ(second->next, Next::kWait);
  EXPECT_EQ(cache.counts().moving, 1u);
  Complete(&cache, *first);
  EXPECT_EQ(cache.Acquire(Places({1, 0}), Access::kRead)->next, Next::kFetch);
}

TEST(LeaseCacheTest, BeyondTheBudgetReleasesGoAheadOfTheFetch) {
  LeaseCache cache = Bound(6, 3);
  Acquire(&cache, {0, 1}, Access::kRead);
  Hold(&cache, {2}, Access::kRead);
  const auto plan = cache.Acquire(Places({3, 4}), Access::kRead);
  EXPECT_EQ(plan->release, Places({2}));
  EXPECT_TRUE(plan->release_first);
}

TEST(LeaseCacheTest, MalformedRequestsAreRefused) {
  LeaseCache cache = Bound(4, 2);
  EXPECT_TRUE(absl::IsInvalidArgument(cache.Acquire(Places({1, 1}), Access::kRead).status()));
  EXPECT_TRUE(absl::IsNotFound(cache.Acquire(Places({9}), Access::kRead).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(cache.Acquire(Places({0, 1, 2}), Access::kRead).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(cache.EndUse(Places({0}))));
  EXPECT_EQ(cache.counts().moving, 0u);
}

TEST(LeaseCacheTest, NothingIsReleasedWhenEverythingFits) {
  LeaseCache cache = Bound(4, 4);
  Hold(&cache, {0, 1, 2, 3}, Access::kWrite);
  EXPECT_FALSE(cache.NeedsReclaim());
  EXPECT_TRUE(cache.TakeForHeadroom().empty());
}

TEST(LeaseCacheTest, UnderPressureHeadroomIsReclaimedAhead) {
  LeaseCache cache = Bound(40, 16);
  for (uint32_t i = 0; i < 16; ++i) Hold(&cache, {i}, Access::kWrite);
  EXPECT_TRUE(cache.NeedsReclaim());
  EXPECT_EQ(cache.TakeForHeadroom(), Places({0, 1}));
  EXPECT_FALSE(cache.NeedsReclaim());
}

TEST(LeaseCacheTest, ARevocationIsCompletedAsUsesEnd) {
  LeaseCache cache = Bound(4, 4);
  Acquire(&cache, {0, 1}, Access::kRead);
  Hold(&cache, {2}, Access::kRead);
  cache.Revoke({}, 2);
  EXPECT_EQ(cache.TakeRevoked(), Places({2}));
  EXPECT_FALSE(cache.NeedsReclaim());
  ASSERT_TRUE(cache.EndUse(Places({0, 1})).ok());
  EXPECT_TRUE(cache.NeedsReclaim());
  EXPECT_EQ(cache.TakeRevoked(), Places({0}));
  EXPECT_FALSE(cache.NeedsReclaim());
}

TEST(LeaseCacheTest, ChunksNamedInARevocationGoAsSoonAsTheyAreIdle) {
  LeaseCache cache = Bound(4, 4);
  Acquire(&cache, {0}, Access::kRead);
  Hold(&cache, {1, 2}, Access::kRead);
  cache.Revoke({ChunkId(100), ChunkId(102), ChunkId(103), ChunkId(999)}, 0);
  EXPECT_EQ(cache.TakeRevoked(), Places({2}));
  EXPECT_FALSE(cache.NeedsReclaim());
  ASSERT_TRUE(cache.EndUse(Places({0})).ok());
  EXPECT_TRUE(cache.NeedsReclaim());
  EXPECT_EQ(cache.TakeRevoked(), Places({0}));
  EXPECT_TRUE(cache.TakeRevoked().empty());
}

TEST(LeaseCacheTest, PlacesOfFreedChunksAreReusedLowestFirst) {
  LeaseCache cache = Bound(6, 3);
  Hold(&cache, {2}, Access::kWrite);
  const auto plan = cache.BeginEnd(PlaceRange{PlaceId(1), 3}.places());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->release, Places({2}));
  cache.Freed(PlaceRange{PlaceId(1), 3}.places());
  EXPECT_EQ(cache.FindUnbound(2)->first, PlaceId(1));
  EXPECT_TRUE(absl::IsResourceExhausted(cache.FindUnbound(4).status()));
  cache.CheckInvariants();
}

}  // namespace
}  // namespace memtide::client
