// Runs many seeds of scripts with common contents. MEMTIDE_SIM_SEEDS and MEMTIDE_SIM_FIRST: as in
// sim_test; with MEMTIDE_SIM_ECHO the trace is printed.
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "tests/sim/common/common_simulation.h"

namespace memtide::sim {
namespace {

constexpr uint64_t kDefaultSeeds = 2000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The engine's own checks end the process.
char g_seed[64];
void OnAbort(int) {
  const ssize_t written = write(STDERR_FILENO, g_seed, std::strlen(g_seed));
  _exit(written > 0 ? 134 : 135);
}

TEST(CommonSimulationTest, EachScriptSeesWhatItWouldSeeAlone) {
  std::signal(SIGABRT, OnAbort);
  const uint64_t first = FromEnvironment("MEMTIDE_SIM_FIRST", 1);
  const uint64_t seeds = FromEnvironment("MEMTIDE_SIM_SEEDS", kDefaultSeeds);
  std::ostream* const echo = std::getenv("MEMTIDE_SIM_ECHO") == nullptr ? nullptr : &std::cout;
  std::array<uint64_t, kCommonProbes> hits{};
  uint64_t events = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    std::snprintf(g_seed, sizeof(g_seed), "seed %llu of common contents\n",
                  static_cast<unsigned long long>(seed));
    const CommonConfig config = WithCommonContents(seed);
    const CommonOutcome outcome = CommonSimulation::Run(config, echo);
    ASSERT_EQ(outcome.broken, "") << outcome.last << g_seed;
    if (seed % 16 == 0) {
      ASSERT_EQ(outcome.trace_hash, CommonSimulation::Run(config).trace_hash)
          << "not deterministic: " << g_seed;
    }
    events += outcome.events;
    for (int i = 0; i < kCommonProbes; ++i) hits[i] += outcome.hits[i];
  }
  std::cout << seeds << " seeds, " << events << " events\n";
  for (int i = 0; i < kCommonProbes; ++i) {
    std::cout << "probe " << i << ": " << hits[i] << "\n";
    if (first != 1 || seeds < kDefaultSeeds) continue;
    EXPECT_GT(hits[i], 0u) << "no seed reaches it";
  }
}

}  // namespace
}  // namespace memtide::sim
