#include "base/fair_queue.h"

#include <string>

#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr JobId kFirst{1}, kSecond{2}, kThird{3};

// Serves whole items, of the cost that `cost` says, until none is left.
template <typename Queue, typename Cost>
std::string ServeAll(Queue* queue, Cost cost) {
  std::string served;
  while (!queue->empty()) {
    queue->First();
    queue->Charge(cost);
    served += queue->Pop();
  }
  return served;
}

TEST(FairQueueTest, AnItemWaitsForOneOfEachOtherJobHoweverManyTheseHave) {
  FairQueue<char> queue;
  for (int i = 0; i < 3; ++i) queue.Push(kFirst, 'a');
  for (int i = 0; i < 3; ++i) queue.Push(kSecond, 'b');
  queue.Push(kThird, 'c');
  EXPECT_EQ(queue.size(), 7u);
  EXPECT_EQ(queue.size(kFirst), 3u);
  EXPECT_EQ(queue.size(JobId(4)), 0u);
  EXPECT_EQ(ServeAll(&queue, MiB(1)), "abcabab");
}

TEST(FairQueueTest, TheRestOfAnItemIsTheNextOfItsJobAndComesAfterThoseOfOthers) {
  FairQueue<char> queue;
  for (const char item : {'a', 'A'}) queue.Push(kFirst, item);
  queue.Push(kSecond, 'b');
  EXPECT_EQ(queue.FirstJob(), kFirst);
  queue.Charge(MiB(1));
  queue.PushRest(kFirst, queue.Pop());
  EXPECT_EQ(ServeAll(&queue, MiB(1)), "baA");
}

TEST(FairQueueTest, WhatCostsMoreComesLessOften) {
  FairQueue<char, std::string, uint64_t> queue;
  for (int i = 0; i < 3; ++i) queue.Push("dear", 'd');
  for (int i = 0; i < 6; ++i) queue.Push("cheap", 'c');
  std::string served;
  while (!queue.empty()) {
    queue.First();
    queue.Charge(queue.FirstJob() == "dear" ? 2 : 1);
    served += queue.Pop();
  }
  EXPECT_EQ(served, "cdccdccdc");
}

TEST(FairQueueTest, AJobThatReturnsIsServedNextButNotForWhatItMissed) {
  FairQueue<char> queue;
  queue.Push(kSecond, 'b');
  for (int i = 0; i < 6; ++i) queue.Push(kFirst, 'a');
  std::string served;
  for (int i = 0; i < 5; ++i) {
    queue.First();
    queue.Charge(MiB(1));
    served += queue.Pop();
  }
  EXPECT_EQ(served, "abaaa");
  for (int i = 0; i < 3; ++i) queue.Push(kSecond, 'b');
  EXPECT_EQ(ServeAll(&queue, MiB(1)), "babab") << "and not bbbaa";
}

}  // namespace
}  // namespace memtide
