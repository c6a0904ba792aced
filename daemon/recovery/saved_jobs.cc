#include "daemon/recovery/saved_jobs.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/content_sums.h"
#include "base/status_macros.h"
#include "daemon/io/snapshot_files.h"
#include "daemon/recovery/journal_entry.h"
#include "journal.pb.h"

namespace memtide {
namespace {

constexpr absl::string_view kSnapshotMagic = "memtide-snapshot ";
constexpr absl::string_view kSnapshotVersion = "1\n";

absl::Status Damaged(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("is damaged: ", why));
}

// The rules of Restore, and those of a job whose machine has ended.
absl::Status Check(const Record& record) {
  if (record.jobs.size() != 1 || !record.ended.empty() || !record.freed.empty()) {
    return Damaged("it is not of one job");
  }
  const JobRecord& job = record.jobs[0];
  if (!job.regions.empty() || job.durable_every == 0) {
    return Damaged("its job cannot be durable");
  }
  std::set<uint64_t> indices;
  for (const ChunkRecord& chunk : record.chunks) {
    const bool is_new = indices.insert(chunk.chunk.value() & 0xFFFFFFFF).second;
    if (!is_new || chunk.job != job.job || chunk.host.has_value()) {
      return Damaged(absl::StrCat("its record of chunk ", chunk.chunk.value(), " is impossible"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeSnapshot(const Snapshot& snapshot) {
  Record record;
  record.jobs = {snapshot.job};
  record.chunks = snapshot.chunks;
  const std::string body = EncodeEntry(record).SerializeAsString();
  const uint64_t sum = SumOf({body.data(), body.size()});
  std::string text = absl::StrCat(kSnapshotMagic, kSnapshotVersion);
  text.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  return absl::StrCat(text, body);
}

absl::StatusOr<Snapshot> DecodeSnapshot(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, kSnapshotMagic))
    return Damaged("it does not begin as snapshots do");
  if (!absl::ConsumePrefix(&text, kSnapshotVersion)) {
    return absl::FailedPreconditionError("is of another version of memtided");
  }
  uint64_t sum;
  if (text.size() < sizeof(sum)) return Damaged("it ends early");
  std::memcpy(&sum, text.data(), sizeof(sum));
  text.remove_prefix(sizeof(sum));
  if (SumOf({text.data(), text.size()}) != sum) return Damaged("its sum is another one");
  journal::Entry entry;
  Record record;
  if (!entry.ParseFromArray(text.data(), static_cast<int>(text.size())) ||
      !DecodeEntry(entry, &record)) {
    return Damaged("it is no record");
  }
  MEMTIDE_RETURN_IF_ERROR(Check(record));
  return Snapshot{std::move(record.jobs[0]), std::move(record.chunks)};
}

absl::StatusOr<SavedJobs> LoadSavedJobs(const std::vector<std::string>& ssd_dirs) {
  SavedJobs saved;
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<SnapshotFile> files, LoadSnapshotFiles(ssd_dirs));
  for (const SnapshotFile& file : files) {
    saved.last_job = std::max(saved.last_job, file.job.value());
    absl::StatusOr<Snapshot> snapshot =
        file.text.ok() ? DecodeSnapshot(*file.text) : file.text.status();
    if (snapshot.ok() && snapshot->job.job != file.job) {
      snapshot = Damaged(absl::StrCat("it is of job ", snapshot->job.job.value()));
    }
    if (!snapshot.ok()) {
      saved.unreadable.emplace_back(snapshot.status().code(),
                                    absl::StrCat(file.text.ok() ? absl::StrCat(file.path, " ") : "",
                                                 snapshot.status().message()));
      continue;
    }
    SavedJob job{*std::move(snapshot), {}};
    for (const StoreId store : job.snapshot.job.stores) {
      for (const auto& [drive, blocks] : BlocksOfNamedStore(ssd_dirs, store)) {
        job.blocks[drive] += blocks;
      }
    }
    saved.jobs.push_back(std::move(job));
  }
  MEMTIDE_ASSIGN_OR_RETURN(const std::set<StoreId> named, NamedStores(ssd_dirs));
  for (const StoreId store : named) {
    saved.last_store = std::max(saved.last_store, store.value());
  }
  return saved;
}

}  // namespace memtide
