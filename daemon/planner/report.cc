#include "daemon/planner/report.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace memtide {

namespace {

using google::protobuf::Struct;

double InMebibytes(Bytes bytes) { return static_cast<double>(bytes.count()) / (1 << 20); }

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string SecondsOrNothing(absl::optional<Duration> duration) {
  return duration.has_value() ? absl::StrFormat("%.3f", Seconds(*duration)) : "";
}

void Set(const char* name, double value, Struct* object) {
  (*object->mutable_fields())[name].set_number_value(value);
}

void Set(const char* name, const std::string& value, Struct* object) {
  (*object->mutable_fields())[name].set_string_value(value);
}

void Fill(const Outcome& outcome, Struct* object) {
  Set("policy", outcome.policy, object);
  const auto set_bytes = [object](const char* name, Bytes bytes) {
    Set(name, static_cast<double>(bytes.count()), object);
  };
  set_bytes("to_device_bytes", outcome.moved.to_device);
  set_bytes("from_device_bytes", outcome.moved.from_device);
  set_bytes("ssd_read_bytes", outcome.moved.disk_read);
  set_bytes("ssd_written_bytes", outcome.moved.disk_written);
  set_bytes("moved_bytes", outcome.moved.Total());
  Set("against_optimum", outcome.against_optimum, object);
  if (outcome.stalled.has_value()) Set("stalled_seconds", Seconds(*outcome.stalled), object);
  if (outcome.elapsed.has_value()) Set("seconds", Seconds(*outcome.elapsed), object);
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
  google::protobuf::ListValue list;
  for (const Comparison& comparison : comparisons) {
    Struct* object = list.add_values()->mutable_struct_value();
    Set("trace", comparison.trace, object);
    Set("made_by", comparison.made_by, object);
    Set("chunk_size_bytes", static_cast<double>(comparison.chunk_size.count()), object);
    Set("chunks", comparison.chunks, object);
    Set("device_slots", comparison.device_slots, object);
    Set("host_slots", comparison.host_slots, object);
    Set("iterations", static_cast<double>(comparison.iterations), object);
    auto* outcomes = (*object->mutable_fields())["policies"].mutable_list_value();
    for (const Outcome& outcome : comparison.outcomes) {
      Fill(outcome, outcomes->add_values()->mutable_struct_value());
    }
  }
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  std::string json;
  MEMTIDE_CHECK(google::protobuf::util::MessageToJsonString(list, &json, print).ok());
  return json;
}

}  // namespace memtide
