// minimize SEED: runs one seed and, where it breaks a promise, finds a short list of steps that
// still does, and prints it as C++ for ReplayTest together with what happens in it.
//
// minimize FIRST LAST: prints which seeds of the range break what.
//
// --activations, --parts, --lies before the seeds: with WithActivations, WithParts, WithLies.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "tests/sim/run_in_child.h"
#include "tests/sim/simulation.h"

namespace memtide::sim {
namespace {

// The sort of thing that was broken: the words without the numbers.
std::string Sort(const std::string& broken) {
  std::string sort;
  for (const char c : broken) {
    if (sort.size() < 48 && (c < '0' || c > '9')) sort += c;
  }
  return sort;
}

// Drops ever smaller pieces of the list as long as it still breaks the same sort of thing.
std::vector<Op> Shrink(const Config& config, std::vector<Op> ops, const std::string& sort) {
  for (size_t piece = ops.size() / 2; piece > 0;) {
    bool shrunk = false;
    for (size_t at = 0; at < ops.size();) {
      std::vector<Op> fewer(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(at));
      const size_t end = std::min(at + piece, ops.size());
      fewer.insert(fewer.end(), ops.begin() + static_cast<std::ptrdiff_t>(end), ops.end());
      if (Sort(RunInChild(config, fewer)) != sort) {
        at += piece;
      } else {
        ops = std::move(fewer);
        shrunk = true;
      }
    }
    if (!shrunk || piece > ops.size()) piece /= 2;
  }
  return ops;
}

using MakesConfig = std::function<Config(uint64_t seed)>;

int Minimize(uint64_t seed, const MakesConfig& make) {
  const Config config = make(seed);
  std::vector<Op> ops = MakeOps(config);
  const std::string broken = RunInChild(config, ops);
  if (broken.empty()) {
    std::cout << "seed " << seed << " keeps every promise\n";
    return 0;
  }
  std::cout << Describe(config) << "\n" << broken << "\n";
  ops = Shrink(config, std::move(ops), Sort(broken));
  std::cout << ops.size() << " steps: " << RunInChild(config, ops) << "\n"
            << ToSource(config) << "ExpectKept(config, " << ToSource(ops) << ");\n"
            << std::flush;
  Simulation::Run(config, ops, nullptr, &std::cout);
  return 1;
}

int Search(uint64_t first, uint64_t last, const MakesConfig& make) {
  int failures = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const Config config = make(seed);
    const std::string broken = RunInChild(config, MakeOps(config));
    if (broken.empty()) continue;
    ++failures;
    std::cout << "seed " << seed << ": " << broken << std::endl;
  }
  std::cout << failures << " of " << last - first + 1 << " seeds break a promise\n";
  return failures == 0 ? 0 : 1;
}

int Run(std::vector<std::string> arguments) {
  const auto has = [&arguments](const std::string& flag) {
    const auto found = std::find(arguments.begin(), arguments.end(), flag);
    if (found == arguments.end()) return false;
    arguments.erase(found);
    return true;
  };
  const bool activations = has("--activations"), parts = has("--parts"), lies = has("--lies");
  const auto make = [&](uint64_t seed) {
    Config config = activations ? WithActivations(MakeConfig(seed)) : MakeConfig(seed);
    if (parts) config = WithParts(config);
    return lies ? WithLies(config) : config;
  };
  const auto number = [&](size_t i) { return std::strtoull(arguments[i].c_str(), nullptr, 10); };
  if (arguments.size() == 1) return Minimize(number(0), make);
  if (arguments.size() == 2) return Search(number(0), number(1), make);
  std::cerr << "minimize [--activations] [--parts] [--lies] SEED | minimize [...] FIRST LAST\n";
  return 2;
}

}  // namespace
}  // namespace memtide::sim

int main(int argc, char** argv) { return memtide::sim::Run({argv + 1, argv + argc}); }
