// Measures the search for activation plans, in virtual time: what the plans take by the engine's
// replay, against the best of all plans, a lower bound, and plans that need no search.
//
//   activation_plans [--quick]
//
// A progress line for each model and budget goes to standard error, the samples to standard output.
#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "bench/harness.h"
#include "daemon/replay/activations/best_of_all.h"
#include "daemon/replay/activations/search.h"
#include "daemon/replay/activations/synthetic_model.h"
#include "daemon/replay/activations/transformer_shape.h"

ABSL_FLAG(bool, quick, false, "fewer blocks for the exhaustive search");

namespace memtide {
namespace {

// The link of a PCIe 5.0 x16 slot, as measured on H100s, in each direction.
constexpr double kLink = 52e9;

SearchOptions OnDevice() {
  SearchOptions options;
  options.replay.device_slots = 1;
  options.replay.host_slots = 1 << 14;  // Host memory holds all.
  options.replay.links.to_device.bytes_per_second = kLink;
  options.replay.links.from_device.bytes_per_second = kLink;
  return options;
}

ActivationModel ModelOf(const TransformerShape& shape, double budget_bytes) {
  SyntheticModel made = MakeSyntheticModel(ShapeOf(shape));
  made.profile.set_budget_bytes(static_cast<uint64_t>(budget_bytes));
  return OrDie(ToActivationModel(made.sequence, made.profile));
}

double StatesBytes(const TransformerShape& shape) {
  return static_cast<double>(StatesOf(ShapeOf(shape)).count());
}

void Print(const std::string& figure, double limit, double product) {
  std::cout << absl::StrFormat(
      "{\"figure\": \"%s\", \"pairs\": [{\"limit\": %.9g, \"product\": %.9g, \"others\": 0}]}\n",
      figure, limit, product);
}

// The pair with the highest or the lowest ratio.
struct Extreme {
  double limit = 1, product = 1;
  bool is_set = false;

  void Take(double new_limit, double new_product, bool highest) {
    const bool is_higher = new_product * limit > product * new_limit;
    if (is_set && is_higher != highest) return;
    limit = new_limit;
    product = new_product;
    is_set = true;
  }
};

Found FindFor(const ActivationModel& model, const std::string& name) {
  Found found = OrDie(Search(model, OnDevice()));
  MEMTIDE_CHECK(found.verdict.has_value());
  std::cerr << absl::StrFormat(
      "%-18s %8s: %8.4f s, unlimited %8.4f s, at least %8.4f s, %3d replays, %.2f s", name,
      FormatBytes(model.budget), Seconds(found.verdict->elapsed), Seconds(found.unlimited),
      Seconds(found.lower_bound), found.replays, Seconds(found.took));
  for (const Forced& forced : found.forced) {
    std::cerr << "; " << forced.name << " "
              << (forced.verdict.has_value()
                      ? absl::StrFormat("%.4f", Seconds(forced.verdict->elapsed))
                      : "no");
  }
  std::cerr << "\n";
  return found;
}

void MeasureExhaustive(uint32_t blocks) {
  TransformerShape shape = DemoGpt();
  shape.layers = blocks;
  shape.chunk_size = MiB(8);
  Extreme worst;
  for (const double share : {0.25, 0.5, 1.0}) {
    const ActivationModel model = ModelOf(shape, share * StatesBytes(shape));
    const Found found = FindFor(model, absl::StrCat(shape.name, ", ", blocks));
    const Duration best = OrDie(BestOfAll(model, OnDevice().replay));
    worst.Take(Seconds(best), Seconds(found.verdict->elapsed), true);
  }
  Print("plans.exhaustive", worst.limit, worst.product);
}

void MeasureLowerBound() {
  TransformerShape shape = DemoGpt();
  shape.layers = 96;
  shape.chunk_size = MiB(16);
  Extreme worst;
  Duration longest{0};
  for (const double share : {0.25, 0.5, 1.0}) {
    const Found found = FindFor(ModelOf(shape, share * StatesBytes(shape)), "demo GPT, 96");
    worst.Take(Seconds(found.lower_bound), Seconds(found.verdict->elapsed), true);
    longest = std::max(longest, found.took);
  }
  Print("plans.lower_bound_96", worst.limit, worst.product);
  Print("plans.search_s_96", 0, Seconds(longest));
}

void MeasureForced() {
  Extreme worst, best;
  for (const TransformerShape& shape : {DemoGpt(), Llama8B(), WideShallow(), HeavyAttention()}) {
    const ActivationModel large = ModelOf(shape, StatesBytes(shape));
    const Bytes all =
        StatesOf(ShapeOf(shape)) + MostKept(large, ForcedPlans(large).front().candidate);
    for (const double share : {0.05, 0.1, 0.2, 0.35, 0.5, 0.75}) {
      const ActivationModel model = ModelOf(shape, share * static_cast<double>(all.count()));
      const Found found = FindFor(model, shape.name);
      double limit = 1e300;
      for (const Forced& forced : found.forced) {
        if (forced.verdict.has_value()) limit = std::min(limit, Seconds(forced.verdict->elapsed));
      }
      worst.Take(limit, Seconds(found.verdict->elapsed), true);
      best.Take(limit, Seconds(found.verdict->elapsed), false);
    }
  }
  Print("plans.best_forced", worst.limit, worst.product);
  Print("plans.best_forced_gain", best.limit, best.product);
}

void MeasureFrontier() {
  const TransformerShape shape = Llama8B();
  for (const int percent : {10, 15, 25, 40, 60}) {
    const Found found = FindFor(ModelOf(shape, percent / 100.0 * StatesBytes(shape)),
                                absl::StrCat("frontier, ", percent, "%"));
    Print(absl::StrCat("plans.frontier_", percent), Seconds(found.unlimited),
          Seconds(found.verdict->elapsed));
  }
}

void MeasureAll() {
  MeasureExhaustive(absl::GetFlag(FLAGS_quick) ? 5 : 8);
  MeasureLowerBound();
  MeasureForced();
  MeasureFrontier();
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  memtide::MeasureAll();
  return 0;
}
