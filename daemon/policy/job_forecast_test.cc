#include "daemon/policy/job_forecast.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

using std::chrono::microseconds;
using Prefetch = JobForecast::Prefetch;

constexpr uint32_t kMembers = 8;
constexpr uint64_t kMicrosAUse = 100;
const auto kNowhere = [](Member) -> absl::optional<SlotNumber> { return absl::nullopt; };
constexpr Link kToDevice{Tier::kHost, Tier::kDevice};

class JobForecastTest : public testing::Test {
 protected:
  void Use(uint32_t member) {
    forecast_.Use(Member(member), clock_, /*writes=*/false);
    clock_ += kMicrosAUse;
  }
  void EndIteration() {
    EXPECT_TRUE(forecast_.EndIteration(clock_, slots_, Tier::kDevice, kNowhere));
    forecast_.TakeChanges(kMembers);
  }
  void Iterate() {
    for (uint32_t member = 0; member < kMembers; ++member) Use(member);
    EndIteration();
  }
  void SetMicros(uint64_t micros) {
    forecast_.links().Measure(kToDevice, Instant(microseconds(1)),
                              Instant(microseconds(1 + micros)));
  }
  // The members that are prefetched to the device now, by their order, where `absent_` are not
  // there and the one of `blocked_` finds no room.
  std::vector<uint32_t> Prefetched() {
    forecast_.LookAhead(Tier::kDevice, [this](Member member, VirtualTime) -> absl::optional<bool> {
      if (member.value() == chunkless_) return absl::nullopt;
      return absent_[member.value()];
    });
    std::vector<uint32_t> members;
    while (forecast_.PrefetchNext(Tier::kDevice, [&](Member member, VirtualTime time) {
      const uint32_t number = member.value();
      EXPECT_EQ(forecast_.predictor().NextUse(member), time);
      if (!absent_[number]) return Prefetch::kSkipped;
      if (number == blocked_) return Prefetch::kBlocked;
      members.push_back(number);
      absent_[number] = false;
      return Prefetch::kStarted;
    })) {
    }
    return members;
  }

  JobForecast forecast_;
  uint64_t clock_ = 0;
  absl::optional<ResidencyPlan::Slots> slots_;
  std::vector<bool> absent_ = std::vector<bool>(kMembers, true);
  absl::optional<uint32_t> chunkless_, blocked_;
};

TEST_F(JobForecastTest, AnIterationWithoutAnEventDoesNotEnd) {
  EXPECT_FALSE(forecast_.EndIteration(clock_, slots_, Tier::kDevice, kNowhere));
}

TEST_F(JobForecastTest, APlanHoldsFromTheIterationThatRepeatsUntilOneThatDiffers) {
  slots_ = ResidencyPlan::Slots{4, absl::nullopt};
  Iterate();
  EXPECT_FALSE(forecast_.has_plan()) << "nothing was expected yet";
  Iterate();
  Iterate();
  ASSERT_TRUE(forecast_.has_plan());
  uint32_t stays = 0;
  for (uint32_t member = 0; member < kMembers; ++member) {
    stays += forecast_.PlannedStay(Member(member))->upper;
  }
  EXPECT_EQ(stays, 2u) << "two of four slots are for what is used";
  EXPECT_FALSE(forecast_.PlannedStay(Member(kMembers)).has_value());
  for (uint32_t member = kMembers; member > 0; --member) Use(member - 1);
  EndIteration();
  EXPECT_FALSE(forecast_.has_plan());
  EXPECT_FALSE(forecast_.PlannedStay(Member(0)).has_value());
}

TEST_F(JobForecastTest, APlanEndsWhereNoneIsPossible) {
  slots_ = ResidencyPlan::Slots{4, absl::nullopt};
  for (int i = 0; i < 3; ++i) Iterate();
  ASSERT_TRUE(forecast_.has_plan());
  slots_.reset();
  for (uint32_t member = 0; member < kMembers; ++member) Use(member);
  forecast_.TakeChanges(0);
  ASSERT_TRUE(forecast_.EndIteration(clock_, slots_, Tier::kDevice, kNowhere));
  EXPECT_FALSE(forecast_.has_plan());
  EXPECT_TRUE(forecast_.TakeChanges(0).all) << "other copies may leave now";
  EXPECT_FALSE(forecast_.TakeChanges(0).all);
}

TEST_F(JobForecastTest, ANewPlanChangesEveryMember) {
  slots_ = ResidencyPlan::Slots{4, absl::nullopt};
  Iterate();
  Iterate();
  for (uint32_t member = 0; member < kMembers; ++member) Use(member);
  ASSERT_TRUE(forecast_.EndIteration(clock_, slots_, Tier::kDevice, kNowhere));
  ASSERT_TRUE(forecast_.has_plan());
  EXPECT_FALSE(forecast_.TakeChanges(kMembers).all) << "the plan is the one that was there";
  slots_ = ResidencyPlan::Slots{6, absl::nullopt};
  for (uint32_t member = 0; member < kMembers; ++member) Use(member);
  ASSERT_TRUE(forecast_.EndIteration(clock_, slots_, Tier::kDevice, kNowhere));
  EXPECT_TRUE(forecast_.TakeChanges(kMembers).all);
}

TEST_F(JobForecastTest, APrefetchStartsAsLateAsItsLinkPermits) {
  Iterate();
  Iterate();
  SetMicros(2 * kMicrosAUse);
  // Eight transfers take as long as sixteen uses: all that is known must come now.
  EXPECT_EQ(Prefetched().size(), kMembers);
}

TEST_F(JobForecastTest, AFastLinkPrefetchesOnlyWhatIsUsedNext) {
  Iterate();
  Iterate();
  SetMicros(1);
  EXPECT_EQ(Prefetched(), std::vector<uint32_t>({0, 1}));
  Use(0);
  EXPECT_EQ(Prefetched(), std::vector<uint32_t>()) << "computed again after four uses";
  for (const uint32_t member : {1, 2, 3}) Use(member);
  EXPECT_EQ(Prefetched(), std::vector<uint32_t>({4, 5}));
}

TEST_F(JobForecastTest, WithoutRoomTheSameUseIsTriedAgain) {
  Iterate();
  Iterate();
  SetMicros(2 * kMicrosAUse);
  blocked_ = 3;
  EXPECT_EQ(Prefetched(), std::vector<uint32_t>({0, 1, 2}));
  blocked_.reset();
  EXPECT_EQ(Prefetched(), std::vector<uint32_t>({3, 4, 5, 6, 7}));
}

TEST_F(JobForecastTest, ACopyThatIsLostIsPrefetchedAgain) {
  Iterate();
  Iterate();
  SetMicros(2 * kMicrosAUse);
  EXPECT_EQ(Prefetched().size(), kMembers);
  absent_[2] = absent_[5] = true;
  EXPECT_TRUE(Prefetched().empty());
  forecast_.PrefetchAgainFrom(Tier::kHost, forecast_.predictor().NextUse(Member(2)));
  EXPECT_TRUE(Prefetched().empty()) << "the host's lookahead is its own";
  forecast_.PrefetchAgainFrom(Tier::kDevice, forecast_.predictor().NextUse(Member(5)));
  forecast_.PrefetchAgainFrom(Tier::kDevice, forecast_.predictor().NextUse(Member(2)));
  EXPECT_EQ(Prefetched(), std::vector<uint32_t>({2, 5}));
}

TEST_F(JobForecastTest, AMemberWithoutAChunkOccupiesNoLink) {
  Iterate();
  Iterate();
  SetMicros(4 * kMicrosAUse);
  absent_.assign(kMembers, false);
  absent_[2] = true;
  chunkless_ = 2;
  EXPECT_TRUE(Prefetched().empty());
}

TEST_F(JobForecastTest, UsesThatTheJobLeftOutArePassedOver) {
  Iterate();
  Iterate();
  SetMicros(2 * kMicrosAUse);
  blocked_ = 0;
  EXPECT_TRUE(Prefetched().empty());
  Use(0);
  Use(3);
  blocked_.reset();
  EXPECT_EQ(Prefetched(), std::vector<uint32_t>({4, 5, 6, 7, 0, 1, 2, 3}));
}

TEST_F(JobForecastTest, AMemberThatLeavesHasASlotShortlyBeforeItIsUsed) {
  // The job reports ten uses at a time.
  constexpr uint32_t kMany = 40, kReported = 10, kEarlier = 8;
  slots_ = ResidencyPlan::Slots{20, absl::nullopt};
  SetMicros(3 * kMicrosAUse);
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (uint32_t member = 0; member < kMany; ++member) {
      forecast_.Use(Member(member), clock_, /*writes=*/false);
      if (member % kReported == kReported - 1) clock_ += kReported * kMicrosAUse;
    }
    EndIteration();
  }
  ASSERT_TRUE(forecast_.has_plan());
  const auto no_transfer = [](Member, VirtualTime) -> absl::optional<bool> { return false; };
  forecast_.LookAhead(Tier::kDevice, no_transfer);
  uint32_t leave = 0, wait = 0;
  for (uint32_t member = 0; member < kMany; ++member) {
    const VirtualTime next = forecast_.predictor().NextUse(Member(member));
    const ResidencyPlan::Stay stay = *forecast_.PlannedStay(Member(member));
    const bool has_slot = forecast_.HasPlannedSlot(Tier::kDevice, Member(member), next);
    EXPECT_EQ(has_slot, stay.upper || member <= kReported + stay.ahead + kEarlier) << member;
    EXPECT_TRUE(forecast_.HasPlannedSlot(Tier::kHost, Member(member), next))
        << "nothing is planned";
    leave += !stay.upper;
    wait += !has_slot;
  }
  EXPECT_GT(wait, 0u);
  EXPECT_GT(leave, wait);
}

TEST_F(JobForecastTest, MembersStayInTheSlotsInWhichTheyAreWhereEachCanHaveOne) {
  // Slots without memory leave gaps in the numbers.
  const auto odd = [](Member member) -> absl::optional<SlotNumber> {
    return SlotNumber(2 * (kMembers - member.value()) - 1);
  };
  slots_ = ResidencyPlan::Slots{kMembers, absl::nullopt};
  for (uint32_t number = 1; number < 2 * kMembers; number += 2) {
    slots_->fixed.emplace_back(number);
  }
  for (int iteration = 0; iteration < 4; ++iteration) {
    for (uint32_t member = 0; member < kMembers; ++member) Use(member);
    EXPECT_TRUE(forecast_.EndIteration(clock_, slots_, Tier::kDevice, odd));
    forecast_.TakeChanges(kMembers);
  }
  ASSERT_TRUE(forecast_.has_fixed_slots());
  for (uint32_t member = 0; member < kMembers; ++member) {
    EXPECT_EQ(forecast_.PlannedSlot(Tier::kDevice, Member(member)), odd(Member(member)));
  }
}

TEST_F(JobForecastTest, APlanOfSlotsInTheMakingHoldsUpNoOtherAndEndsWithItsSlots) {
  constexpr uint32_t kMany = 400;
  const auto iterate = [&](size_t worth) {
    for (uint32_t member = 0; member < kMany; ++member) Use(member);
    EXPECT_TRUE(forecast_.EndIteration(clock_, slots_, Tier::kDevice, kNowhere));
    forecast_.TakeChanges(worth);
  };
  slots_ = ResidencyPlan::Slots{300, absl::nullopt};
  for (uint32_t number = 0; number < 300; ++number) slots_->fixed.emplace_back(number);
  for (int iteration = 0; iteration < 4; ++iteration) iterate(1);
  ASSERT_TRUE(forecast_.has_plan());
  ASSERT_FALSE(forecast_.has_fixed_slots()) << "it takes much longer";
  slots_->upper = 100;
  slots_->fixed.erase(slots_->fixed.begin(), slots_->fixed.begin() + 200);
  iterate(1);
  iterate(1);
  uint32_t stays = 0;
  for (uint32_t member = 0; member < kMany; ++member) {
    stays += forecast_.PlannedStay(Member(member))->upper;
  }
  EXPECT_LE(stays, 100u) << "the other plan is of the slots that are left";
  for (int i = 0; i < 1000; ++i) forecast_.TakeChanges(kMany);
  ASSERT_FALSE(forecast_.has_fixed_slots()) << "where members are is known at the end";
  iterate(1);
  ASSERT_TRUE(forecast_.has_fixed_slots());
  for (uint32_t member = 0; member < kMany; ++member) {
    EXPECT_GE(forecast_.PlannedSlot(Tier::kDevice, Member(member))->value(), 200u);
  }
}

using JobForecastDeathTest = JobForecastTest;

TEST_F(JobForecastDeathTest, NothingIsPrefetchedToTheSsd) {
  const auto moves = [](Member, VirtualTime) -> absl::optional<bool> { return true; };
  const auto skip = [](Member, VirtualTime) { return Prefetch::kSkipped; };
  EXPECT_DEATH(forecast_.LookAhead(Tier::kSsd, moves), "kSsd");
  EXPECT_DEATH(forecast_.PrefetchNext(Tier::kSsd, skip), "kSsd");
  EXPECT_DEATH(forecast_.PrefetchAgainFrom(Tier::kSsd, VirtualTime()), "kSsd");
}

}  // namespace
}  // namespace memtide
