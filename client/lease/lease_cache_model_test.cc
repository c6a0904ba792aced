// LeaseCache compared with a naive model, under random calls from a seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "client/lease/lease_cache.h"
#include "client/testing/places.h"

namespace memtide::client {
namespace {

using Next = LeasePlan::Next;

// The contract of the cache in plain sets, without order, marks or lists.
struct Model {
  std::set<uint32_t> bound, reading, writing, moving;
  std::map<uint32_t, int> uses;
  std::map<uint32_t, int> reserved;  // Part of `uses`: not granted yet.

  bool Held(uint32_t place) const { return reading.count(place) + writing.count(place) > 0; }
  bool InUse(uint32_t place) const { return uses.count(place) > 0 && uses.at(place) > 0; }
};

class ModelTest : public testing::TestWithParam<uint64_t> {
 public:
  static constexpr uint32_t kPlaces = 16;
  static constexpr uint32_t kBudget = 5;

  void SetUp() override { random_.seed(GetParam()); }
  uint32_t Below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }

  void Bind() {
    const auto range = cache_.FindUnbound(1 + Below(3));
    if (!range.ok()) return;
    std::vector<ChunkId> chunks;
    for (uint32_t i = 0; i < range->count; ++i) {
      const uint32_t place = range->first.value() + i;
      ASSERT_EQ(model_.bound.count(place), 0u);
      model_.bound.insert(place);
      chunks.push_back(ChunkId(++last_chunk_));
    }
    cache_.Bind(range->first, chunks);
  }

  void Free() {
    const PlaceRange range{PlaceId(Below(kPlaces)), 1};
    const uint32_t place = range.first.value();
    const auto plan = cache_.BeginEnd(range.places());
    if (model_.bound.count(place) == 0) {
      ASSERT_TRUE(absl::IsNotFound(plan.status()));
    } else if (model_.InUse(place)) {
      ASSERT_TRUE(absl::IsFailedPrecondition(plan.status()));
    } else if (model_.moving.count(place) > 0) {
      ASSERT_EQ(plan->next, Next::kWait);
    } else {
      ASSERT_EQ(plan->next, Next::kFetch);
      ASSERT_EQ(plan->release.size(), model_.Held(place) ? 1u : 0u);
      cache_.Freed(range.places());
      model_.bound.erase(place);
      model_.reading.erase(place);
      model_.writing.erase(place);
    }
  }

  void Ask() {
    std::set<uint32_t> chosen;
    for (uint32_t i = 0; i <= Below(3); ++i) chosen.insert(Below(kPlaces));
    const bool fault = Below(3) == 0;
    if (fault) chosen = {*chosen.begin()};
    std::vector<PlaceId> places;
    for (const uint32_t place : chosen) places.push_back(PlaceId(place));
    const Access access = Below(2) == 0 ? Access::kRead : Access::kWrite;
    const uint32_t held = model_.reading.size() + model_.writing.size();
    const auto plan = fault ? cache_.Fault(places[0], access) : cache_.Acquire(places, access);
    const bool all_bound = std::all_of(chosen.begin(), chosen.end(),
                                       [&](uint32_t p) { return model_.bound.count(p) > 0; });
    if (!all_bound) {
      ASSERT_TRUE(absl::IsNotFound(plan.status()));
      return;
    }
    ASSERT_TRUE(plan.ok()) << plan.status();
    const bool any_moving = std::any_of(chosen.begin(), chosen.end(),
                                        [&](uint32_t p) { return model_.moving.count(p) > 0; });
    ASSERT_EQ(plan->next == Next::kWait, any_moving);
    if (any_moving) return;
    CheckPlan(*plan, chosen, access, held);
    if (plan->next == Next::kDone) {
      for (const uint32_t place : chosen) model_.uses[place] += fault ? 0 : 1;
      return;
    }
    MarkPlan(*plan);
    open_plans_.push_back(*plan);
  }

  void CheckPlan(const LeasePlan& plan, const std::set<uint32_t>& chosen, Access access,
                 uint32_t held) {
    std::set<uint32_t> fetch, upgrade;
    for (const uint32_t place : chosen) {
      if (!model_.Held(place)) fetch.insert(place);
      if (model_.reading.count(place) > 0 && access == Access::kWrite) upgrade.insert(place);
    }
    ASSERT_EQ(plan.next == Next::kDone, fetch.empty() && upgrade.empty());
    ASSERT_EQ(AsSet(plan.fetch), fetch);
    ASSERT_EQ(AsSet(plan.upgrade), upgrade);
    uint32_t takable = 0;
    for (const uint32_t place : model_.bound) {
      takable += model_.Held(place) && !model_.InUse(place) && model_.moving.count(place) == 0 &&
                 chosen.count(place) == 0;
    }
    for (const PlaceId released : plan.release) {
      ASSERT_TRUE(model_.Held(released.value()));
      ASSERT_FALSE(model_.InUse(released.value()));
      ASSERT_EQ(model_.moving.count(released.value()), 0u);
      ASSERT_EQ(chosen.count(released.value()), 0u);
    }
    uint32_t leasing = 0;
    for (const LeasePlan& open : open_plans_) leasing += open.fetch.size();
    const uint32_t wanted = held + leasing + fetch.size();
    const uint32_t excess = wanted > kBudget && plan.next == Next::kFetch ? wanted - kBudget : 0;
    ASSERT_EQ(plan.release.size(), std::min(excess, takable));
    ASSERT_EQ(plan.release_first, excess > takable);
  }

  void MarkPlan(const LeasePlan& plan) {
    for (const PlaceId place : plan.fetch) model_.moving.insert(place.value());
    for (const PlaceId place : plan.upgrade) {
      model_.moving.insert(place.value());
      Promise(place.value(), 1);
    }
    for (const PlaceId place : plan.hits) Promise(place.value(), 1);
    MarkReleasing(plan.release);
  }

  void Promise(uint32_t place, int uses) {
    model_.uses[place] += uses;
    model_.reserved[place] += uses;
  }

  void MarkReleasing(const std::vector<PlaceId>& places) {
    for (const PlaceId place : places) {
      model_.reading.erase(place.value());
      model_.writing.erase(place.value());
      model_.moving.insert(place.value());
    }
  }

  void FinishOne() {
    if (open_plans_.empty()) return;
    const size_t chosen = Below(open_plans_.size());
    const LeasePlan plan = open_plans_[chosen];
    open_plans_.erase(open_plans_.begin() + chosen);
    const bool granted = Below(4) != 0;
    granted ? cache_.Granted(plan) : cache_.Refused(plan);
    cache_.Released(plan.release);
    for (const PlaceId place : plan.release) model_.moving.erase(place.value());
    for (const PlaceId place : plan.fetch) {
      model_.moving.erase(place.value());
      if (!granted) continue;
      (plan.access == Access::kWrite ? model_.writing : model_.reading).insert(place.value());
      model_.uses[place.value()] += plan.counts_uses ? 1 : 0;
    }
    const int dropped = granted && plan.counts_uses ? 0 : 1;
    for (const PlaceId place : plan.upgrade) {
      model_.moving.erase(place.value());
      model_.uses[place.value()] -= dropped;
      --model_.reserved[place.value()];
      if (!granted) continue;
      model_.reading.erase(place.value());
      model_.writing.insert(place.value());
    }
    for (const PlaceId place : plan.hits) {
      model_.uses[place.value()] -= granted ? 0 : 1;
      --model_.reserved[place.value()];
    }
  }

  void EndUse() {
    const uint32_t place = Below(kPlaces);
    const absl::Status status = cache_.EndUse(Places({place}));
    ASSERT_EQ(status.ok(), model_.uses[place] > model_.reserved[place]) << status;
    if (status.ok()) --model_.uses[place];
  }

  void Reclaim() {
    std::vector<PlaceId> taken;
    switch (Below(4)) {
      case 0:
        taken = cache_.TakeIdle(absl::nullopt);
        break;
      case 1:
        taken = cache_.TakeForHeadroom();
        break;
      case 2:
        Revoke(&taken);
        break;
      default:
        taken = cache_.TakeIdle(Places({Below(kPlaces), Below(kPlaces)}));
    }
    for (const PlaceId place : taken) {
      ASSERT_TRUE(model_.Held(place.value()) && !model_.InUse(place.value()));
      ASSERT_EQ(model_.moving.count(place.value()), 0u);
    }
    MarkReleasing(taken);
    LeasePlan plan;
    plan.next = Next::kFetch;
    plan.release = taken;
    if (!taken.empty()) open_plans_.push_back(plan);
  }

  void Revoke(std::vector<PlaceId>* taken) {
    const uint32_t place = Below(kPlaces);
    const bool named = model_.bound.count(place) > 0;
    const bool takable =
        model_.Held(place) && !model_.InUse(place) && model_.moving.count(place) == 0;
    if (named) {
      cache_.Revoke({cache_.chunk(PlaceId(place))}, Below(3));
    } else {
      cache_.Revoke({}, Below(3));
    }
    *taken = cache_.TakeRevoked();
    if (named && takable) {
      ASSERT_EQ(AsSet(*taken).count(place), 1u);
    }
  }

  static std::set<uint32_t> AsSet(const std::vector<PlaceId>& places) {
    std::set<uint32_t> set;
    for (const PlaceId place : places) set.insert(place.value());
    return set;
  }

  std::mt19937_64 random_;
  LeaseCache cache_{{kPlaces, kBudget}};
  Model model_;
  std::vector<LeasePlan> open_plans_;
  uint64_t last_chunk_ = 0;
};

TEST_P(ModelTest, AgreesWithTheModelAfterEveryStep) {
  using Step = void (ModelTest::*)();
  const Step steps[] = {&ModelTest::Bind,      &ModelTest::Free,      &ModelTest::Ask,
                        &ModelTest::Ask,       &ModelTest::Ask,       &ModelTest::FinishOne,
                        &ModelTest::FinishOne, &ModelTest::FinishOne, &ModelTest::EndUse,
                        &ModelTest::EndUse,    &ModelTest::Reclaim};
  for (int i = 0; i < 4000 && !HasFatalFailure(); ++i) {
    (this->*steps[Below(std::size(steps))])();
    cache_.CheckInvariants();
    const LeaseCache::Counts counts = cache_.counts();
    ASSERT_EQ(counts.bound, model_.bound.size());
    ASSERT_EQ(counts.held, model_.reading.size() + model_.writing.size());
    ASSERT_EQ(counts.moving, model_.moving.size());
    uint32_t in_use = 0;
    for (const auto& [place, uses] : model_.uses) in_use += uses > 0 ? 1 : 0;
    ASSERT_EQ(counts.in_use, in_use);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ModelTest, testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace memtide::client
