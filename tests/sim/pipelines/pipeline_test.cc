// Runs many seeds of pipelines with two versions of their weights.
#include "gtest/gtest.h"
#include "tests/sim/clients/run_clients.h"
#include "tests/sim/pipelines/pipeline_simulation.h"

namespace memtide::sim {
namespace {

TEST(PipelineSimulationTest, EachReaderReadsItsVersionAndThereAreTwo) {
  const auto run = [](uint64_t seed, std::ostream* echo) {
    return PipelineSimulation::Run(WithPipelines(seed), echo);
  };
  RunClients(/*seeds=*/1000, run, ClientProbe::kFullPipeline, ClientProbe::kDiskFailed);
}

}  // namespace
}  // namespace memtide::sim
