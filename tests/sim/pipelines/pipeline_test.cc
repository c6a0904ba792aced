// Runs many seeds of pipelines with two versions of their weights.
#include "gtest/gtest.h"
#include "tests/sim/clients/run_clients.h"
#include "tests/sim/families.h"

namespace memtide::sim {
namespace {

TEST(PipelineSimulationTest, EachReaderReadsItsVersionAndThereAreTwo) {
  RunClients(kPipelines, ClientProbe::kFullPipeline, ClientProbe::kDiskFailed);
}

}  // namespace
}  // namespace memtide::sim
