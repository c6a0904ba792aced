// Runs many seeds of scripts with common contents.
#include "gtest/gtest.h"
#include "tests/sim/clients/run_clients.h"
#include "tests/sim/common/common_simulation.h"

namespace memtide::sim {
namespace {

TEST(CommonSimulationTest, EachScriptSeesWhatItWouldSeeAlone) {
  const auto run = [](uint64_t seed, std::ostream* echo) {
    return CommonSimulation::Run(WithCommonContents(seed), echo);
  };
  RunClients(/*seeds=*/2000, run, ClientProbe::kCopied, ClientProbe::kNoMemory);
}

TEST(CommonSimulationTest, NoEventLendsMoreThanAQuotaPermits) {
  const auto run = [](uint64_t seed, std::ostream* echo) {
    return CommonSimulation::Run(WithQuotas(seed), echo);
  };
  RunClients(/*seeds=*/1000, run, ClientProbe::kOverQuota, ClientProbe::kEndedNoForeignJob);
}

}  // namespace
}  // namespace memtide::sim
