#include "tests/load/session_report.h"

#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <thread>

namespace memtide {
namespace {

constexpr std::chrono::seconds kPeriod{1};

volatile sig_atomic_t must_end = 0;

}  // namespace

void SessionReport::Say(const std::string& line) {
  std::string whole = line;
  // A message of several lines stays one line of the report.
  std::replace(whole.begin(), whole.end(), '\n', ' ');
  puts(whole.c_str());
  fflush(stdout);
}

void SessionReport::Count(const char* name, Clock::duration took) {
  ++calls_;
  if (took > slowest_) {
    slowest_ = took;
    slowest_call_ = name;
  }
  const auto now = Clock::now();
  if (now - last_said_ < kPeriod) return;
  const auto slowest = std::chrono::duration_cast<std::chrono::milliseconds>(slowest_).count();
  Say("calls " + std::to_string(calls_) + " " + std::to_string(slowest) + " " + slowest_call_);
  calls_ = 0;
  slowest_ = Clock::duration(0);
  last_said_ = now;
}

bool BecomeUser(uint32_t uid, uint32_t gid) {
  if (setgroups(0, nullptr) != 0 || setgid(gid) != 0 || setuid(uid) != 0) return false;
  // A change of the user takes the permission to open files of /proc/self away, which the client
  // library does.
  return prctl(PR_SET_DUMPABLE, 1) == 0;
}

void HandleTermination() {
  struct sigaction action = {};
  action.sa_handler = [](int) { must_end = 1; };
  sigaction(SIGTERM, &action, nullptr);
}

void Pause(std::chrono::milliseconds time) {
  // tidy(sleep): the session waits for nothing.
  std::this_thread::sleep_for(time);
}

bool MustEnd() { return must_end != 0; }

}  // namespace memtide
