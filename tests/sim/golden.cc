// golden: prints golden_hashes.txt, the hash of the trace of each of the first 2,000 seeds.
//
// bazel run -c opt //tests/sim:golden > tests/sim/golden_hashes.txt
#include <cinttypes>
#include <cstdio>

#include "tests/sim/simulation.h"

int main() {
  using namespace memtide::sim;
  constexpr uint64_t kSeeds = 2000;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Config config = MakeConfig(seed);
    const Outcome outcome = Simulation::Run(config, MakeOps(config));
    if (!outcome.broken.empty()) {
      std::fprintf(stderr, "%s\n%s\n", outcome.broken.c_str(), HowToReproduce(config).c_str());
      return 1;
    }
    std::printf("%" PRIu64 " %016" PRIx64 "\n", seed, outcome.trace_hash);
  }
  return 0;
}
