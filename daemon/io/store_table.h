// StoreTable: the stores that exist, each with one file per directory.
//
// Shared by all implementations of Disk: making, finding and dropping stores. A dropped store lives
// until the last shared_ptr that Find returned is gone; then its blocks are freed.
//
// Thread safety: thread-safe.
#ifndef MEMTIDE_DAEMON_IO_STORE_TABLE_H_
#define MEMTIDE_DAEMON_IO_STORE_TABLE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "daemon/io/owned_fd.h"
#include "daemon/io/store_directory.h"
#include "daemon/io/stripes.h"

namespace memtide {

struct Store {
  Bytes size;
  std::vector<OwnedFd> files;  // By directory.
};

class StoreTable {
 public:
  // Claims every directory, or none. REQUIRES: paths is not empty.
  static absl::StatusOr<std::shared_ptr<StoreTable>> Open(const std::vector<std::string>& paths);

  explicit StoreTable(std::vector<StoreDirectory> directories);

  const std::vector<StoreDirectory>& directories() const { return directories_; }
  const Stripes& stripes() const { return stripes_; }
  // "/a, /b (buffered: its file system has no direct I/O)".
  std::string Describe() const;

  absl::Status Make(StoreId id, Bytes size);
  // Adopts the files of a store that an earlier process made in the same directories.
  absl::Status Adopt(StoreId id, Bytes size, std::vector<OwnedFd> files);
  // REQUIRES (all): the store exists.
  void Drop(StoreId id);
  std::shared_ptr<const Store> Find(StoreId id) const;
  std::vector<int> Files(StoreId id) const;

 private:
  const std::vector<StoreDirectory> directories_;
  const Stripes stripes_;
  mutable Mutex mutex_;
  std::map<StoreId, std::shared_ptr<const Store>> stores_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_STORE_TABLE_H_
