// memtide-replay: traces played again under several policies, and the search for a plan of
// activations, which the same replay judges. `memtide replay` runs it.
//
// Exit status: 0; 1 when a trace cannot be played, 2 for a bad command line.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "daemon/replay/activations/plan_report.h"
#include "daemon/replay/activations/search.h"
#include "daemon/replay/compare.h"
#include "daemon/replay/question.h"
#include "daemon/replay/report.h"
#include "daemon/replay/trace_file.h"

namespace memtide {
namespace {

constexpr int kExitFailure = 1, kExitUsage = 2;
constexpr uint32_t kLeastSlots = 4;  // Fewer, the engine refuses.

struct CommandLine {
  std::vector<std::string> traces;
  std::string policy = "all";
  std::string device_slots, host_slots;  // A number, or "33%"; empty: the trace's.
  double link_gbps = 4, ssd_read_gbps = 2, ssd_write_gbps = 2, compute_scale = 1;
  bool json = false;
  // Path of a profile or, without `traces`, of a trace that has one; empty: policies are compared.
  std::string activations;
  absl::optional<uint32_t> replays;
  std::string questions;  // Path of PlanQuestions; empty: there are none.
};

std::string CheckSlots(const std::string& text) {
  absl::string_view digits = text;
  const bool share = absl::ConsumeSuffix(&digits, "%");
  uint32_t number = 0;
  if (absl::SimpleAtoi(digits, &number) && number <= (share ? 1000 : Limits().chunks)) return "";
  return absl::StrCat("\"", text,
                      "\" is neither a number of slots, such as 64, nor a share of the ",
                      "trace's chunks, such as 33%");
}

uint32_t Slots(const std::string& text, uint32_t traced, uint32_t chunks) {
  if (text.empty()) return traced;
  absl::string_view digits = text;
  const bool share = absl::ConsumeSuffix(&digits, "%");
  uint32_t number = 0;
  if (!absl::SimpleAtoi(digits, &number) || number == 0) return 0;
  // A share of a small trace may be less than the engine accepts.
  return share ? std::max(kLeastSlots, chunks * number / 100) : number;
}

void AddOptions(CLI::App* app, CommandLine* line) {
  app->add_option("TRACE", line->traces, "Files that `memtide trace export --raw` made");
  app->add_option("--policy", line->policy,
                  "One of " + absl::StrJoin(PolicyNames(), ", ") + ", or all")
      ->capture_default_str()
      ->check([](const std::string& name) {
        return name == "all" ? "" : std::string(ParsePolicy(name).status().message());
      });
  for (const auto& [flag, value, tier] :
       {std::tuple("--device-slots", &line->device_slots, "device"),
        std::tuple("--host-slots", &line->host_slots, "host")}) {
    app->add_option(flag, *value,
                    absl::StrCat("Chunks that the ", tier, " holds, or a share of the trace's, ",
                                 "such as 33%; 0: there is none (default: the trace's)"))
        ->check(CheckSlots);
  }
  for (const auto& [flag, value, help] :
       {std::tuple("--link-gbps", &line->link_gbps, "Device's bandwidth, each direction, in GB/s"),
        std::tuple("--ssd-read-gbps", &line->ssd_read_gbps, "SSD's bandwidth in reading"),
        std::tuple("--ssd-write-gbps", &line->ssd_write_gbps, "SSD's bandwidth in writing")}) {
    app->add_option(flag, *value, help)->capture_default_str()->check(CLI::Range(1e-3, 1e6));
  }
  app->add_option("--compute-scale", line->compute_scale, "Factor for the traced compute times")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  app->add_flag("--json", line->json, "Write JSON instead of tables");
  auto* const activations =
      app->add_option("--activations", line->activations,
                      "Profile of the activations of the one TRACE, or without TRACE a trace that "
                      "has its profile: print which to keep, to move and to recompute, as an "
                      "ActivationPlan");
  app->add_option("--replays", line->replays,
                  "End the search for it after this many replays, not after a second")
      ->needs(activations)
      ->check(CLI::Range(0, 1 << 20));
  activations->excludes(app->get_option("--policy"));
  app->add_option("--plan", line->questions,
                  "PlanQuestions in protobuf's JSON, from a file or from - (standard input): print "
                  "PlanReplies")
      ->excludes(activations)
      ->excludes(app->get_option("TRACE"));
}

ReplayOptions OptionsFor(const CommandLine& line) {
  ReplayOptions options;
  options.compute_scale = line.compute_scale;
  options.links.to_device.bytes_per_second = line.link_gbps * 1e9;
  options.links.from_device.bytes_per_second = line.link_gbps * 1e9;
  options.links.disk_read.bytes_per_second = line.ssd_read_gbps * 1e9;
  options.links.disk_write.bytes_per_second = line.ssd_write_gbps * 1e9;
  return options;
}

absl::StatusOr<Comparison> CompareTrace(const std::string& path, const CommandLine& line) {
  MEMTIDE_ASSIGN_OR_RETURN(const v1::Trace trace, LoadTrace(path));
  MEMTIDE_ASSIGN_OR_RETURN(const AccessSequence sequence, ToAccessSequence(trace));
  Comparison comparison;
  comparison.trace = path;
  comparison.made_by = trace.made_by();
  comparison.chunk_size = sequence.chunk_size;
  comparison.chunks = MostChunks(sequence);
  comparison.device_slots = Slots(line.device_slots, sequence.device_slots, comparison.chunks);
  comparison.host_slots = Slots(line.host_slots, sequence.host_slots, comparison.chunks);

  ReplayOptions options = OptionsFor(line);
  options.device_slots = comparison.device_slots;
  options.host_slots = comparison.host_slots;
  const std::vector<std::string> policies =
      line.policy == "all" ? PolicyNames() : std::vector<std::string>{line.policy};
  MEMTIDE_ASSIGN_OR_RETURN(comparison.outcomes, Compare(sequence, options, policies));
  comparison.iterations = sequence.iterations() - kWarmUpIterations;
  return comparison;
}

absl::StatusOr<v1::ActivationProfile> ProfileOf(const v1::Trace& trace) {
  if (!trace.has_activation_profile()) {
    return absl::FailedPreconditionError(
        "the trace has no profile of activations: `memtide run --trace` adds one where a budget "
        "was short");
  }
  return trace.activation_profile();
}

// The plan as text.
absl::StatusOr<std::string> PlanActivations(const CommandLine& line) {
  const bool is_alone = line.traces.empty();
  MEMTIDE_ASSIGN_OR_RETURN(const v1::Trace trace,
                           LoadTrace(is_alone ? line.activations : line.traces.front()));
  MEMTIDE_ASSIGN_OR_RETURN(const AccessSequence sequence, ToAccessSequence(trace));
  MEMTIDE_ASSIGN_OR_RETURN(const v1::ActivationProfile profile,
                           is_alone ? ProfileOf(trace) : LoadActivationProfile(line.activations));
  MEMTIDE_ASSIGN_OR_RETURN(const ActivationModel model,
                           ToActivationModel(sequence, profile, line.compute_scale));
  SearchOptions search;
  search.replay = OptionsFor(line);
  search.replay.compute_scale = 1;  // The model has it.
  const uint32_t chunks = MostChunks(sequence);
  search.replay.device_slots = Slots(line.device_slots, sequence.device_slots, chunks);
  search.replay.host_slots = Slots(line.host_slots, sequence.host_slots, chunks);
  if (line.replays.has_value()) {
    search.most_replays = *line.replays;
    search.most_time = Duration::max();
  }
  MEMTIDE_ASSIGN_OR_RETURN(const Found found, Search(model, search));
  const v1::ActivationPlan plan = ToProto(model, found, search.replay.device_slots > 0);
  return line.json ? AsJson(plan) : AsTable(model, plan);
}

int RunActivations(const CommandLine& line) {
  if (line.traces.size() > 1) {
    std::cerr << "memtide-replay: --activations takes one TRACE\n";
    return kExitUsage;
  }
  const absl::StatusOr<std::string> plan = PlanActivations(line);
  if (!plan.ok()) {
    std::cerr << "memtide-replay: " << line.activations << ": " << plan.status().message() << "\n";
    return kExitFailure;
  }
  std::cout << *plan;
  return 0;
}

int RunQuestions(const CommandLine& line) {
  std::ostringstream read;
  if (line.questions == "-") {
    read << std::cin.rdbuf();
  } else {
    read << std::ifstream(line.questions, std::ios::binary).rdbuf();
  }
  const absl::StatusOr<v1::PlanQuestions> questions = ReadQuestions(read.str());
  if (!questions.ok()) {
    std::cerr << "memtide-replay: " << line.questions << ": " << questions.status().message()
              << "\n";
    return kExitFailure;
  }
  std::cout << AsJson(ReplyToAll(*questions, std::thread::hardware_concurrency())) << "\n";
  return 0;
}

int RunReplay(const CommandLine& line) {
  if (!line.questions.empty()) return RunQuestions(line);
  if (!line.activations.empty()) return RunActivations(line);
  if (line.traces.empty()) {
    std::cerr << "memtide-replay: TRACE is required (see --help)\n";
    return kExitUsage;
  }
  std::vector<Comparison> comparisons;
  for (const std::string& path : line.traces) {
    absl::StatusOr<Comparison> comparison = CompareTrace(path, line);
    if (!comparison.ok()) {
      std::cerr << "memtide-replay: " << path << ": " << comparison.status().message() << "\n";
      return kExitFailure;
    }
    // A table appears as soon as its trace has been played; JSON is one document at the end.
    if (!line.json) std::cout << AsTable(*comparison) << std::flush;
    comparisons.push_back(*std::move(comparison));
  }
  if (line.json) std::cout << AsJson(comparisons);
  return 0;
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  CLI::App app("Plays traces of training runs again, on the daemon's engine with modelled links.",
               "memtide-replay");
  memtide::CommandLine line;
  memtide::AddOptions(&app, &line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return 0;
  } catch (const CLI::ParseError& error) {
    std::cerr << "memtide-replay: " << error.what() << " (see --help)\n";
    return memtide::kExitUsage;
  }
  return memtide::RunReplay(line);
}
