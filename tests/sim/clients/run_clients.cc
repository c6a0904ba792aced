#include "tests/sim/clients/run_clients.h"

#include <iostream>

#include "gtest/gtest.h"
#include "tests/sim/run_seeds.h"

namespace memtide::sim {

void RunClients(uint64_t seeds, ClientOutcome (*run)(uint64_t seed, std::ostream* echo),
                ClientProbe first, ClientProbe last) {
  ClientOutcome all;
  const bool have_run = RunSeeds(seeds, [&](uint64_t seed, std::ostream* echo) {
    const ClientOutcome outcome = run(seed, echo);
    EXPECT_EQ(outcome.broken, "") << outcome.last;
    if (seed % 16 == 0) {
      EXPECT_EQ(outcome.trace_hash, run(seed, nullptr).trace_hash) << "not deterministic";
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
