#include "daemon/policy/foresight.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

void Iterate(Foresight* foresight, const std::string& uses) {
  for (const char use : uses) foresight->Use(static_cast<uint32_t>(use - 'a'), 0);
  foresight->EndIteration(0);
}
void Use(Foresight* foresight, const std::string& uses) {
  for (const char use : uses) foresight->Use(static_cast<uint32_t>(use - 'a'), 0);
}
// How far away the member's next use is expected.
uint64_t Distance(const Foresight& foresight, char member) {
  return foresight.NextUse(static_cast<uint32_t>(member - 'a')) - foresight.now();
}
// The next `count` expected uses.
std::string Expected(const Foresight& foresight, size_t count) {
  std::string expected;
  for (uint64_t i = 0; i < count; ++i) {
    const absl::optional<uint32_t> member = foresight.At(foresight.now() + i);
    expected += member.has_value() ? static_cast<char>('a' + *member) : '?';
  }
  return expected;
}

TEST(ForesightTest, BeforeAnyIterationNothingIsKnown) {
  Foresight foresight;
  Use(&foresight, "abcab");
  EXPECT_FALSE(foresight.known());
  EXPECT_EQ(foresight.NextUse(0), Foresight::kUnknown);
  EXPECT_EQ(foresight.NextUse(7), Foresight::kUnknown) << "never used";
  EXPECT_EQ(foresight.At(0), absl::nullopt);
}

TEST(ForesightTest, TellsTheEventsOfWhatRepeatsAndWhichWasTheLastOfEach) {
  using Kind = Plan::Event::Kind;
  Foresight foresight;
  EXPECT_FALSE(foresight.repeats());
  EXPECT_EQ(foresight.LastEvent(0), absl::nullopt);
  for (int iteration = 0; iteration < 2; ++iteration) {
    foresight.Use(0, 0);
    foresight.Use(1, 0, true);
    EXPECT_EQ(foresight.LastEvent(0), 0u);
    foresight.Use(0, 0);
    foresight.Free(1, 0);
    EXPECT_EQ(foresight.LastEvent(0), 1u);
    foresight.EndIteration(0);
    EXPECT_EQ(foresight.LastEvent(0), 1u) << "until it is used again";
    EXPECT_EQ(foresight.LastEvent(1), 1u);
  }
  EXPECT_TRUE(foresight.repeats());
  const std::vector<Plan::Event> events = foresight.Events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1].member, 1u);
  EXPECT_EQ(events[0].kind, Kind::kRead);
  EXPECT_EQ(events[1].kind, Kind::kWrite);
  EXPECT_EQ(events[3].kind, Kind::kFree);
  // Another order, and then the first again: what follows is not the same.
  Iterate(&foresight, "cdefg");
  foresight.Use(0, 0);
  foresight.Use(1, 0, true);
  foresight.Use(0, 0);
  foresight.Free(1, 0);
  foresight.EndIteration(0);
  EXPECT_FALSE(foresight.repeats());
}

TEST(ForesightTest, ARepeatedIterationIsKnownUseByUse) {
  Foresight foresight;
  Iterate(&foresight, "abcba");
  EXPECT_TRUE(foresight.last_iteration().surprise) << "the first one";
  EXPECT_EQ(foresight.last_iteration().expected, 0u);
  for (int iteration = 0; iteration < 3; ++iteration) {
    EXPECT_EQ(Expected(foresight, 10), "abcbaabcba");
    EXPECT_EQ(Distance(foresight, 'c'), 2u);
    Use(&foresight, "ab");
    EXPECT_EQ(Expected(foresight, 5), "cbaab");
    EXPECT_EQ(Distance(foresight, 'b'), 1u);
    EXPECT_EQ(Distance(foresight, 'a'), 2u);
    Use(&foresight, "c");
    EXPECT_EQ(Distance(foresight, 'c'), 4u) << "in the next iteration";
    Iterate(&foresight, "ba");
    EXPECT_FALSE(foresight.last_iteration().surprise);
  }
}

TEST(ForesightTest, OnlyWhatWasUsedChangesWhileTheOrderHolds) {
  Foresight foresight;
  Iterate(&foresight, "abcdabcd");
  foresight.TakeChanges();
  Use(&foresight, "a");
  const Foresight::Changes changes = foresight.TakeChanges();
  EXPECT_FALSE(changes.all);
  EXPECT_EQ(changes.members, std::vector<uint32_t>({0}));
  EXPECT_TRUE(foresight.TakeChanges().members.empty());
}

TEST(ForesightTest, ASkippedUseIsExpectedAtItsNextPlace) {
  Foresight foresight;
  Iterate(&foresight, "abcdefabcdef");
  Use(&foresight, "acd");
  EXPECT_EQ(Expected(foresight, 3), "efa");
  EXPECT_EQ(Distance(foresight, 'b'), 3u);
}

TEST(ForesightTest, AnUnforeseenUseDoesNotLoseThePlace) {
  Foresight foresight;
  Iterate(&foresight, "abcdefgh");
  Use(&foresight, "abzc");
  EXPECT_EQ(Expected(foresight, 3), "def");
}

TEST(ForesightTest, AFarJumpIsFollowedWhenTwoUsesAgree) {
  Foresight foresight;
  std::string all;
  for (char c = 'a'; c <= 'z'; ++c) all += c;
  Iterate(&foresight, all);
  Use(&foresight, "ab");
  Use(&foresight, "r");
  EXPECT_EQ(Expected(foresight, 2), "cd") << "one use may be anything";
  Use(&foresight, "s");
  EXPECT_EQ(Expected(foresight, 2), "tu");
}

TEST(ForesightTest, AnIterationThatBeginsAnewWithoutAnEndIsFollowed) {
  Foresight foresight;
  Iterate(&foresight, "abcdefghijklmnop");
  Use(&foresight, "abcdefghijklm");
  Use(&foresight, "abc");
  EXPECT_EQ(Expected(foresight, 3), "def");
}

TEST(ForesightTest, TwoShapesInTurnAreBothKnown) {
  Foresight foresight;
  for (int i = 0; i < 3; ++i) {
    Iterate(&foresight, "abcdabcd");
    Iterate(&foresight, "wxyz");
  }
  EXPECT_EQ(Expected(foresight, 12), "abcdabcdwxyz");
  Iterate(&foresight, "abcdabcd");
  EXPECT_EQ(Expected(foresight, 6), "wxyzab");
  EXPECT_EQ(Distance(foresight, 'a'), 4u);
  for (const char* uses : {"wxyz", "abcdabcd"}) {
    Iterate(&foresight, uses);
    EXPECT_FALSE(foresight.last_iteration().surprise) << uses;
  }
}

TEST(ForesightTest, AnIterationCutShortIsNotLearnt) {
  Foresight foresight;
  Iterate(&foresight, "abcdefgh");
  Iterate(&foresight, "abc");
  EXPECT_EQ(Expected(foresight, 8), "abcdefgh");
  EXPECT_TRUE(foresight.last_iteration().surprise);
  EXPECT_FALSE(foresight.last_iteration().remembered);
}

TEST(ForesightTest, WhatIsGivenUpIsExpectedToBeGivenUpAgain) {
  Foresight foresight;
  const auto iterate = [&foresight] {
    for (const uint32_t member : {0u, 1u, 2u}) foresight.Use(member, 0);
    foresight.Free(1, 0);
    for (const uint32_t member : {3u, 4u}) foresight.Use(member, 0);
    foresight.EndIteration(0);
  };
  iterate();
  iterate();
  EXPECT_FALSE(foresight.IsFreedNext(1));
  Use(&foresight, "ab");
  EXPECT_TRUE(foresight.IsFreedNext(1));
  EXPECT_EQ(Distance(foresight, 'b'), 1u);
  EXPECT_EQ(foresight.At(foresight.now() + 1), Foresight::kNobody);
  EXPECT_EQ(foresight.At(foresight.now() + 2), 3u);
  EXPECT_FALSE(foresight.last_iteration().surprise);
}

TEST(ForesightTest, TimesAreThoseOfTheIterationBefore) {
  Foresight foresight;
  for (uint64_t start : {1000u, 5000u}) {
    for (uint32_t i = 0; i < 4; ++i) foresight.Use(i, start + 10 * i * i);
    foresight.EndIteration(start + 100);
  }
  foresight.Use(0, 9000);
  EXPECT_EQ(foresight.MicrosUntil(foresight.now()), 0u);
  EXPECT_EQ(foresight.MicrosUntil(foresight.now() + 2), 80u);
  EXPECT_EQ(foresight.MicrosUntil(foresight.now() + 3), 90u) << "the next iteration's first use";
  EXPECT_EQ(foresight.MicrosUntil(foresight.now() + 5), 130u);
}

TEST(ForesightTest, ANearlyRepeatedIterationReplacesItsShape) {
  Foresight foresight;
  Iterate(&foresight, "abcdefgh");
  Iterate(&foresight, "abxdefgh");
  EXPECT_EQ(Expected(foresight, 8), "abxdefgh");
  EXPECT_LT(foresight.NextUse(2), Foresight::kUnknown) << "it may come back";
  const Foresight::Iteration& last = foresight.last_iteration();
  EXPECT_TRUE(last.surprise && last.remembered);
  EXPECT_EQ(last.uses, 8u);
  EXPECT_EQ(last.as_expected, 7u);
}

TEST(ForesightTest, AnEmptyIterationIsNone) {
  Foresight foresight;
  foresight.EndIteration(0);
  Iterate(&foresight, "ab");
  foresight.EndIteration(0);
  EXPECT_EQ(foresight.last_iteration().number, 1u);
  EXPECT_EQ(Expected(foresight, 4), "abab");
}

TEST(ForesightTest, WhoIsNeverUsedAgainMovesAway) {
  Foresight foresight;
  Iterate(&foresight, "zabcd");
  for (int i = 0; i < 20; ++i) Iterate(&foresight, "abcd");
  EXPECT_GT(Distance(foresight, 'z'), 8u);
}

// Against the uses themselves, over iterations that change at random.
TEST(ForesightTest, TimesNeverRunBackAndNextUsesAreNeverPast) {
  std::mt19937 random(20261121);
  Foresight foresight;
  std::string shape = "abcdefghijklmnopponmlkjihgfedcbaABCDEFGH";
  uint64_t before = 0, clock = 0;
  for (int iteration = 0; iteration < 300; ++iteration) {
    std::string uses = shape;
    if (random() % 3 == 0) uses.erase(random() % uses.size(), random() % 9);
    if (random() % 3 == 0) uses.insert(random() % uses.size(), 1, 'q');
    if (random() % 11 == 0) std::shuffle(shape.begin(), shape.end(), random);
    if (random() % 7 == 0) uses += uses;
    for (const char use : uses) {
      foresight.Use(static_cast<uint32_t>(use - 'A'), clock += 5);
      ASSERT_GE(foresight.now(), before);
      before = foresight.now();
      ASSERT_GE(foresight.NextUse(random() % 60), before);
    }
    if (random() % 13 != 0) foresight.EndIteration(clock);
    ASSERT_GE(foresight.now(), before);
  }
}

}  // namespace
}  // namespace memtide
