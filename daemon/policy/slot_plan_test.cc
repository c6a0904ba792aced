#include "daemon/policy/slot_plan.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "daemon/policy/testing/event_text.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using Kind = ResidencyPlan::Event::Kind;

SlotPlan MadeOf(const std::vector<ResidencyPlan::Event>& events, uint32_t slots,
                const SlotPlan* before = nullptr) {
  std::vector<SlotNumber> numbers;
  for (uint32_t number = 0; number < slots; ++number) numbers.emplace_back(number);
  SlotPlan plan(events, numbers, {}, [&](Member member) {
    return before == nullptr ? absl::nullopt : before->SlotOf(member);
  });
  while (!plan.done()) plan.Work(1);
  return plan;
}

// Every one of `members` in turn, `uses` times.
std::vector<ResidencyPlan::Event> Rounds(uint32_t members, int uses) {
  std::vector<ResidencyPlan::Event> events;
  for (int round = 0; round < uses; ++round) {
    for (uint32_t member = 0; member < members; ++member) {
      events.push_back({Member(member), Kind::kWrite, 1000});
    }
  }
  return events;
}

TEST(SlotPlanTest, WhereAllHaveASlotNobodyLeaves) {
  const SlotPlan plan = MadeOf(Rounds(6, 3), 6);
  EXPECT_EQ(plan.transfers(), 0u);
  std::set<SlotNumber> slots;
  for (uint32_t member = 0; member < 6; ++member) {
    slots.insert(*plan.SlotOf(Member(member)));
    EXPECT_TRUE(plan.After(Member(member), 0)->stays);
  }
  EXPECT_EQ(slots.size(), 6u);
}

TEST(SlotPlanTest, WhatIsUsedOnceSharesSlotsAndWhatIsUsedOftenHasItsOwn) {
  // a, b and c are used in turn with twelve that are used once.
  std::string text;
  for (char once = 'd'; once < 'p'; ++once) {
    text += std::string("ar bw cr ") + once + "w ";
  }
  const SlotPlan plan = MadeOf(EventsOf(text), 6);
  for (const uint32_t often : {0u, 1u, 2u}) {
    for (uint32_t other = 0; other < 15; ++other) {
      if (other == often) continue;
      EXPECT_NE(plan.SlotOf(Member(often)), plan.SlotOf(Member(other))) << often << other;
    }
  }
  EXPECT_LE(plan.transfers(), 24u) << "each of the twelve comes and leaves once at most";
}

TEST(SlotPlanTest, AContentThatIsMadeAnewComesAndLeavesWithoutATransfer) {
  EXPECT_EQ(MadeOf(EventsOf("aw ar a- bw br b- cw cr c- "), 1).transfers(), 0u);
  EXPECT_EQ(MadeOf(EventsOf("ar ar ar br br br cr cr cr "), 1).transfers(), 3u)
      << "nothing is written";
}

TEST(SlotPlanTest, ASlotIsFreeForAMemberOnceTheOneBeforeItWasUsed) {
  const SlotPlan plan = MadeOf(EventsOf("aw aw bw bw bw "), 1);
  EXPECT_TRUE(plan.After(Member(0), 0)->stays);
  const auto away = plan.After(Member(0), 1);
  EXPECT_FALSE(away->stays);
  EXPECT_EQ(away->ahead, 0u) << "b is used until a is";
  EXPECT_EQ(plan.After(Member(1), 2)->ahead, 0u);
  EXPECT_FALSE(plan.After(Member(0), 2).has_value());
  EXPECT_FALSE(plan.SlotOf(Member(7)).has_value());
}

TEST(SlotPlanTest, KnowsForHowLongASlotIsUnwanted) {
  const SlotPlan plan = MadeOf(EventsOf("aw aw aw aw bw "), 1);
  EXPECT_EQ(plan.UnwantedFor(SlotNumber(0), 5), 0u);
  EXPECT_EQ(plan.UnwantedFor(SlotNumber(0), 1), 0u);
  EXPECT_GT(plan.UnwantedFor(SlotNumber(3), 1), 1000u) << "no member has it";
}

TEST(SlotPlanTest, ANewPlanLeavesMembersWhereTheyAre) {
  const SlotPlan first = MadeOf(Rounds(24, 2), 8);
  std::vector<ResidencyPlan::Event> longer = Rounds(24, 2);
  longer.push_back({Member(3), Kind::kRead, 1000});
  const SlotPlan second = MadeOf(longer, 8, &first);
  int moved = 0;
  for (uint32_t member = 0; member < 24; ++member) {
    moved += first.SlotOf(Member(member)) != second.SlotOf(Member(member));
  }
  EXPECT_LE(moved, 2);
}

TEST(SlotPlanTest, NumbersFollowMembersThatNeverLeave) {
  // a, b and c stay, and the others share the slots that are left.
  std::string text;
  for (char once = 'd'; once < 'p'; ++once) {
    text += std::string("ar bw cr ") + once + "w ";
  }
  SlotPlan plan = MadeOf(EventsOf(text), 6);
  // The slot with number 7 has no member.
  const auto there = [](Member member) -> absl::optional<SlotNumber> {
    if (member.value() == 5) return SlotNumber(0);
    if (member.value() > 2) return absl::nullopt;
    return SlotNumber(7 - member.value());
  };
  EXPECT_TRUE(plan.Renumber(there));
  for (const uint32_t stays : {0u, 1u, 2u}) {
    EXPECT_EQ(plan.SlotOf(Member(stays)), SlotNumber(7 - stays));
  }
  std::set<SlotNumber> numbers;
  for (uint32_t member = 0; member < 15; ++member) numbers.insert(*plan.SlotOf(Member(member)));
  EXPECT_EQ(numbers.size(), 6u);
  EXPECT_FALSE(plan.Renumber(there));
}

TEST(SlotPlanTest, NoTurnIsSoShortThatLeasesWouldCoverIt) {
  // To keep seven of 32 and let the others pass through one slot would be the fewest transfers.
  const SlotPlan plan = MadeOf(Rounds(32, 1), 8);
  uint32_t least = 32;
  for (uint32_t member = 0; member < 32; ++member) {
    least = std::min(least, plan.After(Member(member), 0)->ahead);
  }
  EXPECT_GE(least, 2u);
}

}  // namespace
}  // namespace memtide
