#include "daemon/policy/access_predictor.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr Member kA{0}, kB{1}, kC{2}, kD{3}, kE{4};

Member Named(char letter) { return Member(static_cast<uint32_t>(letter - 'a')); }
void Use(AccessPredictor* predictor, const std::string& uses) {
  for (const char use : uses) predictor->Use(Named(use), 0);
}
void Iterate(AccessPredictor* predictor, const std::string& uses) {
  Use(predictor, uses);
  predictor->EndIteration(0);
}
// How far away the member's next use is expected.
uint64_t Distance(const AccessPredictor& predictor, char member) {
  return predictor.NextUse(Named(member)) - predictor.now();
}
// The next `count` expected uses.
std::string Expected(const AccessPredictor& predictor, size_t count) {
  std::string expected;
  for (uint64_t i = 0; i < count; ++i) {
    const absl::optional<Member> member = predictor.At(predictor.now() + i);
    expected += member.has_value() ? static_cast<char>('a' + member->value()) : '?';
  }
  return expected;
}

TEST(AccessPredictorTest, BeforeAnyIterationNothingIsKnown) {
  AccessPredictor predictor;
  Use(&predictor, "abcab");
  EXPECT_FALSE(predictor.has_prediction());
  EXPECT_EQ(predictor.NextUse(kA), AccessPredictor::kUnknown);
  EXPECT_EQ(predictor.NextUse(Member(7)), AccessPredictor::kUnknown) << "never used";
  EXPECT_EQ(predictor.At(VirtualTime()), absl::nullopt);
}

TEST(AccessPredictorTest, TellsTheEventsOfWhatRepeatsAndWhichWasTheLastOfEach) {
  using Kind = ResidencyPlan::Event::Kind;
  AccessPredictor predictor;
  EXPECT_FALSE(predictor.repeats());
  EXPECT_EQ(predictor.LastEvent(kA), absl::nullopt);
  for (int iteration = 0; iteration < 2; ++iteration) {
    predictor.Use(kA, 0);
    predictor.Use(kB, 0, true);
    EXPECT_EQ(predictor.LastEvent(kA), 0u);
    predictor.Use(kA, 0);
    predictor.Free(kB, 0);
    EXPECT_EQ(predictor.LastEvent(kA), 1u);
    predictor.EndIteration(0);
    EXPECT_EQ(predictor.LastEvent(kA), 1u) << "until it is used again";
    EXPECT_EQ(predictor.LastEvent(kB), 1u);
  }
  EXPECT_TRUE(predictor.repeats());
  const std::vector<ResidencyPlan::Event> events = predictor.Events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1].member, kB);
  EXPECT_EQ(events[0].kind, Kind::kRead);
  EXPECT_EQ(events[1].kind, Kind::kWrite);
  EXPECT_EQ(events[3].kind, Kind::kFree);
  // Another order, and then the first again: what follows is not the same.
  Iterate(&predictor, "cdefg");
  predictor.Use(kA, 0);
  predictor.Use(kB, 0, true);
  predictor.Use(kA, 0);
  predictor.Free(kB, 0);
  predictor.EndIteration(0);
  EXPECT_FALSE(predictor.repeats());
}

TEST(AccessPredictorTest, ARepeatedIterationIsKnownUseByUse) {
  AccessPredictor predictor;
  Iterate(&predictor, "abcba");
  EXPECT_TRUE(predictor.last_iteration().misprediction) << "the first one";
  EXPECT_EQ(predictor.last_iteration().expected, 0u);
  for (int iteration = 0; iteration < 3; ++iteration) {
    EXPECT_EQ(Expected(predictor, 10), "abcbaabcba");
    EXPECT_EQ(Distance(predictor, 'c'), 2u);
    Use(&predictor, "ab");
    EXPECT_EQ(Expected(predictor, 5), "cbaab");
    EXPECT_EQ(Distance(predictor, 'b'), 1u);
    EXPECT_EQ(Distance(predictor, 'a'), 2u);
    Use(&predictor, "c");
    EXPECT_EQ(Distance(predictor, 'c'), 4u) << "in the next iteration";
    Iterate(&predictor, "ba");
    EXPECT_FALSE(predictor.last_iteration().misprediction);
  }
}

// An upper-case letter is a use by a part of a step.
void UseBoth(AccessPredictor* predictor, const std::string& uses) {
  for (const char use : uses) {
    if (use >= 'a') {
      predictor->Use(Named(use), 0);
    } else {
      predictor->UseByPart(Named(static_cast<char>(use - 'A' + 'a')), 0);
    }
  }
}

TEST(AccessPredictorTest, UsesByPartsComeInAnyOrderAmongTheScripts) {
  AccessPredictor predictor;
  UseBoth(&predictor, "abcCdDeE");
  predictor.EndIteration(0);
  for (const char* uses : {"abcdeCDE", "abcdDeEC", "abcCdDeE", "abcdeEDC"}) {
    UseBoth(&predictor, uses);
    predictor.EndIteration(0);
    EXPECT_FALSE(predictor.last_iteration().misprediction) << uses;
    EXPECT_EQ(predictor.last_iteration().as_expected, 8u) << uses;
  }
  EXPECT_TRUE(predictor.repeats());
  // The script's order counts, and so does each of the parts' uses.
  for (const char* uses : {"abdcCDeE", "abcCdDeD", "abcCdDe"}) {
    UseBoth(&predictor, uses);
    predictor.EndIteration(0);
    EXPECT_TRUE(predictor.last_iteration().misprediction) << uses;
    UseBoth(&predictor, "abcCdDeE");
    predictor.EndIteration(0);
  }
}

TEST(AccessPredictorTest, AUseByAPartIsDueUntilItComes) {
  AccessPredictor predictor;
  for (int iteration = 0; iteration < 2; ++iteration) {
    UseBoth(&predictor, "abcCdeba");
    predictor.EndIteration(0);
  }
  UseBoth(&predictor, "abcd");
  EXPECT_EQ(Distance(predictor, 'c'), 0u) << "the script is beyond its place";
  EXPECT_EQ(Distance(predictor, 'b'), 1u);
  UseBoth(&predictor, "C");
  EXPECT_EQ(Distance(predictor, 'c'), 5u) << "in the next iteration";
  EXPECT_EQ(Distance(predictor, 'e'), 0u) << "the script's place has not moved";
}

TEST(AccessPredictorTest, OnlyWhatWasUsedChangesWhileTheOrderHolds) {
  AccessPredictor predictor;
  Iterate(&predictor, "abcdabcd");
  predictor.TakeChanges();
  Use(&predictor, "a");
  const AccessPredictor::Changes changes = predictor.TakeChanges();
  EXPECT_FALSE(changes.all);
  EXPECT_EQ(changes.members, std::vector<Member>({kA}));
  EXPECT_TRUE(predictor.TakeChanges().members.empty());
}

TEST(AccessPredictorTest, ASkippedUseIsExpectedAtItsNextPlace) {
  AccessPredictor predictor;
  Iterate(&predictor, "abcdefabcdef");
  Use(&predictor, "acd");
  EXPECT_EQ(Expected(predictor, 3), "efa");
  EXPECT_EQ(Distance(predictor, 'b'), 3u);
}

TEST(AccessPredictorTest, AnUnforeseenUseDoesNotLoseThePlace) {
  AccessPredictor predictor;
  Iterate(&predictor, "abcdefgh");
  Use(&predictor, "abzc");
  EXPECT_EQ(Expected(predictor, 3), "def");
}

TEST(AccessPredictorTest, AFarJumpIsFollowedWhenTwoUsesAgree) {
  AccessPredictor predictor;
  std::string all;
  for (char c = 'a'; c <= 'z'; ++c) all += c;
  Iterate(&predictor, all);
  Use(&predictor, "ab");
  Use(&predictor, "r");
  EXPECT_EQ(Expected(predictor, 2), "cd") << "one use may be anything";
  Use(&predictor, "s");
  EXPECT_EQ(Expected(predictor, 2), "tu");
}

TEST(AccessPredictorTest, AnIterationThatBeginsAnewWithoutAnEndIsFollowed) {
  AccessPredictor predictor;
  Iterate(&predictor, "abcdefghijklmnop");
  Use(&predictor, "abcdefghijklm");
  Use(&predictor, "abc");
  EXPECT_EQ(Expected(predictor, 3), "def");
}

TEST(AccessPredictorTest, TwoShapesInTurnAreBothKnown) {
  AccessPredictor predictor;
  for (int i = 0; i < 3; ++i) {
    Iterate(&predictor, "abcdabcd");
    Iterate(&predictor, "wxyz");
  }
  EXPECT_EQ(Expected(predictor, 12), "abcdabcdwxyz");
  Iterate(&predictor, "abcdabcd");
  EXPECT_EQ(Expected(predictor, 6), "wxyzab");
  EXPECT_EQ(Distance(predictor, 'a'), 4u);
  for (const char* uses : {"wxyz", "abcdabcd"}) {
    Iterate(&predictor, uses);
    EXPECT_FALSE(predictor.last_iteration().misprediction) << uses;
  }
}

TEST(AccessPredictorTest, AnIterationCutShortIsNotLearnt) {
  AccessPredictor predictor;
  Iterate(&predictor, "abcdefgh");
  Iterate(&predictor, "abc");
  EXPECT_EQ(Expected(predictor, 8), "abcdefgh");
  EXPECT_TRUE(predictor.last_iteration().misprediction);
  EXPECT_FALSE(predictor.last_iteration().remembered);
}

TEST(AccessPredictorTest, WhatIsGivenUpIsExpectedToBeGivenUpAgain) {
  AccessPredictor predictor;
  const auto iterate = [&predictor] {
    for (const Member member : {kA, kB, kC}) predictor.Use(member, 0);
    predictor.Free(kB, 0);
    for (const Member member : {kD, kE}) predictor.Use(member, 0);
    predictor.EndIteration(0);
  };
  iterate();
  iterate();
  EXPECT_FALSE(predictor.IsFreedNext(kB));
  Use(&predictor, "ab");
  EXPECT_TRUE(predictor.IsFreedNext(kB));
  EXPECT_EQ(Distance(predictor, 'b'), 1u);
  EXPECT_EQ(predictor.At(predictor.now() + 1), AccessPredictor::kNobody);
  EXPECT_EQ(predictor.At(predictor.now() + 2), kD);
  EXPECT_FALSE(predictor.last_iteration().misprediction);
}

TEST(AccessPredictorTest, TimesAreThoseOfTheIterationBefore) {
  AccessPredictor predictor;
  for (uint64_t start : {1000u, 5000u}) {
    for (uint32_t i = 0; i < 4; ++i) predictor.Use(Member(i), start + 10 * i * i);
    predictor.EndIteration(start + 100);
  }
  predictor.Use(kA, 9000);
  EXPECT_EQ(predictor.MicrosUntil(predictor.now()), 0u);
  EXPECT_EQ(predictor.MicrosUntil(predictor.now() + 2), 80u);
  EXPECT_EQ(predictor.MicrosUntil(predictor.now() + 3), 90u) << "the next iteration's first use";
  EXPECT_EQ(predictor.MicrosUntil(predictor.now() + 5), 130u);
}

TEST(AccessPredictorTest, ANearlyRepeatedIterationReplacesItsShape) {
  AccessPredictor predictor;
  Iterate(&predictor, "abcdefgh");
  Iterate(&predictor, "abxdefgh");
  EXPECT_EQ(Expected(predictor, 8), "abxdefgh");
  EXPECT_LT(predictor.NextUse(kC), AccessPredictor::kUnknown) << "it may come back";
  const AccessPredictor::Iteration& last = predictor.last_iteration();
  EXPECT_TRUE(last.misprediction && last.remembered);
  EXPECT_EQ(last.uses, 8u);
  EXPECT_EQ(last.as_expected, 7u);
}

TEST(AccessPredictorTest, AnEmptyIterationIsNone) {
  AccessPredictor predictor;
  predictor.EndIteration(0);
  Iterate(&predictor, "ab");
  predictor.EndIteration(0);
  EXPECT_EQ(predictor.last_iteration().number, 1u);
  EXPECT_EQ(Expected(predictor, 4), "abab");
}

TEST(AccessPredictorTest, WhoIsNeverUsedAgainMovesAway) {
  AccessPredictor predictor;
  Iterate(&predictor, "zabcd");
  for (int i = 0; i < 20; ++i) Iterate(&predictor, "abcd");
  EXPECT_GT(Distance(predictor, 'z'), 8u);
}

// Against the uses themselves, over iterations that change at random.
TEST(AccessPredictorTest, TimesNeverRunBackAndNextUsesAreNeverPast) {
  std::mt19937 random(20261121);
  AccessPredictor predictor;
  std::string shape = "abcdefghijklmnopponmlkjihgfedcbaABCDEFGH";
  VirtualTime before;
  uint64_t clock = 0;
  for (int iteration = 0; iteration < 300; ++iteration) {
    std::string uses = shape;
    if (random() % 3 == 0) uses.erase(random() % uses.size(), random() % 9);
    if (random() % 3 == 0) uses.insert(random() % uses.size(), 1, 'q');
    if (random() % 11 == 0) std::shuffle(shape.begin(), shape.end(), random);
    if (random() % 7 == 0) uses += uses;
    for (const char use : uses) {
      predictor.Use(Member(static_cast<uint32_t>(use - 'A')), clock += 5);
      ASSERT_GE(predictor.now(), before);
      before = predictor.now();
      ASSERT_GE(predictor.NextUse(Member(random() % 60)), before);
    }
    if (random() % 13 != 0) predictor.EndIteration(clock);
    ASSERT_GE(predictor.now(), before);
  }
}

}  // namespace
}  // namespace memtide
