#include "base/cuda/fake/card.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace memtide::fake_cuda {
namespace {

using std::chrono::microseconds;

class CardTest : public testing::Test {
 protected:
  CardTest() { EXPECT_NE(mkdtemp(&directory_[0]), nullptr); }
  ~CardTest() override { std::filesystem::remove_all(directory_); }

  // Writes a card with these lines at its end.
  std::string Write(const std::string& last = "both_gb_s 60 # together\n") {
    std::ofstream(directory_ + "/card")
        << "# In microseconds.\nmap 20\nmap_beside_copies 200\nunmap 10\nunmap_beside_copies 11\n"
           "call 100\ngradient 200\ndispatch 10\nmoment 300\nlaunch 5\nproduct_tflop_s 500\n"
           "memory_gb_s 2000\nin_gb_s 50\nout_gb_s 40\n\n"
        << last;
    return directory_ + "/card";
  }

  std::string directory_ = "/dev/shm/card_test.XXXXXX";
};

TEST_F(CardTest, AKernelTakesTheLongerOfItsArithmeticAndItsBytes) {
  const Card card(Write(), 3, directory_);
  EXPECT_EQ(card.Kernel({500e6, 1}), microseconds(3));
  EXPECT_EQ(card.Kernel({500e6, 4e6}), microseconds(6));
}

TEST_F(CardTest, CopiesOfOneWayFollowEachOtherInAllProcesses) {
  const Instant now = Now();
  Card card(Write(), 2, directory_), other(Write(), 2, directory_);
  EXPECT_EQ(card.Copy(Way::kIn, Bytes(500'000), now), now + microseconds(20));
  EXPECT_EQ(other.Copy(Way::kIn, Bytes(500'000), now), now + microseconds(40));
  EXPECT_EQ(other.Copy(Way::kIn, Bytes(500'000), now + microseconds(90)), now + microseconds(110));
}

TEST_F(CardTest, ACopyHasHalfOfBothWaysRateWhileTheOtherWayIsBusy) {
  const Instant now = Now();
  Card card(Write(), 1, directory_);
  EXPECT_EQ(card.Copy(Way::kOut, Bytes(400'000), now), now + microseconds(10));
  EXPECT_EQ(card.Copy(Way::kIn, Bytes(300'000), now), now + microseconds(10));
  EXPECT_EQ(card.Copy(Way::kOut, Bytes(400'000), now), now + microseconds(20));
}

TEST_F(CardTest, AFileThatIsNoCardEndsTheProcess) {
  EXPECT_DEATH(Card(directory_ + "/none", 1, directory_), "none");
  EXPECT_DEATH(Card(Write(""), 1, directory_), "both_gb_s");
  EXPECT_DEATH(Card(Write("both_gb_s 60\nhalf 1\n"), 1, directory_), "not known");
  EXPECT_DEATH(Card(Write("both_gb_s fast\n"), 1, directory_), "fast");
}

}  // namespace
}  // namespace memtide::fake_cuda
