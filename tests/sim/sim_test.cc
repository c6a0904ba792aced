// Runs many seeds and compares their traces with golden_hashes.txt; those beyond the file run
// twice.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/run_seeds.h"
#include "tests/sim/simulation.h"

namespace memtide::sim {
namespace {

constexpr uint64_t kDefaultSeeds = 2000, kFewSeeds = 1000;

std::map<uint64_t, uint64_t> ReadGoldenHashes() {
  std::ifstream file("tests/sim/golden_hashes.txt");
  std::map<uint64_t, uint64_t> hashes;
  uint64_t seed = 0;
  std::string hash;
  while (file >> seed >> hash) hashes[seed] = std::strtoull(hash.c_str(), nullptr, 16);
  return hashes;
}

constexpr int kFirstProbeOfLies = kProbes - kProbesOfLies;
constexpr int kFirstProbeOfParts = kFirstProbeOfLies - kProbesOfParts;
constexpr int kFirstProbeOfActivations = kFirstProbeOfParts - kProbesOfActivations;

void ExpectAllReached(const Probes& probes, int first, int end) {
  for (int probe = first; probe < end; ++probe) {
    EXPECT_GT(probes.hits(static_cast<Probe>(probe)), 0u)
        << "no seed reaches: " << ProbeName(static_cast<Probe>(probe));
  }
}

Outcome ExpectKept(const Config& config, std::ostream* echo) {
  const std::string how_to_reproduce = HowToReproduce(config);
  AnnounceSeed(how_to_reproduce);
  const Outcome outcome = Simulation::Run(config, MakeOps(config), nullptr, echo);
  EXPECT_EQ(outcome.broken, "") << outcome.last << how_to_reproduce;
  return outcome;
}

TEST(SimulationTest, EverySeedKeepsEveryPromiseInTheSameWay) {
  const std::map<uint64_t, uint64_t> golden = ReadGoldenHashes();
  ASSERT_EQ(golden.size(), kDefaultSeeds);
  Probes probes;
  uint64_t events = 0, different = 0, first_different = 0;
  const bool have_run = RunSeeds(kDefaultSeeds, [&](uint64_t seed, std::ostream* echo) {
    const Config config = MakeConfig(seed);
    const Outcome outcome = ExpectKept(config, echo);
    const auto expected = golden.find(seed);
    if (expected == golden.end()) {
      EXPECT_EQ(outcome.trace_hash, Simulation::Run(config, MakeOps(config)).trace_hash)
          << "not deterministic: " << HowToReproduce(config);
    } else if (outcome.trace_hash != expected->second && ++different == 1) {
      first_different = seed;
    }
    probes.Add(outcome.probes);
    events += outcome.events;
  });
  EXPECT_EQ(different, 0u)
      << "seeds behave otherwise than golden_hashes.txt says, the first is " << first_different
      << ". A commit that only moves or renames must not do that. One that means to change "
         "behaviour says so in its message and replaces the file:\n"
         "  bazel run -c opt //tests/sim:golden > tests/sim/golden_hashes.txt";
  std::cout << events << " events\n" << probes.Report();
  if (have_run) ExpectAllReached(probes, 0, kFirstProbeOfActivations);
}

// The first seeds again, on a device that runs on with what killed clients left; every second one
// on several.
TEST(SimulationTest, KernelsOfKilledClientsHitNoChunkOfOthers) {
  RunSeeds(kFewSeeds, [](uint64_t seed, std::ostream* echo) {
    Config config = MakeConfig(seed);
    if (config.device_slots == 0) return;
    config.quarantine = true;
    if (seed % 2 == 0) config = WithDevices(config);
    ExpectKept(config, echo);
  });
}

// The first seeds again, with chunks that clients discard, some of which never reach SSD; every
// second one on several devices.
TEST(SimulationTest, ActivationsKeepEveryPromise) {
  Probes probes;
  const bool have_run = RunSeeds(kFewSeeds, [&](uint64_t seed, std::ostream* echo) {
    const Config plain = MakeConfig(seed);
    const Config config = WithActivations(seed % 2 == 0 ? WithDevices(plain) : plain);
    probes.Add(ExpectKept(config, echo).probes);
  });
  if (have_run) ExpectAllReached(probes, kFirstProbeOfActivations, kFirstProbeOfParts);
}

// The first seeds again, with parts of steps that clients compute; every second one as above, too,
// and every third on several devices.
TEST(SimulationTest, PartsThatClientsComputeKeepEveryPromise) {
  Probes probes;
  const bool have_run = RunSeeds(kFewSeeds, [&](uint64_t seed, std::ostream* echo) {
    const Config plain = seed % 3 == 0 ? WithDevices(MakeConfig(seed)) : MakeConfig(seed);
    const Config config = WithParts(seed % 2 == 0 ? WithActivations(plain) : plain);
    if (config.parts) probes.Add(ExpectKept(config, echo).probes);
  });
  std::cout << "with parts that clients compute\n" << probes.Report();
  if (have_run) ExpectAllReached(probes, kFirstProbeOfParts, kFirstProbeOfLies);
}

// The first seeds again, on a disk that says that all is well and has other bytes; every second one
// as above, too.
TEST(SimulationTest, OtherBytesThanWereWrittenAreNeverShown) {
  Probes probes;
  const bool have_run = RunSeeds(kFewSeeds, [&](uint64_t seed, std::ostream* echo) {
    const Config plain = MakeConfig(seed);
    const Config config = WithLies(seed % 2 == 0 ? WithParts(WithActivations(plain)) : plain);
    if (config.faults.lie != 0) probes.Add(ExpectKept(config, echo).probes);
  });
  std::cout << "with a disk that lies\n" << probes.Report();
  if (have_run) ExpectAllReached(probes, kFirstProbeOfLies, kProbes);
}

// The first seeds again, where writes to SSD have budgets that are never exceeded, and no wait for
// them lasts for ever; every second one as above, too.
TEST(SimulationTest, BudgetsOfWritesAreKeptAndAllElseToo) {
  uint64_t paced = 0;
  const bool have_run = RunSeeds(kFewSeeds, [&](uint64_t seed, std::ostream* echo) {
    const Config plain = MakeConfig(seed);
    const Config config = WithBudgets(seed % 2 == 0 ? WithParts(WithActivations(plain)) : plain);
    if (!config.paced) return;
    ExpectKept(config, echo);
    ++paced;
  });
  EXPECT_TRUE(paced > 100 || !have_run) << paced;
}

// Seeds beyond the others in which the engine once broke a promise, by what it did.
constexpr uint64_t kBrokenOnce[] = {
    1000255,  // A lease budget of no chunks was sent.
    1000433,  // A restored job for which memory was short once had no device slot any more,
    1001645,  // and its fetches waited for one.
    1000505,  // A job that never opened was given up at the restart.
    1000680,  // Three chunks took turns in two slots, prefetched for times after a commit.
    1003744,  // A device share grew that had lost a slot which could not be made. The oracle took
              // it for one that shrinks.
    20262128876,  // A fetch waited as an eviction of its chunk was asked for, had the chunk in
                  // its tier, and ran out of time: what it had wanted was prefetched again.
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
    11670,    // Memory that could not be made was lent to another job, and a restart gave it back.
};

// The same, with activations and parts that clients compute. All were mistakes of the oracle.
constexpr uint64_t kBrokenOnceWithParts[] = {
    6275,     // A part that waited began after an eviction of its chunk was asked for, and ended
    19412,    // before it: the chunk had been used since, and was prefetched again.
    400779,   // The same, with a fetch.
    13631,    // A job that another session opened waited for memory that others cede.
    280196,   // A call that freed homes was answered after the allocations that it let go on.
    266314,   // Filling the slots of a large share, one after another, took longer than settling.
    1002667,  // A session that asked for a size joined a job whose maker did not, and had died.
    20262128922,  // Two Opens of a name waited, and the one that named no device made the job. The
                  // oracle asked the other one alone where it would be.
};

// The same, on a device that runs on with what killed clients left.
constexpr uint64_t kBrokenOnceWithQuarantine[] = {
    202611262848805,  // A device's share kept what it had to give back while host memory was
                      // replaced.
};

// The same, with budgets of writes.
constexpr uint64_t kBrokenOnceWithBudgets[] = {
    202611272012787,  // A job whose time had passed, and for which an Open waited, gave a slot of
                      // the device back: the oracle took it for ended.
};

TEST(SimulationTest, SeedsThatBrokeAPromiseKeepIt) {
  std::vector<Config> configs;
  for (const uint64_t seed : kBrokenOnce) configs.push_back(MakeConfig(seed));
  for (const uint64_t seed : kBrokenOnceWithActivations) {
    configs.push_back(WithActivations(MakeConfig(seed)));
  }
  for (const uint64_t seed : kBrokenOnceWithParts) {
    configs.push_back(WithParts(WithActivations(MakeConfig(seed))));
  }
  for (const uint64_t seed : kBrokenOnceWithQuarantine) {
    configs.push_back(MakeConfig(seed));
    configs.back().quarantine = true;
  }
  for (const uint64_t seed : kBrokenOnceWithBudgets) {
    configs.push_back(WithBudgets(MakeConfig(seed)));
  }
  for (const Config& config : configs) ExpectKept(config, /*echo=*/nullptr);
}

}  // namespace
}  // namespace memtide::sim
