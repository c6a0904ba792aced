// Processes are killed at any moment of a step, 200 times; each finds the job at a whole step, the
// last that was said or the one after it, and goes on from there.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <string>

#include "tests/integration/child_process.h"
#include "tests/integration/daemon_process.h"

namespace memtide {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kKills = 200;

// The number of "at 7"; the test fails where it is another line.
uint64_t StepOf(const std::string& line) {
  EXPECT_EQ(line.rfind("at ", 0), 0u) << line;
  return line.rfind("at ", 0) == 0 ? std::stoull(line.substr(3)) : 0;
}

TEST(StepKillTest, TwoHundredDeathsLeaveWholeSteps) {
  ScratchDirectory directory;
  const std::string sockets = directory.path() + "/s";
  // Too little host memory for two steps' chunks: they go to SSD and come back.
  DaemonProcess daemon({"--socket-dir=" + sockets, "--ssd-dir=" + directory.path() + "/d",
                        "--device=none", "--host-pool=20MiB", "--ssd-pool=512MiB",
                        "--metrics-address=off"});
  ASSERT_TRUE(daemon.WaitUntilReady()) << daemon.log();
  std::mt19937 random(20261121);
  uint64_t said = 0;
  Clock::duration step = std::chrono::milliseconds(10);
  for (int kill = 0; kill < kKills && !HasFailure(); ++kill) {
    SCOPED_TRACE(kill);
    ChildProcess process("STEPPER", {sockets});
    const uint64_t found = StepOf(process.ReadLine());
    ASSERT_TRUE(found == said || found == said + 1) << found << ", and " << said << " was said";
    said = found;
    for (uint32_t more = random() % 3; more > 0; --more) {
      const Clock::time_point began = Clock::now();
      said = StepOf(process.ReadLine());
      step = (step + (Clock::now() - began)) / 2;
    }
    // Anywhere in the next step, and a little behind it.
    const auto until = Clock::now() + step * (random() % 120) / 100;
    while (Clock::now() < until) {
    }
    process.Kill();
  }
  EXPECT_GT(said, 50u) << "steps were made";
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.log();
}

}  // namespace
}  // namespace memtide
