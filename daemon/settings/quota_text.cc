#include "daemon/settings/quota_text.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/bytes.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

// Linux has no longer names of users and groups.
constexpr size_t kLongestName = 256;

absl::Status SetSubject(const std::string& subject, const Accounts& accounts, Quota* quota) {
  quota->name = subject;
  if (subject == "default") {
    quota->kind = Quota::Kind::kDefault;
    return absl::OkStatus();
  }
  absl::string_view name = subject;
  const bool is_user = absl::ConsumePrefix(&name, "user:");
  if ((!is_user && !absl::ConsumePrefix(&name, "group:")) || name.empty() ||
      name.size() > kLongestName || name.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("subject: \"", subject.substr(0, kLongestName),
                     "\"; must be \"user:NAME\", \"group:NAME\" or \"default\""));
  }
  quota->kind = is_user ? Quota::Kind::kUser : Quota::Kind::kGroup;
  absl::optional<uint32_t> id = (is_user ? accounts.uid_of : accounts.gid_of)(std::string(name));
  // The largest number stands for none.
  uint32_t number = 0;
  if (!id && absl::SimpleAtoi(name, &number) && number != std::numeric_limits<uint32_t>::max()) {
    id = number;
  }
  if (!id) {
    return absl::NotFoundError(absl::StrCat("subject: the machine has no ",
                                            is_user ? "user" : "group", " \"", std::string(name),
                                            "\"; a number needs no name"));
  }
  quota->id = *id;
  return absl::OkStatus();
}

absl::Status CheckWrites(const v1::Quota& proto) {
  const Bytes per_day(proto.ssd_written_per_day_bytes());
  if (!proto.has_ssd_written_per_day_bytes() || per_day >= kLeastWrittenPerDay) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "ssd_written_per_day_bytes: ", FormatBytes(per_day), "; at least ",
      FormatBytes(kLeastWrittenPerDay), ", as the largest chunk could else not be written"));
}

template <typename T>
absl::optional<T> If(bool has, T value) {
  return has ? absl::make_optional(value) : absl::nullopt;
}

}  // namespace

absl::StatusOr<Quota> ToQuota(const v1::Quota& proto, const Accounts& accounts) {
  Quota quota;
  MEMTIDE_RETURN_IF_ERROR(SetSubject(proto.subject(), accounts, &quota));
  MEMTIDE_RETURN_IF_ERROR(CheckWrites(proto));
  Limited& most = quota.most;
  most.bytes[static_cast<int>(Tier::kDevice)] =
      If(proto.has_device_bytes(), Bytes(proto.device_bytes()));
  most.bytes[static_cast<int>(Tier::kHost)] = If(proto.has_host_bytes(), Bytes(proto.host_bytes()));
  most.bytes[static_cast<int>(Tier::kSsd)] = If(proto.has_ssd_bytes(), Bytes(proto.ssd_bytes()));
  most.jobs = If(proto.has_jobs(), proto.jobs());
  most.lingering = If(proto.has_lingering_bytes(), Bytes(proto.lingering_bytes()));
  most.time_to_live =
      If(proto.has_lingering_seconds(), Duration(std::chrono::seconds(proto.lingering_seconds())));
  most.written_per_day =
      If(proto.has_ssd_written_per_day_bytes(), Bytes(proto.ssd_written_per_day_bytes()));
  return quota;
}

v1::Quota ToProto(const Quota& quota) {
  v1::Quota proto;
  proto.set_subject(quota.name);
  const Limited& most = quota.most;
  if (const auto& bytes = most.bytes[static_cast<int>(Tier::kDevice)]) {
    proto.set_device_bytes(bytes->count());
  }
  if (const auto& bytes = most.bytes[static_cast<int>(Tier::kHost)]) {
    proto.set_host_bytes(bytes->count());
  }
  if (const auto& bytes = most.bytes[static_cast<int>(Tier::kSsd)]) {
    proto.set_ssd_bytes(bytes->count());
  }
  if (most.jobs) proto.set_jobs(*most.jobs);
  if (most.lingering) proto.set_lingering_bytes(most.lingering->count());
  if (most.time_to_live) {
    proto.set_lingering_seconds(static_cast<uint32_t>(
        std::chrono::duration_cast<std::chrono::seconds>(*most.time_to_live).count()));
  }
  if (most.written_per_day) proto.set_ssd_written_per_day_bytes(most.written_per_day->count());
  return proto;
}

absl::Status ClearLimit(const std::string& field, Limited* most) {
  if (field == "device_bytes") {
    most->bytes[static_cast<int>(Tier::kDevice)].reset();
  } else if (field == "host_bytes") {
    most->bytes[static_cast<int>(Tier::kHost)].reset();
  } else if (field == "ssd_bytes") {
    most->bytes[static_cast<int>(Tier::kSsd)].reset();
  } else if (field == "jobs") {
    most->jobs.reset();
  } else if (field == "lingering_bytes") {
    most->lingering.reset();
  } else if (field == "lingering_seconds") {
    most->time_to_live.reset();
  } else if (field == "ssd_written_per_day_bytes") {
    most->written_per_day.reset();
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("unlimited: \"", field.substr(0, kLongestName), "\" is no limit of a quota"));
  }
  return absl::OkStatus();
}

bool IsUnlimited(const Limited& most) {
  for (const absl::optional<Bytes>& bytes : most.bytes) {
    if (bytes) return false;
  }
  return !most.jobs && !most.lingering && !most.time_to_live && !most.written_per_day;
}

}  // namespace memtide
