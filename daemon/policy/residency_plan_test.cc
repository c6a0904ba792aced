#include "daemon/policy/residency_plan.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "daemon/policy/testing/event_text.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using Kind = ResidencyPlan::Event::Kind;

ResidencyPlan Made(const std::vector<ResidencyPlan::Event>& events, ResidencyPlan::Slots slots,
                   ResidencyPlan::Transfers transfers = {}) {
  ResidencyPlan plan(events, slots, transfers);
  while (!plan.done()) plan.Work(1);
  return plan;
}

struct Followed {
  int moves = 0;                        // Over both boundaries, both ways.
  int most_upper = 0, most_middle = 0;  // Copies that stayed at once.
};

// Does what the plan says, over and over.
Followed Follow(const std::vector<ResidencyPlan::Event>& events, const ResidencyPlan& plan) {
  struct State {
    uint32_t nth = 0;
    bool exists = false, upper = false, middle = false, lowest = true;
  };
  std::vector<State> members(26);
  Followed followed;
  for (int iteration = 0; iteration < 4; ++iteration) {
    followed.moves = 0;
    for (State& member : members) member.nth = 0;
    for (const ResidencyPlan::Event& event : events) {
      State& member = members[event.member.value()];
      if (event.kind == Kind::kFree) {
        member = {member.nth, false, false, false, false};
      } else {
        if (member.exists && !member.upper) {
          followed.moves += member.middle ? 1 : 2;
          member.middle = true;
        }
        member.exists = member.upper = true;
        if (event.kind == Kind::kWrite) member.middle = member.lowest = false;
      }
      const absl::optional<ResidencyPlan::Stay> stay = plan.After(event.member, member.nth++);
      if (!stay.has_value()) ADD_FAILURE() << "nothing is planned after event " << member.nth - 1;
      if (!stay.has_value() || !member.exists) continue;
      if (!stay->upper && !member.middle && (stay->middle || !member.lowest)) {
        ++followed.moves;
        member.middle = true;
      }
      if (!stay->middle && member.middle && !member.lowest && plan.slots().middle.has_value()) {
        // The plan may have meant to lose it, where it stays above until it is written to.
        if (!stay->upper) {
          ++followed.moves;
          member.lowest = true;
        }
      }
      member.upper = stay->upper;
      member.middle = member.middle && stay->middle;
      int upper = 0, middle = 0;
      for (const State& each : members) {
        upper += each.exists && each.upper;
        middle += each.exists && each.middle;
      }
      followed.most_upper = std::max(followed.most_upper, upper);
      followed.most_middle = std::max(followed.most_middle, middle);
    }
  }
  return followed;
}

TEST(ResidencyPlanTest, WhatFitsStays) {
  const std::vector<ResidencyPlan::Event> events = EventsOf("ar bw cr bw ar ");
  const ResidencyPlan plan = Made(events, {8, 8});
  for (uint32_t member = 0; member < 2; ++member) {
    for (uint32_t nth = 0; nth < 2; ++nth) EXPECT_TRUE(plan.After(Member(member), nth)->upper);
  }
  EXPECT_EQ(Follow(events, plan).moves, 0);
}

TEST(ResidencyPlanTest, KnowsOnlyTheEventsThatThereAre) {
  const ResidencyPlan plan = Made(EventsOf("ar cr "), {8, 8});
  EXPECT_TRUE(plan.After(Member(0), 0).has_value());
  EXPECT_FALSE(plan.After(Member(0), 1).has_value());
  EXPECT_FALSE(plan.After(Member(1), 0).has_value()) << "a gap in the numbers";
  EXPECT_FALSE(plan.After(Member(9), 0).has_value());
  EXPECT_TRUE(ResidencyPlan({}, {8, 8}, {}).done());
}

TEST(ResidencyPlanTest, WhoIsUsedAgainSoonerStays) {
  // One slot beside the leased ones.
  const ResidencyPlan plan = Made(EventsOf("ar br cr dr ar er br fr "), {3, absl::nullopt});
  EXPECT_TRUE(plan.After(Member(0), 0)->upper);
  EXPECT_FALSE(plan.After(Member(1), 0)->upper);
}

TEST(ResidencyPlanTest, WhatIsWrittenToStaysBeforeWhatIsOnlyRead) {
  // a and b come in the same way; a would have to be written back each time.
  const ResidencyPlan plan = Made(EventsOf("aw br cr dr er fr "), {3, absl::nullopt});
  EXPECT_TRUE(plan.After(Member(0), 0)->upper);
  EXPECT_FALSE(plan.After(Member(1), 0)->upper);
}

TEST(ResidencyPlanTest, TheHostKeepsTheCopyOfWhatLeavesTheDevice) {
  // Three of six are only read and fit beside each other in host memory alone.
  const ResidencyPlan plan = Made(EventsOf("ar br cr dr er fr "), {3, 8});
  uint32_t upper = 0;
  for (uint32_t member = 0; member < 6; ++member) {
    const ResidencyPlan::Stay stay = *plan.After(Member(member), 0);
    EXPECT_TRUE(stay.upper || stay.middle) << "nothing has to go to the lowest tier";
    upper += stay.upper;
  }
  EXPECT_EQ(upper, 1u);
}

TEST(ResidencyPlanTest, WhatIsGivenUpIsNotBroughtBack) {
  // b exists between its write and its end; waiting below costs its way down alone.
  const std::vector<ResidencyPlan::Event> events = EventsOf("bw ar cr dr ar cr dr b- ");
  const ResidencyPlan plan = Made(events, {3, 8});
  EXPECT_FALSE(plan.After(Member(1), 0)->upper);
  EXPECT_FALSE(plan.After(Member(1), 1)->upper) << "it does not exist";
  EXPECT_EQ(Follow(events, plan).moves, 3) << "b goes down, two of the others come back";
}

TEST(ResidencyPlanTest, WantsNoSlotTwiceAndMovesLessThanKeepingNothing) {
  std::mt19937 random(20261122);
  for (int round = 0; round < 200; ++round) {
    std::vector<ResidencyPlan::Event> events;
    std::vector<bool> exists(12, true);
    for (int i = 0; i < 60; ++i) {
      const uint32_t member = random() % 12;
      Kind kind = random() % 2 == 0 ? Kind::kRead : Kind::kWrite;
      if (!exists[member]) kind = Kind::kWrite;
      if (exists[member] && random() % 10 == 0) kind = Kind::kFree;
      exists[member] = kind != Kind::kFree;
      events.push_back({Member(member), kind});
    }
    const ResidencyPlan::Slots slots{4 + static_cast<uint32_t>(random() % 6),
                                     4 + static_cast<uint32_t>(random() % 6)};
    const Followed followed = Follow(events, Made(events, slots));
    EXPECT_LE(followed.most_upper, static_cast<int>(slots.upper)) << "round " << round;
    EXPECT_LE(followed.most_middle, static_cast<int>(*slots.middle)) << "round " << round;
    const Followed without = Follow(events, ResidencyPlan(events, slots, {}));
    EXPECT_LT(followed.moves, without.moves) << "round " << round;
  }
}

TEST(ResidencyPlanTest, AMemberOfTooManyEventsIsNotPlannedAndHoldsNobodyUp) {
  std::vector<ResidencyPlan::Event> events(100000, {Member(0), Kind::kRead});
  events.push_back({Member(1), Kind::kRead});
  events.push_back({Member(2), Kind::kRead});
  const ResidencyPlan plan = Made(events, {8, 8});
  EXPECT_FALSE(plan.After(Member(0), 7).has_value());
  EXPECT_TRUE(plan.After(Member(1), 0)->upper);
}

TEST(ResidencyPlanTest, ALongIterationIsPlannedAtCoarserTimes) {
  // 2,000 members, each used twice in a row and once again half an iteration later.
  std::vector<ResidencyPlan::Event> events;
  for (int half = 0; half < 2; ++half) {
    for (uint32_t member = 0; member < 2000; ++member) {
      events.push_back({Member(member), Kind::kRead});
      events.push_back({Member(member), Kind::kRead});
    }
  }
  const ResidencyPlan plan = Made(events, {502, absl::nullopt});
  uint32_t between = 0, stay = 0;
  for (uint32_t member = 0; member < 2000; ++member) {
    between += plan.After(Member(member), 0)->upper;
    stay += plan.After(Member(member), 1)->upper + plan.After(Member(member), 3)->upper;
  }
  EXPECT_EQ(between, 2000u) << "two uses in a row cost no slot";
  EXPECT_GT(stay, 900u) << "at any time 500 of the waiting ones have room";
  EXPECT_LT(stay, 1010u);
}

// Which of `members` members stay that are read in turn, a millisecond each.
std::string StaysOfALoop(uint32_t members, ResidencyPlan::Slots slots,
                         ResidencyPlan::Transfers transfers) {
  std::vector<ResidencyPlan::Event> events;
  for (uint32_t member = 0; member < members; ++member) {
    events.push_back({Member(member), Kind::kRead, 1000});
  }
  const ResidencyPlan plan = Made(events, slots, transfers);
  std::string stays;
  for (uint32_t member = 0; member < members; ++member) {
    stays += plan.After(Member(member), 0)->upper ? 's' : '.';
  }
  return stays;
}

size_t LongestRun(const std::string& text, char of) {
  size_t longest = 0, run = 0;
  for (const char c : text + text) {
    run = c == of ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

TEST(ResidencyPlanTest, WhereEachHasASlotNoneIsLeftFree) {
  EXPECT_EQ(StaysOfALoop(8, {8, absl::nullopt}, {4000, 4000}), "ssssssss");
  EXPECT_NE(StaysOfALoop(9, {8, absl::nullopt}, {4000, 4000}).find('.'), std::string::npos);
}

TEST(ResidencyPlanTest, OnASlowLinkThoseThatLeaveAreSpread) {
  const ResidencyPlan::Slots slots{20, absl::nullopt};
  const std::string spread = StaysOfALoop(24, slots, {4000, 4000});
  EXPECT_EQ(LongestRun(spread, '.'), 1u) << spread;
  EXPECT_GE(std::count(spread.begin(), spread.end(), 's'), 15) << spread;
  // The link is free for each that leaves, so that nothing spreads them.
  EXPECT_GT(LongestRun(StaysOfALoop(24, slots, {10, 10}), '.'), 3u);
}

TEST(ResidencyPlanTest, AFastLinkSendsNoMoreThanTheSlotsDemand) {
  const std::string stays = StaysOfALoop(24, {16, absl::nullopt}, {10, 10});
  EXPECT_EQ(std::count(stays.begin(), stays.end(), 's'), 13) << stays;
}

TEST(ResidencyPlanTest, AMemberOnItsWayTakesASlotForAsLongAsItsTransfer) {
  const std::vector<ResidencyPlan::Event> events = EventsOf("ar br cr dr er fr gr hr ir ");
  const auto ahead = [&](uint64_t in_micros) {
    const ResidencyPlan plan = Made(events, {8, absl::nullopt}, {in_micros, in_micros});
    uint32_t least = ~uint32_t{0};
    for (uint32_t member = 0; member < 9; ++member) {
      const ResidencyPlan::Stay stay = *plan.After(Member(member), 0);
      if (!stay.upper) least = std::min(least, stay.ahead);
    }
    return least;
  };
  EXPECT_EQ(ahead(10), 0u);
  EXPECT_EQ(ahead(3000), 2u);
  EXPECT_EQ(ahead(0), 9u) << "at any time, as nothing is known of the link";
}

TEST(ResidencyPlanTest, AMemberThatCannotBeBackInTimeStays) {
  // a is used again soon; b and c have time to go and come back.
  const std::vector<ResidencyPlan::Event> events =
      EventsOf("ar br dr er ar cr fr gr hr ir jr kr lr mr nr or ");
  for (const uint64_t micros : {uint64_t{0}, uint64_t{3000}}) {
    const ResidencyPlan plan = Made(events, {5, absl::nullopt}, {micros, micros});
    EXPECT_TRUE(plan.After(Member(0), 0)->upper) << micros;
  }
}

TEST(ResidencyPlanTest, UsesReportedAtOneTimeAreSpreadOverTheTimeUntilTheNext) {
  // Four reads are reported every four milliseconds.
  std::vector<ResidencyPlan::Event> events;
  for (uint32_t member = 0; member < 24; ++member) {
    events.push_back({Member(member), Kind::kRead, member % 4 == 3 ? 4000u : 0u});
  }
  const ResidencyPlan plan = Made(events, {20, absl::nullopt}, {4000, 4000});
  std::string stays;
  for (uint32_t member = 0; member < 24; ++member) {
    stays += plan.After(Member(member), 0)->upper ? 's' : '.';
  }
  EXPECT_EQ(stays, StaysOfALoop(24, {20, absl::nullopt}, {4000, 4000}));
}

}  // namespace
}  // namespace memtide
