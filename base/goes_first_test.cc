#include "base/goes_first.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace memtide {
namespace {

int Policy() { return sched_getscheduler(0) & ~SCHED_RESET_ON_FORK; }

// Not even root may where its container took the capability.
bool MayGoFirst() {
  sched_param parameters = {};
  parameters.sched_priority = 1;
  if (sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &parameters) != 0) return false;
  parameters.sched_priority = 0;
  return sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &parameters) == 0;
}

// The status with which a process ends that runs `body`.
template <typename Body>
int InAProcess(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(GoesFirstTest, ItsThreadHasRealTimePriorityWhileItLives) {
  if (!MayGoFirst()) GTEST_SKIP() << "the process may not have real-time priority";
  {
    const GoesFirst first;
    EXPECT_EQ(Policy(), SCHED_RR);
  }
  EXPECT_EQ(Policy(), SCHED_OTHER);
}

TEST(GoesFirstTest, AThreadThatIsStartedMeanwhileHasOrdinaryPriority) {
  if (!MayGoFirst()) GTEST_SKIP() << "the process may not have real-time priority";
  const GoesFirst first;
  int policy = -1;
  std::thread([&policy] { policy = Policy(); }).join();
  EXPECT_EQ(policy, SCHED_OTHER);
}

TEST(GoesFirstTest, AUserWithTheLimitOfAUnitMayGoFirstAgainAndAgain) {
  constexpr int kMayNot = 2;
  const int status = InAProcess([] {
    const rlimit one = {1, 1};
    if (setrlimit(RLIMIT_RTPRIO, &one) != 0 || setuid(65534) != 0) return kMayNot;
    for (int i = 0; i < 2; ++i) {
      const GoesFirst first;
      if (Policy() != SCHED_RR) return 3;
    }
    return Policy() == SCHED_OTHER ? 0 : 4;
  });
  if (status == kMayNot) GTEST_SKIP() << "the process may not raise its limits";
  EXPECT_EQ(status, 0);
}

TEST(GoesFirstTest, WhereItIsForbiddenNothingChanges) {
  const int status = InAProcess([] {
    const rlimit none = {0, 0};
    if (setrlimit(RLIMIT_RTPRIO, &none) != 0) return 2;
    // Root of a user namespace has no such user, and no such right.
    (void)!setuid(65534);
    const GoesFirst first;
    return Policy() == SCHED_OTHER ? 0 : 3;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace memtide
