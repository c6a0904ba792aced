// Processes are killed at any moment of a step, 200 times; each finds the job at a whole step, the
// last that was said or the one after it, and goes on from there.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/integration/daemon_process.h"
#include "tests/integration/stepping.h"

namespace memtide {
namespace {

constexpr int kKills = 200;

TEST(StepKillTest, TwoHundredDeathsLeaveWholeSteps) {
  ScratchDirectory directory;
  const std::string sockets = directory.path() + "/s";
  // Too little host memory for two steps' chunks: they go to SSD and come back.
  DaemonProcess daemon({"--socket-dir=" + sockets, "--ssd-dir=" + directory.path() + "/d",
                        "--device=none", "--host-pool=20MiB", "--ssd-pool=512MiB",
                        "--metrics-address=off"});
  ASSERT_TRUE(daemon.WaitUntilReady()) << daemon.log();
  Stepping stepping(sockets);
  for (int kill = 0; kill < kKills && !HasFailure(); ++kill) {
    SCOPED_TRACE(kill);
    stepping.TrainAndDie([] {});
  }
  EXPECT_GT(stepping.said(), 50u) << "steps were made";
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.log();
}

}  // namespace
}  // namespace memtide
