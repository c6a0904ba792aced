// golden: prints golden_hashes.txt, the hashes of the traces of all families of seeds.
//
// bazel run -c opt //tests/sim:golden > tests/sim/golden_hashes.txt
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "tests/sim/families.h"
#include "tests/sim/op.h"
#include "tests/sim/simulation.h"

namespace memtide::sim {
namespace {

void ExpectKept(const std::string& broken, const char* family, uint64_t seed) {
  if (broken.empty()) return;
  std::fprintf(stderr, "%s: %s, seed %" PRIu64 "\n", broken.c_str(), family, seed);
  std::exit(1);
}

// The trace's hash of a seed; 0 if it makes no such node.
uint64_t Trace(const Family& family, uint64_t seed) {
  const std::optional<Config> config = family.config(seed);
  if (!config) return 0;
  const Outcome outcome = Simulation::Run(*config, MakeOps(*config));
  ExpectKept(outcome.broken, family.name, seed);
  return outcome.trace_hash;
}

uint64_t Trace(const ClientFamily& family, uint64_t seed) {
  const ClientOutcome outcome = family.run(seed, nullptr);
  ExpectKept(outcome.broken, family.name, seed);
  return outcome.trace_hash;
}

template <typename Family>
void Print(const Family& family) {
  for (uint64_t first = 1; first <= family.seeds; first += kSeedsOfRow) {
    uint64_t hash = 0;
    for (uint64_t seed = first; seed < first + kSeedsOfRow; ++seed) {
      hash = WithTrace(hash, Trace(family, seed));
    }
    std::printf("%s %" PRIu64 " %016" PRIx64 "\n", family.name, first, hash);
  }
}

}  // namespace
}  // namespace memtide::sim

int main() {
  using namespace memtide::sim;
  for (const Family* family : {&kPlain, &kQuarantine, &kActivations, &kParts, &kLies, &kBudgets}) {
    Print(*family);
  }
  for (const ClientFamily* family :
       {&kRanks, &kKeptRanks, &kCommonContents, &kQuotas, &kPipelines}) {
    Print(*family);
  }
  return 0;
}
