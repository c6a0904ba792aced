#include "daemon/replay/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace memtide {

namespace {

double InMebibytes(Bytes bytes) { return static_cast<double>(bytes.count()) / (1 << 20); }

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string SecondsOrNothing(absl::optional<Duration> duration) {
  return duration.has_value() ? absl::StrFormat("%.3f", Seconds(*duration)) : "";
}

// Names in a trace come from scripts, and may have any character.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ') {
      absl::StrAppendFormat(&quoted, "\\u%04x", c);
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string Member(absl::string_view name, double value) {
  // A double needs 17 digits to be read back unchanged.
  return absl::StrFormat("%s: %.17g", Quoted(name), value);
}

std::string Member(absl::string_view name, Bytes bytes) {
  return absl::StrCat(Quoted(name), ": ", bytes.count());
}

std::string AsJson(const Outcome& outcome) {
  std::vector<std::string> members = {
      absl::StrCat("\"policy\": ", Quoted(outcome.policy)),
      Member("to_device_bytes", outcome.moved.to_device),
      Member("from_device_bytes", outcome.moved.from_device),
      Member("ssd_read_bytes", outcome.moved.disk_read),
      Member("ssd_written_bytes", outcome.moved.disk_written),
      Member("moved_bytes", outcome.moved.Total()),
      Member("against_optimum", outcome.against_optimum),
  };
  if (outcome.stalled.has_value()) {
    members.push_back(Member("stalled_seconds", Seconds(*outcome.stalled)));
  }
  if (outcome.elapsed.has_value()) members.push_back(Member("seconds", Seconds(*outcome.elapsed)));
  return absl::StrCat("{", absl::StrJoin(members, ", "), "}");
}

std::string AsJson(const Comparison& comparison) {
  std::vector<std::string> outcomes;
  for (const Outcome& outcome : comparison.outcomes) outcomes.push_back(AsJson(outcome));
  return absl::StrCat(
      "{\"trace\": ", Quoted(comparison.trace), ", \"made_by\": ", Quoted(comparison.made_by),
      ", \"chunk_size_bytes\": ", comparison.chunk_size.count(),
      ", \"chunks\": ", comparison.chunks, ", \"device_slots\": ", comparison.device_slots,
      ", \"host_slots\": ", comparison.host_slots, ", \"iterations\": ", comparison.iterations,
      ", \"policies\": [\n  ", absl::StrJoin(outcomes, ",\n  "), "]}");
}

}  // namespace

std::string AsTable(const Comparison& comparison) {
  std::string table =
      absl::StrCat(comparison.trace, ": ", comparison.chunks, " chunks of ",
                   FormatBytes(comparison.chunk_size), ", ", comparison.device_slots,
                   " slots on the device, ", comparison.host_slots, " on the host\n");
  absl::StrAppendFormat(&table, "  %-11s %9s %9s %9s %9s %9s %8s %8s %8s\n", "MiB a step", "to dev",
                        "from dev", "SSD read", "written", "all", "/optimum", "stall s", "step s");
  for (const Outcome& outcome : comparison.outcomes) {
    absl::StrAppendFormat(
        &table, "  %-11s %9.1f %9.1f %9.1f %9.1f %9.1f %8.2f %8s %8s\n", outcome.policy,
        InMebibytes(outcome.moved.to_device), InMebibytes(outcome.moved.from_device),
        InMebibytes(outcome.moved.disk_read), InMebibytes(outcome.moved.disk_written),
        InMebibytes(outcome.moved.Total()), outcome.against_optimum,
        SecondsOrNothing(outcome.stalled), SecondsOrNothing(outcome.elapsed));
  }
  return table;
}

std::string AsJson(const std::vector<Comparison>& comparisons) {
  std::vector<std::string> objects;
  for (const Comparison& comparison : comparisons) objects.push_back(AsJson(comparison));
  return absl::StrCat("[", absl::StrJoin(objects, ",\n "), "]\n");
}

}  // namespace memtide
