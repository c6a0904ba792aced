#include "daemon/io/store_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/io/disk.h"

namespace memtide {

absl::StatusOr<std::shared_ptr<StoreTable>> StoreTable::Open(
    const std::vector<std::string>& paths) {
  std::vector<StoreDirectory> directories;
  for (const std::string& path : paths) {
    MEMTIDE_ASSIGN_OR_RETURN(StoreDirectory directory, StoreDirectory::Claim(path));
    directories.push_back(std::move(directory));
  }
  return std::make_shared<StoreTable>(std::move(directories));
}

StoreTable::StoreTable(std::vector<StoreDirectory> directories)
    : directories_(std::move(directories)), stripes_(directories_.size()) {
  MEMTIDE_CHECK(!directories_.empty());
}

std::string StoreTable::Describe() const {
  return absl::StrJoin(directories_, ", ", [](std::string* out, const StoreDirectory& directory) {
    absl::StrAppend(out, directory.path(),
                    directory.direct() ? "" : " (buffered: its file system has no direct I/O)");
  });
}

absl::Status StoreTable::Make(StoreId id, Bytes size) {
  MEMTIDE_CHECK(size.IsMultipleOf(kDiskAlignment)) << size;
  auto store = std::make_shared<Store>();
  store->size = size;
  for (size_t i = 0; i < directories_.size(); ++i) {
    // A failure closes the files made so far. They have no name, so their blocks are free then.
    MEMTIDE_ASSIGN_OR_RETURN(OwnedFd file, directories_[i].MakeFile(stripes_.FileSize(i, size)));
    store->files.push_back(std::move(file));
  }
  MutexLock lock(&mutex_);
  MEMTIDE_CHECK(stores_.emplace(id, std::move(store)).second) << "store " << id << " exists";
  return absl::OkStatus();
}

absl::Status StoreTable::Adopt(StoreId id, Bytes size, std::vector<OwnedFd> files) {
  // The number of directories decides where each stripe lies, so it must be the same as then.
  if (files.size() != directories_.size()) {
    return absl::DataLossError(absl::StrCat("a store of ", files.size(), " files, where there are ",
                                            directories_.size(), " directories"));
  }
  for (size_t i = 0; i < directories_.size(); ++i) {
    MEMTIDE_RETURN_IF_ERROR(directories_[i].Adopt(files[i].get(), stripes_.FileSize(i, size)));
  }
  auto store = std::make_shared<Store>();
  store->size = size;
  store->files = std::move(files);
  MutexLock lock(&mutex_);
  MEMTIDE_CHECK(stores_.emplace(id, std::move(store)).second) << "store " << id << " exists";
  return absl::OkStatus();
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

}  // namespace memtide
