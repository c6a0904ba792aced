// Runs many seeds of scripts with common contents.
#include "gtest/gtest.h"
#include "tests/sim/clients/run_clients.h"
#include "tests/sim/families.h"

namespace memtide::sim {
namespace {

TEST(CommonSimulationTest, EachScriptSeesWhatItWouldSeeAlone) {
  RunClients(kCommonContents, ClientProbe::kCopied, ClientProbe::kNoMemory);
}

TEST(CommonSimulationTest, NoEventLendsMoreThanAQuotaPermits) {
  RunClients(kQuotas, ClientProbe::kOverQuota, ClientProbe::kEndedNoForeignJob);
}

}  // namespace
}  // namespace memtide::sim
