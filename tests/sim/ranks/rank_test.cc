// Runs many seeds of ranks.
#include "gtest/gtest.h"
#include "tests/sim/clients/run_clients.h"
#include "tests/sim/ranks/rank_simulation.h"

namespace memtide::sim {
namespace {

constexpr uint64_t kSeeds = 1000;

TEST(RankSimulationTest, EachRankSeesWhatItWouldSeeAlone) {
  const auto run = [](uint64_t seed, std::ostream* echo) {
    return RankSimulation::Run(WithRanks(seed), echo);
  };
  RunClients(kSeeds, run, ClientProbe::kMade, ClientProbe::kHung);
}

TEST(RankSimulationTest, KeptRanksGoOnFromTheStepOfAll) {
  const auto run = [](uint64_t seed, std::ostream* echo) {
    return RankSimulation::Run(WithKeptRanks(seed), echo);
  };
  RunClients(kSeeds, run, ClientProbe::kAllCommitted, ClientProbe::kDiedInCommit);
}

}  // namespace
}  // namespace memtide::sim
