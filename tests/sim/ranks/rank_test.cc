// Runs many seeds of ranks. MEMTIDE_SIM_SEEDS and MEMTIDE_SIM_FIRST: as in sim_test; with
// MEMTIDE_SIM_ECHO the trace is printed.
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "tests/sim/ranks/rank_simulation.h"

namespace memtide::sim {
namespace {

constexpr uint64_t kDefaultSeeds = 1000;

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

// `first_probe`, `end_probe`: the probes that the seeds must reach.
void RunSeeds(RankConfig (*config_of)(uint64_t), int first_probe, int end_probe) {
  std::signal(SIGABRT, OnAbort);
  const uint64_t first = FromEnvironment("MEMTIDE_SIM_FIRST", 1);
  const uint64_t seeds = FromEnvironment("MEMTIDE_SIM_SEEDS", kDefaultSeeds);
  std::ostream* const echo = std::getenv("MEMTIDE_SIM_ECHO") == nullptr ? nullptr : &std::cout;
  std::array<uint64_t, kRankProbes> hits{};
  uint64_t events = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    std::snprintf(g_seed, sizeof(g_seed), "seed %llu of ranks\n",
                  static_cast<unsigned long long>(seed));
    const RankConfig config = config_of(seed);
    const RankOutcome outcome = RankSimulation::Run(config, echo);
    ASSERT_EQ(outcome.broken, "") << outcome.last << g_seed;
    if (seed % 16 == 0) {
      ASSERT_EQ(outcome.trace_hash, RankSimulation::Run(config).trace_hash)
          << "not deterministic: " << g_seed;
    }
    events += outcome.events;
    for (int i = 0; i < kRankProbes; ++i) hits[i] += outcome.hits[i];
  }
  std::cout << seeds << " seeds, " << events << " events\n";
  for (int i = first_probe; i < end_probe; ++i) {
    std::cout << "probe " << i << ": " << hits[i] << "\n";
    if (first != 1 || seeds < kDefaultSeeds) continue;
    EXPECT_GT(hits[i], 0u) << "no seed reaches it";
  }
}

TEST(RankSimulationTest, EachRankSeesWhatItWouldSeeAlone) {
  RunSeeds(WithRanks, 0, kFirstKeptProbe);
}

TEST(RankSimulationTest, KeptRanksGoOnFromTheStepOfAll) {
  RunSeeds(WithKeptRanks, kFirstKeptProbe, kRankProbes);
}

}  // namespace
}  // namespace memtide::sim
