// Stepping: a process that trains (stepper.cc) until it is killed at any moment of a step, and what
// the next one must find then.
#ifndef MEMTIDE_TESTS_INTEGRATION_STEPPING_H_
#define MEMTIDE_TESTS_INTEGRATION_STEPPING_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "tests/integration/child_process.h"

namespace memtide {

class Stepping {
 public:
  // Of the daemon whose sockets are there.
  explicit Stepping(const std::string& sockets) : sockets_(sockets) {}

  // The last step that a process said, or that was found.
  uint64_t said() const { return said_; }

  // A process finds what was said, or the step after it; trains a little; and is killed, after
  // `before` has been called, at any moment.
  void TrainAndDie(const std::function<void()>& before) {
    ChildProcess process("STEPPER", {sockets_});
    Find(&process);
    for (uint32_t more = random_() % 3; more > 0; --more) {
      const Clock::time_point began = Clock::now();
      said_ = StepOf(process.ReadLine());
      step_ = (step_ + (Clock::now() - began)) / 2;
    }
    // Anywhere in the next step, and a little behind it.
    const auto until = Clock::now() + step_ * (random_() % 120) / 100;
    while (Clock::now() < until) {
    }
    before();
    process.Kill();
    // What it said meanwhile, on a busy machine. The last line may be an error.
    for (std::string line = process.ReadLine(); line.rfind("at ", 0) == 0;
         line = process.ReadLine()) {
      said_ = StepOf(line);
    }
  }
  // So many steps from what is found on. Returns that.
  uint64_t Train(uint64_t steps) {
    ChildProcess process("STEPPER", {sockets_});
    const uint64_t found = Find(&process);
    while (said_ < found + steps && !testing::Test::HasFailure()) {
      said_ = StepOf(process.ReadLine());
    }
    process.Kill();
    for (std::string line = process.ReadLine(); !line.empty(); line = process.ReadLine()) {
      said_ = StepOf(line);
    }
    return found;
  }
  // What was said is gone.
  void BeginAnew() { said_ = 0; }

 private:
  using Clock = std::chrono::steady_clock;

  uint64_t Find(ChildProcess* process) {
    const uint64_t found = StepOf(process->ReadLine());
    EXPECT_TRUE(found == said_ || found == said_ + 1) << found << ", and " << said_ << " was said";
    said_ = found;
    return found;
  }
  // The number of "at 7"; the test fails where it is another line.
  static uint64_t StepOf(const std::string& line) {
    EXPECT_EQ(line.rfind("at ", 0), 0u) << line;
    return line.rfind("at ", 0) == 0 ? std::stoull(line.substr(3)) : 0;
  }

  const std::string sockets_;
  std::mt19937 random_{20261121};
  uint64_t said_ = 0;
  Clock::duration step_ = std::chrono::milliseconds(10);
};

}  // namespace memtide

#endif  // MEMTIDE_TESTS_INTEGRATION_STEPPING_H_
