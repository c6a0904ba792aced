#include "tests/sim/families.h"

#include "tests/sim/common/common_simulation.h"
#include "tests/sim/pipelines/pipeline_simulation.h"
#include "tests/sim/ranks/rank_simulation.h"

namespace memtide::sim {
namespace {

constexpr uint64_t kSeeds = 2000, kFewSeeds = 1000;

Config WithPartsAndMore(uint64_t seed) {
  const Config plain = MakeConfig(seed);
  return seed % 2 == 0 ? WithParts(WithActivations(plain)) : plain;
}

}  // namespace

const Family kPlain = {"plain", kSeeds,
                       [](uint64_t seed) -> std::optional<Config> { return MakeConfig(seed); }};

const Family kQuarantine = {"quarantine", kFewSeeds, [](uint64_t seed) -> std::optional<Config> {
                              Config config = MakeConfig(seed);
                              if (config.device_slots == 0) return std::nullopt;
                              config.quarantine = true;
                              return seed % 2 == 0 ? WithDevices(config) : config;
                            }};

const Family kActivations = {"activations", kFewSeeds, [](uint64_t seed) -> std::optional<Config> {
                               const Config plain = MakeConfig(seed);
                               return WithActivations(seed % 2 == 0 ? WithDevices(plain) : plain);
                             }};

const Family kParts = {"parts", kFewSeeds, [](uint64_t seed) -> std::optional<Config> {
                         const Config plain = MakeConfig(seed);
                         const Config devices = seed % 3 == 0 ? WithDevices(plain) : plain;
                         Config config =
                             WithParts(seed % 2 == 0 ? WithActivations(devices) : devices);
                         if (!config.parts) return std::nullopt;
                         return config;
                       }};

const Family kLies = {"lies", kFewSeeds, [](uint64_t seed) -> std::optional<Config> {
                        Config config = WithLies(WithPartsAndMore(seed));
                        if (config.faults.lie == 0) return std::nullopt;
                        return config;
                      }};

const Family kBudgets = {"budgets", kFewSeeds, [](uint64_t seed) -> std::optional<Config> {
                           Config config = WithBudgets(WithPartsAndMore(seed));
                           if (!config.paced) return std::nullopt;
                           return config;
                         }};

const ClientFamily kRanks = {"ranks", kFewSeeds, [](uint64_t seed, std::ostream* echo) {
                               return RankSimulation::Run(WithRanks(seed), echo);
                             }};

const ClientFamily kKeptRanks = {"kept-ranks", kFewSeeds, [](uint64_t seed, std::ostream* echo) {
                                   return RankSimulation::Run(WithKeptRanks(seed), echo);
                                 }};

const ClientFamily kCommonContents = {
    "common-contents", kSeeds, [](uint64_t seed, std::ostream* echo) {
      return CommonSimulation::Run(WithCommonContents(seed), echo);
    }};

const ClientFamily kQuotas = {"quotas", kFewSeeds, [](uint64_t seed, std::ostream* echo) {
                                return CommonSimulation::Run(WithQuotas(seed), echo);
                              }};

const ClientFamily kPipelines = {"pipelines", kFewSeeds, [](uint64_t seed, std::ostream* echo) {
                                   return PipelineSimulation::Run(WithPipelines(seed), echo);
                                 }};

}  // namespace memtide::sim
