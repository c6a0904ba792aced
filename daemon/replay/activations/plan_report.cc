#include "daemon/replay/activations/plan_report.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace memtide {

namespace {

v1::ActivationChoice ToProto(Choice choice, bool has_device) {
  switch (choice) {
    case Choice::kKeep:
      return v1::ACTIVATION_CHOICE_KEEP;
    case Choice::kMove:
      return has_device ? v1::ACTIVATION_CHOICE_MOVE_TO_HOST : v1::ACTIVATION_CHOICE_MOVE_TO_SSD;
    case Choice::kRecompute:
      break;
  }
  return v1::ACTIVATION_CHOICE_RECOMPUTE;
}

void Fill(const Verdict& verdict, v1::PredictedIteration* predicted) {
  predicted->set_elapsed_ns(verdict.elapsed.count());
  predicted->set_stalled_ns(verdict.stalled.count());
  predicted->set_recomputed_ns(verdict.recomputed.count());
  predicted->set_most_kept_bytes(verdict.most_kept.count());
  predicted->set_moved_bytes(verdict.moved.Total().count());
}

const char* NameOf(v1::ActivationChoice choice) {
  switch (choice) {
    case v1::ACTIVATION_CHOICE_KEEP:
      return "keep";
    case v1::ACTIVATION_CHOICE_MOVE_TO_HOST:
      return "to host";
    case v1::ACTIVATION_CHOICE_MOVE_TO_SSD:
      return "to SSD";
    case v1::ACTIVATION_CHOICE_RECOMPUTE:
      return "recompute";
    default:
      return "-";
  }
}

bool IsEqual(const v1::BlockPlan& a, const v1::BlockPlan& b) {
  return a.input() == b.input() && a.attention() == b.attention() && a.rest() == b.rest();
}

std::string LineOf(const char* name, const v1::PredictedIteration& predicted) {
  return absl::StrFormat("  %-15s %9.4f s %9.4f s %9.4f s  %10s %10s\n", name,
                         static_cast<double>(predicted.elapsed_ns()) / 1e9,
                         static_cast<double>(predicted.stalled_ns()) / 1e9,
                         static_cast<double>(predicted.recomputed_ns()) / 1e9,
                         FormatBytes(Bytes(predicted.most_kept_bytes())),
                         FormatBytes(Bytes(predicted.moved_bytes())));
}

}  // namespace

v1::ActivationPlan ToProto(const ActivationModel& model, const Found& found, bool has_device) {
  v1::ActivationPlan plan;
  plan.set_lower_bound_ns(found.lower_bound.count());
  plan.mutable_unlimited()->set_elapsed_ns(found.unlimited.count());
  plan.mutable_unlimited()->set_most_kept_bytes(found.unlimited_kept.count());
  plan.set_replays(found.replays);
  plan.set_search_ns(found.took.count());
  for (const Forced& forced : found.forced) {
    v1::ForcedPlan* const made = plan.add_forced();
    made->set_name(forced.name);
    if (forced.verdict.has_value()) Fill(*forced.verdict, made->mutable_predicted());
  }
  if (!found.verdict.has_value()) {
    plan.set_least_budget_bytes(found.least_budget.count());
    return plan;
  }
  plan.set_slots(found.verdict->division.slots);
  plan.set_allowance_bytes(found.verdict->division.allowance.count());
  Fill(*found.verdict, plan.mutable_predicted());
  if (!model.others.empty()) plan.set_others(ToProto(found.candidate.others, has_device));
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    v1::BlockPlan* const block = plan.add_blocks();
    const auto choice = [&](SavedPart part) {
      if (model.blocks[i].bytes[static_cast<size_t>(part)].IsZero()) {
        return v1::ACTIVATION_CHOICE_UNSPECIFIED;
      }
      return ToProto(found.candidate.blocks[i].of(part), has_device);
    };
    block->set_input(choice(SavedPart::kInput));
    block->set_attention(choice(SavedPart::kAttention));
    block->set_rest(choice(SavedPart::kRest));
  }
  return plan;
}

std::string AsJson(const v1::ActivationPlan& plan) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(plan, &json, options);
  MEMTIDE_CHECK(status.ok()) << std::string(status.message());
  return json;
}

std::string AsTable(const ActivationModel& model, const v1::ActivationPlan& plan) {
  if (plan.blocks().empty()) {
    return absl::StrCat("no plan fits ", FormatBytes(model.budget), "; ",
                        FormatBytes(Bytes(plan.least_budget_bytes())), " would do\n");
  }
  std::string table =
      absl::StrFormat("%-21s %-10s %-10s %-10s\n", "blocks", "input", "attention", "rest");
  for (int i = 0, next = 0; i < plan.blocks_size(); i = next) {
    // Neighbors that are treated alike have one line.
    while (next < plan.blocks_size() && IsEqual(plan.blocks(i), plan.blocks(next))) ++next;
    const v1::BlockPlan& block = plan.blocks(i);
    table +=
        absl::StrFormat("  %-19s %-10s %-10s %-10s\n",
                        next - i == 1 ? absl::StrCat(i) : absl::StrCat(i, " to ", next - 1),
                        NameOf(block.input()), NameOf(block.attention()), NameOf(block.rest()));
  }
  if (!model.others.empty()) table += absl::StrCat("  others: ", NameOf(plan.others()), "\n");
  absl::StrAppend(&table, plan.slots(), " slots of ", FormatBytes(model.states.chunk_size),
                  " for chunks, ", FormatBytes(Bytes(plan.allowance_bytes())),
                  " for what is kept\n");
  absl::StrAppendFormat(&table, "  %-15s %11s %11s %11s  %10s %10s\n", "an iteration", "takes",
                        "stalls", "recomputes", "keeps", "moves");
  table += LineOf("this plan", plan.predicted());
  for (const v1::ForcedPlan& forced : plan.forced()) {
    table += forced.has_predicted() ? LineOf(forced.name().c_str(), forced.predicted())
                                    : absl::StrFormat("  %-15s does not fit\n", forced.name());
  }
  table += LineOf("without a limit", plan.unlimited());
  absl::StrAppendFormat(&table, "  at least        %9.4f s; found with %d replays in %.2f s\n",
                        static_cast<double>(plan.lower_bound_ns()) / 1e9, plan.replays(),
                        static_cast<double>(plan.search_ns()) / 1e9);
  return table;
}

}  // namespace memtide
