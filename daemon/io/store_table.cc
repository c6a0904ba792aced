#include "daemon/io/store_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/io/snapshot_files.h"
#include "daemon/io/snapshot_set.h"

namespace memtide {
namespace {

// Numbers the drives in the order of their first directories.
std::vector<size_t> DrivesOf(const std::vector<StoreDirectory>& directories) {
  std::map<uint64_t, size_t> numbers;
  std::vector<size_t> drives;
  for (const StoreDirectory& directory : directories) {
    drives.push_back(numbers.emplace(directory.drive(), numbers.size()).first->second);
  }
  return drives;
}

}  // namespace

absl::StatusOr<std::shared_ptr<StoreTable>> StoreTable::Open(
    const std::vector<std::string>& paths) {
  std::vector<StoreDirectory> directories;
  for (const std::string& path : paths) {
    MEMTIDE_ASSIGN_OR_RETURN(StoreDirectory directory, StoreDirectory::Claim(path));
    directories.push_back(std::move(directory));
  }
  // No other daemon changes what the directories hold from here on.
  MEMTIDE_RETURN_IF_ERROR(CheckSet(paths));
  std::vector<size_t> drives = DrivesOf(directories);
  return std::make_shared<StoreTable>(std::move(directories), std::move(drives));
}

StoreTable::StoreTable(std::vector<StoreDirectory> directories, std::vector<size_t> drives)
    : directories_(std::move(directories)),
      drives_(std::move(drives)),
      drive_count_(drives_.empty() ? 0 : *std::max_element(drives_.begin(), drives_.end()) + 1),
      stripes_(std::make_shared<const Stripes>(Stripes::Equal(directories_.size()))),
      speeds_(directories_.size()) {
  MEMTIDE_CHECK(drives_.size() == directories_.size()) << drives_.size() << " drives";
}

std::string StoreTable::Describe() const {
  return absl::StrJoin(directories_, ", ", [](std::string* out, const StoreDirectory& directory) {
    absl::StrAppend(out, directory.path(),
                    directory.direct() ? "" : " (buffered: its file system has no direct I/O)");
  });
}

std::vector<DiskDirectory> StoreTable::Directories() const {
  MutexLock lock(&mutex_);
  std::vector<DiskDirectory> all;
  for (size_t i = 0; i < directories_.size(); ++i) {
    all.push_back({directories_[i].path(), speeds_[i], stripes_->counts()[i]});
  }
  return all;
}

void StoreTable::StripeFromNowOn(StripeCounts counts, std::vector<double> speeds) {
  MEMTIDE_CHECK(counts.size() == directories_.size() && speeds.size() == directories_.size())
      << counts.size() << " counts and " << speeds.size() << " speeds";
  auto stripes = std::make_shared<const Stripes>(std::move(counts));
  MutexLock lock(&mutex_);
  stripes_ = std::move(stripes);
  speeds_ = std::move(speeds);
}

absl::Status StoreTable::Make(StoreId id, Bytes size) {
  std::shared_ptr<const Stripes> stripes;
  {
    MutexLock lock(&mutex_);
    stripes = stripes_;
  }
  return MakeLike(std::move(stripes), id, size);
}

absl::Status StoreTable::MakeIn(size_t directory, StoreId id, Bytes size) {
  StripeCounts counts(directories_.size());
  counts[directory] = 1;
  return MakeLike(std::make_shared<const Stripes>(std::move(counts)), id, size);
}

absl::Status StoreTable::MakeLike(std::shared_ptr<const Stripes> stripes, StoreId id, Bytes size) {
  MEMTIDE_CHECK(size.IsMultipleOf(kDiskAlignment)) << size;
  auto store = std::make_shared<Store>();
  store->size = size;
  for (size_t i = 0; i < directories_.size(); ++i) {
    // A failure closes the files made so far. They have no name, so their blocks are free then.
    MEMTIDE_ASSIGN_OR_RETURN(OwnedFd file, directories_[i].MakeFile(stripes->FileSize(i, size)));
    store->files.push_back(std::move(file));
  }
  store->stripes = std::move(stripes);
  Add(id, std::move(store));
  return absl::OkStatus();
}

absl::Status StoreTable::Adopt(StoreId id, Bytes size, const StripeCounts& counts,
                               std::vector<OwnedFd> files) {
  if (files.size() != directories_.size()) {
    return absl::DataLossError(absl::StrCat("a store of ", files.size(), " files, where there are ",
                                            directories_.size(), " directories"));
  }
  // The record of an earlier process may be damaged.
  if (counts.size() != files.size() || !Stripes::Valid(counts)) {
    return absl::DataLossError(absl::StrCat("a store of ", files.size(), " files with stripes ",
                                            absl::StrJoin(counts, ":")));
  }
  auto store = std::make_shared<Store>();
  store->size = size;
  store->stripes = std::make_shared<const Stripes>(counts);
  for (size_t i = 0; i < directories_.size(); ++i) {
    MEMTIDE_RETURN_IF_ERROR(
        directories_[i].Adopt(files[i].get(), store->stripes->FileSize(i, size)));
  }
  store->files = std::move(files);
  Add(id, std::move(store));
  return absl::OkStatus();
}

absl::Status StoreTable::AdoptNamed(StoreId id, Bytes size, const StripeCounts& counts) {
  std::vector<bool> direct;
  for (const StoreDirectory& directory : directories_) direct.push_back(directory.direct());
  MEMTIDE_ASSIGN_OR_RETURN(std::vector<OwnedFd> files, OpenNamedStore(Paths(), direct, id));
  return Adopt(id, size, counts, std::move(files));
}

absl::Status StoreTable::SaveSnapshot(JobId job, const std::vector<StoreId>& stores,
                                      absl::string_view text) const {
  std::map<StoreId, std::vector<int>> files;
  for (const StoreId store : stores) files[store] = Files(store);
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> paths, CheckedPaths());
  return SaveSnapshotFile(paths, job, files, text);
}

absl::Status StoreTable::RemoveSnapshot(JobId job, const std::vector<StoreId>& stores) const {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> paths, CheckedPaths());
  return RemoveSnapshotFile(paths, job, stores);
}

absl::StatusOr<std::set<StoreId>> StoreTable::RemoveLeftSnapshots(
    const std::set<StoreId>& saved) const {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> paths, CheckedPaths());
  return RemoveLeftSnapshotFiles(paths, saved);
}

absl::StatusOr<std::vector<std::string>> StoreTable::CheckedPaths() const {
  for (const StoreDirectory& directory : directories_) {
    MEMTIDE_RETURN_IF_ERROR(directory.CheckPath());
  }
  return Paths();
}

std::vector<std::string> StoreTable::Paths() const {
  std::vector<std::string> paths;
  for (const StoreDirectory& directory : directories_) paths.push_back(directory.path());
  return paths;
}

void StoreTable::Add(StoreId id, std::shared_ptr<const Store> store) {
  MutexLock lock(&mutex_);
  MEMTIDE_CHECK(stores_.emplace(id, std::move(store)).second) << "store " << id << " exists";
}

void StoreTable::Drop(StoreId id) {
  std::shared_ptr<const Store> store;  // Closed after the lock: freeing blocks takes time.
  MutexLock lock(&mutex_);
  const auto found = stores_.find(id);
  MEMTIDE_CHECK(found != stores_.end()) << "store " << id;
  store = std::move(found->second);
  stores_.erase(found);
}

std::shared_ptr<const Store> StoreTable::Find(StoreId id) const {
  MutexLock lock(&mutex_);
  const auto found = stores_.find(id);
  MEMTIDE_CHECK(found != stores_.end()) << "store " << id;
  return found->second;
}

std::vector<int> StoreTable::Files(StoreId id) const {
  std::vector<int> files;
  for (const OwnedFd& file : Find(id)->files) files.push_back(file.get());
  return files;
}

StripeCounts StoreTable::StripesOf(StoreId id) const {
  MutexLock lock(&mutex_);
  const auto found = stores_.find(id);
  return found == stores_.end() ? StripeCounts() : found->second->stripes->counts();
}

}  // namespace memtide
