// Runs many seeds and compares their traces with golden_hashes.txt; those beyond the file run
// twice. MEMTIDE_SIM_SEEDS: how many (default below); MEMTIDE_SIM_FIRST: from which on.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/simulation.h"

namespace memtide::sim {
namespace {

constexpr uint64_t kDefaultSeeds = 2000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The engine's own checks end the process; this tells which seed it was.
char g_how_to_reproduce[1024];
void OnAbort(int) {
  const ssize_t written = write(STDERR_FILENO, g_how_to_reproduce, std::strlen(g_how_to_reproduce));
  _exit(written > 0 ? 134 : 135);
}

void AnnounceSeed(const Config& config) {
  std::strncpy(g_how_to_reproduce, (HowToReproduce(config) + "\n").c_str(),
               sizeof(g_how_to_reproduce) - 1);
}

std::map<uint64_t, uint64_t> ReadGoldenHashes() {
  std::ifstream file("tests/sim/golden_hashes.txt");
  std::map<uint64_t, uint64_t> hashes;
  uint64_t seed = 0;
  std::string hash;
  while (file >> seed >> hash) hashes[seed] = std::strtoull(hash.c_str(), nullptr, 16);
  return hashes;
}

constexpr int kFirstProbeOfParts = kProbes - kProbesOfParts;
constexpr int kFirstProbeOfActivations = kFirstProbeOfParts - kProbesOfActivations;

void ExpectAllReached(const Probes& probes, int first, int end) {
  for (int probe = first; probe < end; ++probe) {
    EXPECT_GT(probes.hits(static_cast<Probe>(probe)), 0u)
        << "no seed reaches: " << ProbeName(static_cast<Probe>(probe));
  }
}

TEST(SimulationTest, EverySeedKeepsEveryPromiseInTheSameWay) {
  const std::map<uint64_t, uint64_t> golden = ReadGoldenHashes();
  ASSERT_EQ(golden.size(), kDefaultSeeds);
  std::signal(SIGABRT, OnAbort);
  const uint64_t first = FromEnvironment("MEMTIDE_SIM_FIRST", 1);
  const uint64_t seeds = FromEnvironment("MEMTIDE_SIM_SEEDS", kDefaultSeeds);
  Probes probes;
  uint64_t events = 0, different = 0, first_different = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const Config config = MakeConfig(seed);
    AnnounceSeed(config);
    const std::vector<Op> ops = MakeOps(config);
    const Outcome outcome = Simulation::Run(config, ops);
    ASSERT_EQ(outcome.broken, "") << outcome.last << HowToReproduce(config);
    const auto expected = golden.find(seed);
    if (expected == golden.end()) {
      ASSERT_EQ(outcome.trace_hash, Simulation::Run(config, ops).trace_hash)
          << "not deterministic: " << HowToReproduce(config);
    } else if (outcome.trace_hash != expected->second && ++different == 1) {
      first_different = seed;
    }
    probes.Add(outcome.probes);
    events += outcome.events;
  }
  EXPECT_EQ(different, 0u)
      << "seeds behave otherwise than golden_hashes.txt says, the first is " << first_different
      << ". A commit that only moves or renames must not do that. One that means to change "
         "behaviour says so in its message and replaces the file:\n"
         "  bazel run -c opt //tests/sim:golden > tests/sim/golden_hashes.txt";
  std::cout << seeds << " seeds, " << events << " events\n" << probes.Report();
  // Fewer seeds than the default prove nothing about what they reach.
  if (first != 1 || seeds < kDefaultSeeds) return;
  ExpectAllReached(probes, 0, kFirstProbeOfActivations);
}

// The first seeds again, on a device that runs on with what killed clients left; every second one
// on several.
TEST(SimulationTest, KernelsOfKilledClientsHitNoChunkOfOthers) {
  constexpr uint64_t kSeeds = 1000;
  std::signal(SIGABRT, OnAbort);
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Config config = MakeConfig(seed);
    if (config.device_slots == 0) continue;
    config.quarantine = true;
    if (seed % 2 == 0) config = WithDevices(config);
    AnnounceSeed(config);
    const Outcome outcome = Simulation::Run(config, MakeOps(config));
    ASSERT_EQ(outcome.broken, "") << outcome.last << "with a quarantine, seed " << seed;
  }
}

// The first seeds again, with chunks that clients discard, some of which never reach SSD; every
// second one on several devices.
TEST(SimulationTest, ActivationsKeepEveryPromise) {
  constexpr uint64_t kFewSeeds = 1000;
  std::signal(SIGABRT, OnAbort);
  const uint64_t first = FromEnvironment("MEMTIDE_SIM_FIRST", 1);
  const uint64_t seeds = FromEnvironment("MEMTIDE_SIM_SEEDS", kFewSeeds);
  Probes probes;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const Config plain = MakeConfig(seed);
    const Config config = WithActivations(seed % 2 == 0 ? WithDevices(plain) : plain);
    AnnounceSeed(config);
    const Outcome outcome = Simulation::Run(config, MakeOps(config));
    ASSERT_EQ(outcome.broken, "") << outcome.last << HowToReproduce(config);
    probes.Add(outcome.probes);
  }
  if (first != 1 || seeds < kFewSeeds) return;
  ExpectAllReached(probes, kFirstProbeOfActivations, kFirstProbeOfParts);
}

// The first seeds again, with parts of steps that clients compute; every second one as above, too,
// and every third on several devices.
TEST(SimulationTest, PartsThatClientsComputeKeepEveryPromise) {
  constexpr uint64_t kFewSeeds = 1000;
  std::signal(SIGABRT, OnAbort);
  const uint64_t first = FromEnvironment("MEMTIDE_SIM_FIRST", 1);
  const uint64_t seeds = FromEnvironment("MEMTIDE_SIM_SEEDS", kFewSeeds);
  Probes probes;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const Config plain = seed % 3 == 0 ? WithDevices(MakeConfig(seed)) : MakeConfig(seed);
    const Config config = WithParts(seed % 2 == 0 ? WithActivations(plain) : plain);
    if (!config.parts) continue;
    AnnounceSeed(config);
    const Outcome outcome = Simulation::Run(config, MakeOps(config));
    ASSERT_EQ(outcome.broken, "") << outcome.last << HowToReproduce(config);
    probes.Add(outcome.probes);
  }
  std::cout << "with parts that clients compute\n" << probes.Report();
  if (first != 1 || seeds < kFewSeeds) return;
  ExpectAllReached(probes, kFirstProbeOfParts, kProbes);
}

// Seeds beyond the others in which the engine once broke a promise, by what it did.
constexpr uint64_t kBrokenOnce[] = {
    1000255,  // A lease budget of no chunks was sent.
    1000433,  // A restored job for which memory was short once had no device slot any more,
    1001645,  // and its fetches waited for one.
    1000505,  // A job that never opened was given up at the restart.
    1000680,  // Three chunks took turns in two slots, prefetched for times after a commit.
};

// The same, with activations.
constexpr uint64_t kBrokenOnceWithActivations[] = {
    1004031,  // An eviction waited for one chunk while a commit gave another one new content, which
              // the oracle took for what was to be evicted.
    1004699,  // A commit gave a chunk content whose shadow had been discarded before,
    1009097,  // or whose counterpart had been, and was asked for since,
    2007140,  // or had been asked for by a call that waited still.
    2008695,  // A commit gave a chunk that reads as anything the nothing of one that reads as
              // zeros.
    1009486,  // A session ended whose allocation waited, and those behind it waited on.
};

// The same, with activations and parts that clients compute. All were mistakes of the oracle.
constexpr uint64_t kBrokenOnceWithParts[] = {
    6275,    // A part that waited began after an eviction of its chunk was asked for, and ended
    19412,   // before it: the chunk had been used since, and was prefetched again.
    400779,  // The same, with a fetch.
    13631,   // A job that another session opened waited for memory that others cede.
    280196,  // A call that freed homes was answered after the allocations that it let go on.
    266314,  // Filling the slots of a large share, one after another, took longer than settling.
};

TEST(SimulationTest, SeedsThatBrokeAPromiseKeepIt) {
  std::signal(SIGABRT, OnAbort);
  std::vector<Config> configs;
  for (const uint64_t seed : kBrokenOnce) configs.push_back(MakeConfig(seed));
  for (const uint64_t seed : kBrokenOnceWithActivations) {
    configs.push_back(WithActivations(MakeConfig(seed)));
  }
  for (const uint64_t seed : kBrokenOnceWithParts) {
    configs.push_back(WithParts(WithActivations(MakeConfig(seed))));
  }
  for (const Config& config : configs) {
    AnnounceSeed(config);
    const Outcome outcome = Simulation::Run(config, MakeOps(config));
    EXPECT_EQ(outcome.broken, "") << outcome.last << HowToReproduce(config);
  }
}

}  // namespace
}  // namespace memtide::sim
