#include "daemon/pool/slot_pool.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

TEST(SlotPoolTest, HandsOutEverySlotOnceAndThenNone) {
  SlotPool pool(5);
  pool.Back(5);
  std::vector<Slot> slots;
  std::set<SlotNumber> numbers;
  for (int i = 0; i < 5; ++i) {
    slots.push_back(pool.Take());
    ASSERT_TRUE(slots.back());
    numbers.insert(slots.back().number());
  }
  EXPECT_EQ(numbers, (std::set<SlotNumber>{SlotNumber(0), SlotNumber(1), SlotNumber(2),
                                           SlotNumber(3), SlotNumber(4)}));
  EXPECT_FALSE(pool.Take());
  EXPECT_EQ(pool.used_slots(), 5u);
}

TEST(SlotPoolTest, APlannedSlotIsTakenAndElseTheLeastWantedOne) {
  SlotPool pool(4);
  pool.Back(4);
  const auto wanted_late = [](SlotNumber number) { return number == SlotNumber(1) ? 9 : 1; };
  const Slot own = pool.TakePlanned(SlotNumber(2), wanted_late);
  EXPECT_EQ(own.number(), SlotNumber(2));
  const Slot other = pool.TakePlanned(SlotNumber(2), wanted_late);
  EXPECT_EQ(other.number(), SlotNumber(1));
  const Slot third = pool.Take(), last = pool.TakePlanned(SlotNumber(0), wanted_late);
  EXPECT_FALSE(pool.TakePlanned(SlotNumber(0), wanted_late));
}

TEST(SlotPoolTest, OnlyBackedSlotsAreHandedOut) {
  SlotPool pool(3);
  EXPECT_FALSE(pool.Take());
  pool.Back(2);
  Slot a = pool.Take();
  Slot b = pool.Take();
  EXPECT_FALSE(pool.Take());
  pool.Cap();
  EXPECT_EQ(pool.size(), 2u);
  a.Free();
  EXPECT_EQ(pool.Take().number(), SlotNumber(0)) << "a used number is taken again before a new one";
}

TEST(SlotPoolTest, ASlotThatIsFreedLastIsHandedOutAfterAllOthers) {
  SlotPool pool(4);
  pool.Back(3);
  Slot used = pool.Take();
  Slot failed = pool.Take();
  pool.FreeLast(std::move(failed));
  used.Free();
  for (const uint32_t number : {0, 2, 1}) {
    Slot slot = pool.Take();
    EXPECT_EQ(slot.number(), SlotNumber(number));
    pool.Unback(std::move(slot));
  }
}

TEST(SlotPoolTest, ASlotThatIsFreedLastWaitsForItsQuarantine) {
  SlotPool pool(2);
  pool.Back(2);
  Slot failed = pool.Take();
  pool.Quarantine(failed.number());
  pool.FreeLast(std::move(failed));
  EXPECT_EQ(pool.Take().number(), SlotNumber(1));
  EXPECT_EQ(pool.quarantined_slots(), 1u);
}

TEST(SlotPoolTest, ASlotReturnsWhenItsOwnerEndsOrIsOverwritten) {
  SlotPool pool(2);
  pool.Back(2);
  {
    Slot a = pool.Take();
    Slot b = pool.Take();
    b = std::move(a);
    EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): a moved-from slot owns nothing.
    EXPECT_EQ(pool.free_slots(), 1u);
  }
  EXPECT_EQ(pool.free_slots(), 2u);
}

TEST(SlotPoolTest, ASlotThatIsGivenUpIsNotHandedOutUntilItIsBackedAgain) {
  SlotPool pool(3);
  EXPECT_EQ(pool.BackOne(), SlotNumber(0));
  EXPECT_EQ(pool.BackOne(), SlotNumber(1));
  Slot slot = pool.Take();
  EXPECT_EQ(pool.Unback(pool.Take()), SlotNumber(1));
  pool.Gone(SlotNumber(1));
  EXPECT_EQ(pool.backed_slots(), 1u);
  EXPECT_EQ(pool.used_slots(), 1u);
  EXPECT_FALSE(pool.Take());
  EXPECT_EQ(pool.missing_slots(), 2u);
  EXPECT_EQ(pool.BackOne(), SlotNumber(1)) << "a number that is gone comes before a new one";
  EXPECT_EQ(pool.BackOne(), SlotNumber(2));
  const Slot second = pool.Take();
  const Slot third = pool.Take();
  EXPECT_EQ(second.number().value() + third.number().value(), 3u);
  EXPECT_FALSE(pool.Take());
}

TEST(SlotPoolTest, ASlotWhoseMemoryIsOnItsWayIsNotBacked) {
  SlotPool pool(2);
  pool.Back(2);
  const SlotNumber number = pool.Unback(pool.Take());
  EXPECT_EQ(pool.unbacked_slots(), 1u);
  EXPECT_EQ(pool.gone_slots(), 0u) << "it goes still";
  pool.Gone(number);
  EXPECT_EQ(pool.gone_slots(), 1u);
  EXPECT_EQ(pool.missing_slots(), 1u);
  EXPECT_EQ(pool.TakeGone(), number);
  EXPECT_EQ(pool.backed_slots(), 1u);
  pool.Gone(number);  // It could not come.
  EXPECT_EQ(pool.TakeGone(), number);
  pool.Returned(number);
  EXPECT_EQ(pool.unbacked_slots(), 0u);
  EXPECT_EQ(pool.Take().number(), number);
  pool.Back(1);
  EXPECT_EQ(pool.numbers(), 3u);
  EXPECT_EQ(pool.surplus_slots(), 1u) << "a part has come whole";
}

TEST(SlotPoolTest, ItsNumbersAreThoseWithMemoryAndThenThoseThatGetSomeNext) {
  const auto numbers = [](const SlotPool& pool) {
    std::string text;
    for (const SlotNumber number : pool.Numbers()) absl::StrAppend(&text, number.value(), " ");
    return text;
  };
  SlotPool pool(4);
  pool.Back(3);
  EXPECT_EQ(numbers(pool), "0 1 2 3 ");
  const SlotNumber first = pool.Unback(pool.Take());
  pool.Gone(first);
  EXPECT_EQ(numbers(pool), "1 2 0 3 ");
  pool.Resize(2);
  EXPECT_EQ(numbers(pool), "1 2 ");
}

TEST(SlotPoolTest, AfterAResizeWhatIsTooManyIsFreeButNotToSpare) {
  SlotPool pool(4);
  pool.Back(4);
  Slot used = pool.Take();
  pool.Resize(2);
  EXPECT_EQ(pool.surplus_slots(), 2u);
  EXPECT_EQ(pool.missing_slots(), 0u);
  EXPECT_EQ(pool.free_slots(), 3u);
  EXPECT_EQ(pool.spare_slots(), 1u);
  pool.Cap();
  EXPECT_EQ(pool.size(), 2u) << "no memory that was not asked for stays";
  pool.Unback(pool.Take());
  pool.Unback(pool.Take());
  EXPECT_EQ(pool.surplus_slots(), 0u);
  EXPECT_EQ(pool.spare_slots(), 1u);
  pool.Resize(3);
  EXPECT_EQ(pool.missing_slots(), 1u);
  pool.Cap();
  EXPECT_EQ(pool.size(), 2u);
}

TEST(SlotPoolTest, AFreeSlotInQuarantineIsNotLentBeforeItsEnd) {
  SlotPool pool(5);
  pool.Back(5);
  std::vector<Slot> restored = *pool.TakeNumbers({SlotNumber(2)});
  // In use, free again, and never taken.
  pool.QuarantineAll({SlotNumber(2), SlotNumber(0), SlotNumber(4)});
  EXPECT_EQ(pool.used_slots(), 1u);
  EXPECT_EQ(pool.quarantined_slots(), 2u);
  std::set<SlotNumber> lent;
  for (Slot slot = pool.Take(); slot; slot = pool.Take()) {
    lent.insert(slot.number());
    restored.push_back(std::move(slot));
  }
  EXPECT_EQ(lent, (std::set<SlotNumber>{SlotNumber(1), SlotNumber(3)}));
  restored.clear();
  EXPECT_EQ(pool.quarantined_slots(), 3u);
  for (const uint32_t number : {0u, 2u, 4u}) pool.EndQuarantine(SlotNumber(number));
  EXPECT_EQ(pool.free_slots(), 5u);
}

TEST(SlotPoolTest, ASlotThatOutlivesItsPoolIsABrokenInvariant) {
  EXPECT_DEATH(
      {
        Slot slot;
        SlotPool pool(1);
        pool.Back(1);
        slot = pool.Take();
      },
      "outlives");
}

}  // namespace
}  // namespace memtide
