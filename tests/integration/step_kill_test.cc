// Kills training processes 200 times, anywhere in a step. Each next process must find the job at a
// whole step, the last one that was reported or the one after it, and continue from there.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/integration/daemon_process.h"
#include "tests/integration/stepping.h"

namespace memtide {
namespace {

constexpr int kStepKills = 200;

TEST(StepKillTest, TwoHundredDeathsLeaveWholeSteps) {
  ScratchDirectory directory;
  const std::string sockets = directory.path() + "/s";
  const KillOptions options;
  DaemonProcess daemon(options.Flags(sockets, directory.path()));
  ASSERT_TRUE(daemon.WaitUntilReady()) << daemon.log();
  Stepping stepping(sockets, options);
  const int kills = kStepKills * options.percent_of_kills / 100;
  for (int kill = 0; kill < kills && !HasFailure(); ++kill) {
    SCOPED_TRACE(kill);
    stepping.TrainAndDie([] {});
  }
  EXPECT_GT(stepping.said(), kills / 4u) << "steps were made";
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0) << daemon.log();
}

}  // namespace
}  // namespace memtide
