#include "tests/sim/clients/run_clients.h"

#include <iostream>

#include "gtest/gtest.h"
#include "tests/sim/golden_hashes.h"
#include "tests/sim/run_seeds.h"

namespace memtide::sim {

void RunClients(const ClientFamily& family, ClientProbe first, ClientProbe last) {
  GoldenHashes golden(family.name, family.seeds);
  ClientOutcome all;
  const bool have_run = RunSeeds(family.seeds, [&](uint64_t seed, std::ostream* echo) {
    const ClientOutcome outcome = family.run(seed, echo);
    EXPECT_EQ(outcome.broken, "") << outcome.last;
    golden.Add(seed, outcome.trace_hash);
    if (!golden.Knows(seed)) {
      EXPECT_EQ(outcome.trace_hash, family.run(seed, nullptr).trace_hash) << "not deterministic";
    }
    all.events += outcome.events;
    for (int probe = 0; probe < kClientProbes; ++probe) all.hits[probe] += outcome.hits[probe];
  });
  std::cout << all.events << " events\n";
  for (auto probe = static_cast<size_t>(first); probe <= static_cast<size_t>(last); ++probe) {
    std::cout << "probe " << probe << ": " << all.hits[probe] << "\n";
    if (!have_run) continue;
    EXPECT_GT(all.hits[probe], 0u) << "no seed reaches it";
  }
}

}  // namespace memtide::sim
