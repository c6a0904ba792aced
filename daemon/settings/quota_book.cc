#include "daemon/settings/quota_book.h"

#include <google/protobuf/text_format.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/io/whole_file.h"
#include "daemon/settings/quota_text.h"
#include "memtide/v1/config.pb.h"

namespace memtide {
namespace {

constexpr char kFile[] = "quotas.textproto";

// Names may be given to others while the daemon does not run.
std::string ByNumber(const Quota& quota) {
  return quota.kind == Quota::Kind::kDefault
             ? "default"
             : absl::StrCat(quota.kind == Quota::Kind::kUser ? "user:" : "group:", quota.id);
}

}  // namespace

QuotaBook::QuotaBook(std::vector<Quota> configured, std::string directory, Accounts accounts,
                     size_t most)
    : directory_(std::move(directory)), accounts_(std::move(accounts)), most_(most) {
  for (Quota& quota : configured) configured_[SubjectOf(quota)] = std::move(quota);
}

absl::Status QuotaBook::Load() {
  const std::string path = absl::StrCat(directory_, "/", kFile);
  std::ifstream file(path);
  if (directory_.empty() || !file) return absl::NotFoundError("no quota was set before");
  std::ostringstream text;
  text << file.rdbuf();
  v1::NodeConfig config;
  if (!file || !google::protobuf::TextFormat::ParseFromString(text.str(), &config)) {
    return absl::DataLossError(
        absl::StrCat("the quotas that administrators set do not hold: \"", path,
                     "\" cannot be read. Mend it and restart the daemon, or set them again"));
  }
  Quotas set;
  for (const v1::Quota& proto : config.quotas()) {
    MEMTIDE_ASSIGN_OR_RETURN(Quota quota, ToQuota(proto, accounts_));
    set[SubjectOf(quota)] = std::move(quota);
  }
  MutexLock lock(&mutex_);
  set_ = std::move(set);
  return absl::OkStatus();
}

QuotaBook::Quotas QuotaBook::Merged(const Quotas& set) const {
  Quotas merged = set;
  merged.insert(configured_.begin(), configured_.end());
  return merged;
}

std::vector<Quota> QuotaBook::All() {
  MutexLock lock(&mutex_);
  std::vector<Quota> all;
  for (const auto& [subject, quota] : Merged(set_)) all.push_back(quota);
  return all;
}

absl::StatusOr<QuotaBook::Change> QuotaBook::Set(const v1::SetQuotaRequest& request) {
  MEMTIDE_ASSIGN_OR_RETURN(const Quota wanted, ToQuota(request.quota(), accounts_));
  MutexLock lock(&mutex_);
  Quotas set = set_;
  const Quotas before = Merged(set_);
  const auto old = before.find(SubjectOf(wanted));
  Quota quota = old == before.end() ? Quota{wanted.kind, wanted.id} : old->second;
  quota.name = wanted.name;
  for (int tier = 0; tier < kTiers; ++tier) {
    if (wanted.most.bytes[tier]) quota.most.bytes[tier] = wanted.most.bytes[tier];
  }
  if (wanted.most.jobs) quota.most.jobs = wanted.most.jobs;
  if (wanted.most.lingering) quota.most.lingering = wanted.most.lingering;
  if (wanted.most.time_to_live) quota.most.time_to_live = wanted.most.time_to_live;
  if (wanted.most.written_per_day) quota.most.written_per_day = wanted.most.written_per_day;
  for (const std::string& field : request.unlimited()) {
    MEMTIDE_RETURN_IF_ERROR(ClearLimit(field, &quota.most));
  }
  set[SubjectOf(quota)] = quota;
  if (Merged(set).size() > most_) {
    return absl::InvalidArgumentError(
        absl::StrCat("subject: there are ", most_, " quotas, and there may be no more"));
  }
  return Keep(std::move(set), std::move(quota));
}

absl::StatusOr<QuotaBook::Change> QuotaBook::Clear(const std::string& subject) {
  v1::Quota named;
  named.set_subject(subject);
  MEMTIDE_ASSIGN_OR_RETURN(Quota quota, ToQuota(named, accounts_));
  MutexLock lock(&mutex_);
  Quotas set = set_;
  if (set.erase(SubjectOf(quota)) == 0) {
    return absl::NotFoundError(absl::StrCat(
        "subject: no quota of \"", subject, "\" was set while the daemon ran",
        configured_.count(SubjectOf(quota)) > 0 ? "; it has one in the daemon's configuration"
                                                : ""));
  }
  const auto configured = configured_.find(SubjectOf(quota));
  if (configured != configured_.end()) quota = configured->second;
  return Keep(std::move(set), std::move(quota));
}

absl::StatusOr<QuotaBook::Change> QuotaBook::Keep(Quotas set, Quota changed) {
  if (!directory_.empty()) MEMTIDE_RETURN_IF_ERROR(Write(set));
  set_ = std::move(set);
  Change change;
  change.number = ++number_;
  for (const auto& [subject, quota] : Merged(set_)) change.quotas.push_back(quota);
  change.quota = std::move(changed);
  change.outlives_daemon = !directory_.empty();
  return change;
}

absl::Status QuotaBook::Write(const Quotas& set) const {
  v1::NodeConfig config;
  for (const auto& [subject, quota] : set) {
    *config.add_quotas() = ToProto(quota);
    config.mutable_quotas(config.quotas_size() - 1)->set_subject(ByNumber(quota));
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(config, &text);
  const absl::Status replaced = ReplaceFile(directory_, kFile, text);
  if (replaced.ok()) return replaced;
  return absl::UnavailableError(
      absl::StrCat("the quota cannot be kept, and is not set: ", replaced.message()));
}

}  // namespace memtide
