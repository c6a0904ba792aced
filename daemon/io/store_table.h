// StoreTable: the stores that exist, each with one file per directory.
//
// Shared by all implementations of Disk: making, finding and dropping stores. A dropped store lives
// until the last shared_ptr that Find returned is gone; then its blocks are freed. Each store keeps
// the stripes that it was made with.
//
// Thread safety: thread-safe.
#ifndef MEMTIDE_DAEMON_IO_STORE_TABLE_H_
#define MEMTIDE_DAEMON_IO_STORE_TABLE_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "daemon/io/disk.h"
#include "daemon/io/owned_fd.h"
#include "daemon/io/store_directory.h"
#include "daemon/io/stripes.h"

namespace memtide {

struct Store {
  Bytes size;
  std::shared_ptr<const Stripes> stripes;
  std::vector<OwnedFd> files;  // By directory.
};

class StoreTable {
 public:
  // Claims every directory, or none, and finds the drives by the device numbers of their file
  // systems. Stores are striped evenly until StripeFromNowOn. The errors of CheckSet
  // (snapshot_set.h). REQUIRES: paths is not empty.
  static absl::StatusOr<std::shared_ptr<StoreTable>> Open(const std::vector<std::string>& paths);

  // `drives`: the drive of each directory, numbered from zero.
  StoreTable(std::vector<StoreDirectory> directories, std::vector<size_t> drives);

  const std::vector<StoreDirectory>& directories() const { return directories_; }
  const std::vector<size_t>& drives() const { return drives_; }
  size_t drive_count() const { return drive_count_; }
  // "/a, /b (buffered: its file system has no direct I/O)".
  std::string Describe() const;
  std::vector<DiskDirectory> Directories() const;

  // Stripes the stores that are made later like this. `speeds` is for Directories(): that of its
  // drive, by directory. REQUIRES: one count and one speed for each directory.
  void StripeFromNowOn(StripeCounts counts, std::vector<double> speeds);

  absl::Status Make(StoreId id, Bytes size);
  // A store that has all its bytes in one directory.
  absl::Status MakeIn(size_t directory, StoreId id, Bytes size);
  // Adopts the files of a store that an earlier process made in as many directories, with these
  // stripes.
  absl::Status Adopt(StoreId id, Bytes size, const StripeCounts& counts,
                     std::vector<OwnedFd> files);
  // The same with files that have names (snapshot_files.h).
  absl::Status AdoptNamed(StoreId id, Bytes size, const StripeCounts& counts);
  // REQUIRES: the stores exist.
  absl::Status SaveSnapshot(JobId job, const std::vector<StoreId>& stores,
                            absl::string_view text) const;
  absl::Status RemoveSnapshot(JobId job, const std::vector<StoreId>& stores) const;
  absl::StatusOr<std::set<StoreId>> RemoveLeftSnapshots(const std::set<StoreId>& saved) const;
  // REQUIRES: the store exists.
  void Drop(StoreId id);
  std::shared_ptr<const Store> Find(StoreId id) const;
  std::vector<int> Files(StoreId id) const;

  // Empty if there is no such store.
  StripeCounts StripesOf(StoreId id) const;

 private:
  absl::Status MakeLike(std::shared_ptr<const Stripes> stripes, StoreId id, Bytes size);
  void Add(StoreId id, std::shared_ptr<const Store> store);
  std::vector<std::string> Paths() const;
  // The same. FAILED_PRECONDITION: one of them leads to another directory by now.
  absl::StatusOr<std::vector<std::string>> CheckedPaths() const;

  const std::vector<StoreDirectory> directories_;
  const std::vector<size_t> drives_;
  const size_t drive_count_;
  mutable Mutex mutex_;
  std::shared_ptr<const Stripes> stripes_ ABSL_GUARDED_BY(mutex_);  // For stores made now.
  std::vector<double> speeds_ ABSL_GUARDED_BY(mutex_);
  std::map<StoreId, std::shared_ptr<const Store>> stores_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_STORE_TABLE_H_
