// Stepping: runs a training process (stepper.cc), kills it anywhere in a step, and checks that the
// next process finds a whole step.
#ifndef MEMTIDE_TESTS_INTEGRATION_STEPPING_H_
#define MEMTIDE_TESTS_INTEGRATION_STEPPING_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/integration/child_process.h"

namespace memtide {

// The options of a run of kills. The environment's MEMTIDE_KILL_SEED makes them random
// (tools/soak).
struct KillOptions {
  KillOptions() {
    const char* const text = std::getenv("MEMTIDE_KILL_SEED");
    if (text == nullptr) return;
    random.seed(std::strtoul(text, nullptr, 10));
    const auto between = [this](uint32_t least, uint32_t most) {
      return least + static_cast<uint32_t>(random() % (most - least + 1));
    };
    sets = between(1, 5);
    host_pool = std::to_string(between(10, 32) * 2) + "MiB";
    ssd_directories = between(1, 3);
    percent_of_kills = between(20, 150);
  }

  std::vector<std::string> Flags(const std::string& sockets, const std::string& directory) const {
    std::vector<std::string> flags = {"--socket-dir=" + sockets, "--device=none",
                                      "--host-pool=" + host_pool, "--ssd-pool=512MiB",
                                      "--metrics-address=off"};
    for (uint32_t i = 0; i < ssd_directories; ++i) {
      flags.push_back("--ssd-dir=" + directory + "/d" + std::to_string(i));
    }
    return flags;
  }

  std::mt19937 random{20261121};
  uint32_t sets = 3;  // 10 MiB each.
  // Too small for the chunks of two steps, so that chunks are evicted to SSD.
  std::string host_pool = "20MiB";
  uint32_t ssd_directories = 1;
  int percent_of_kills = 100;
};

class Stepping {
 public:
  // Processes connect to the daemon at `sockets`. The job has `sets` sets of chunks, 10 MiB each.
  explicit Stepping(const std::string& sockets, uint32_t sets = 3)
      : arguments_{sockets, std::to_string(sets)} {}
  Stepping(const std::string& sockets, const KillOptions& options)
      : arguments_{sockets, std::to_string(options.sets)}, random_(options.random) {}

  // The last step that a process reported.
  uint64_t said() const { return said_; }

  // Starts a process, which must find the last reported step or the one after it, lets it train,
  // and kills it anywhere in a step, just after calling `before`.
  void TrainAndDie(const std::function<void()>& before) {
    ChildProcess process("STEPPER", arguments_);
    Find(&process);
    for (uint32_t more = random_() % 3; more > 0; --more) {
      const Clock::time_point began = Clock::now();
      said_ = StepOf(process.ReadLine());
      step_ = (step_ + (Clock::now() - began)) / 2;
    }
    // The kill comes anywhere in the next step, or a little after it.
    const auto until = Clock::now() + step_ * (random_() % 120) / 100;
    while (Clock::now() < until) {
    }
    before();
    process.Kill();
    // On a busy machine the process may have reported more steps. The last line may be an error.
    for (std::string line = process.ReadLine(); line.rfind("at ", 0) == 0;
         line = process.ReadLine()) {
      said_ = StepOf(line);
    }
  }
  // Lets a process make `steps` steps, kills it, and returns the step that it found.
  uint64_t Train(uint64_t steps) {
    ChildProcess process("STEPPER", arguments_);
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
  // Forgets the last step: the next process must find step 0 or 1.
  void BeginAnew() { said_ = 0; }

 private:
  using Clock = std::chrono::steady_clock;

  uint64_t Find(ChildProcess* process) {
    const uint64_t found = StepOf(process->ReadLine());
    EXPECT_TRUE(found == said_ || found == said_ + 1)
        << found << ", but the last report was " << said_;
    said_ = found;
    return found;
  }
  // Parses the number of "at 7"; the test fails if it is another line.
  static uint64_t StepOf(const std::string& line) {
    EXPECT_EQ(line.rfind("at ", 0), 0u) << line;
    return line.rfind("at ", 0) == 0 ? std::stoull(line.substr(3)) : 0;
  }

  const std::vector<std::string> arguments_;
  std::mt19937 random_ = KillOptions().random;
  uint64_t said_ = 0;
  Clock::duration step_ = std::chrono::milliseconds(10);
};

}  // namespace memtide

#endif  // MEMTIDE_TESTS_INTEGRATION_STEPPING_H_
