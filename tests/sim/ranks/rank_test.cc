// Runs many seeds of ranks.
#include "gtest/gtest.h"
#include "tests/sim/clients/run_clients.h"
#include "tests/sim/families.h"

namespace memtide::sim {
namespace {

TEST(RankSimulationTest, EachRankSeesWhatItWouldSeeAlone) {
  RunClients(kRanks, ClientProbe::kMade, ClientProbe::kHung);
}

TEST(RankSimulationTest, KeptRanksGoOnFromTheStepOfAll) {
  RunClients(kKeptRanks, ClientProbe::kAllCommitted, ClientProbe::kDiedInCommit);
}

}  // namespace
}  // namespace memtide::sim
