// Runs many seeds and compares their traces with golden_hashes.txt; those beyond the file run
// twice.
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/families.h"
#include "tests/sim/golden_hashes.h"
#include "tests/sim/run_seeds.h"
#include "tests/sim/simulation.h"

namespace memtide::sim {
namespace {

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

// Runs the family's seeds; `probes` gets what they reach. Returns how many nodes there were, and
// none if fewer seeds ran than the family has.
uint64_t RunFamily(const Family& family, Probes* probes) {
  GoldenHashes golden(family.name, family.seeds);
  uint64_t events = 0, nodes = 0;
  const bool have_run = RunSeeds(family.seeds, [&](uint64_t seed, std::ostream* echo) {
    const std::optional<Config> config = family.config(seed);
    const Outcome outcome = config ? ExpectKept(*config, echo) : Outcome();
    golden.Add(seed, outcome.trace_hash);
    if (config && !golden.Knows(seed)) {
      EXPECT_EQ(outcome.trace_hash, Simulation::Run(*config, MakeOps(*config)).trace_hash)
          << "not deterministic: " << HowToReproduce(*config);
    }
    probes->Add(outcome.probes);
    events += outcome.events;
    nodes += config.has_value();
  });
  std::cout << family.name << ": " << events << " events\n" << probes->Report();
  return have_run ? nodes : 0;
}

TEST(SimulationTest, EverySeedKeepsEveryPromiseInTheSameWay) {
  Probes probes;
  if (RunFamily(kPlain, &probes) > 0) ExpectAllReached(probes, 0, kFirstProbeOfActivations);
}

TEST(SimulationTest, KernelsOfKilledClientsHitNoChunkOfOthers) {
  Probes probes;
  RunFamily(kQuarantine, &probes);
}

TEST(SimulationTest, ActivationsKeepEveryPromise) {
  Probes probes;
  if (RunFamily(kActivations, &probes) > 0) {
    ExpectAllReached(probes, kFirstProbeOfActivations, kFirstProbeOfParts);
  }
}

TEST(SimulationTest, PartsThatClientsComputeKeepEveryPromise) {
  Probes probes;
  if (RunFamily(kParts, &probes) > 0) {
    ExpectAllReached(probes, kFirstProbeOfParts, kFirstProbeOfLies);
  }
}

TEST(SimulationTest, OtherBytesThanWereWrittenAreNeverShown) {
  Probes probes;
  if (RunFamily(kLies, &probes) > 0) ExpectAllReached(probes, kFirstProbeOfLies, kProbes);
}

// Budgets are never exceeded, and no wait for them lasts for ever.
TEST(SimulationTest, BudgetsOfWritesAreKeptAndAllElseToo) {
  Probes probes;
  const uint64_t paced = RunFamily(kBudgets, &probes);
  EXPECT_TRUE(paced > 100 || paced == 0) << paced;
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

// The same, with a disk that lies.
constexpr uint64_t kBrokenOnceWithLies[] = {
    20262129341,  // The copy on SSD was bad, and the one on the device was lost with the daemon
                  // before it was in host memory again.
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
  for (const uint64_t seed : kBrokenOnceWithLies) configs.push_back(WithLies(MakeConfig(seed)));
  for (const Config& config : configs) ExpectKept(config, /*echo=*/nullptr);
}

}  // namespace
}  // namespace memtide::sim
