// StoredDisk: the part of a Disk that all of them have alike: its stores, which a StoreTable keeps.
// Thread-safe.
#ifndef MEMTIDE_DAEMON_IO_STORED_DISK_H_
#define MEMTIDE_DAEMON_IO_STORED_DISK_H_

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "daemon/io/disk.h"
#include "daemon/io/store_table.h"

namespace memtide {

class StoredDisk : public Disk {
 public:
  explicit StoredDisk(std::shared_ptr<StoreTable> stores) : stores_(std::move(stores)) {}

  std::vector<DiskDirectory> Directories() const override { return stores_->Directories(); }
  absl::Status MakeStore(StoreId store, Bytes size) override { return stores_->Make(store, size); }
  void DropStore(StoreId store) override { stores_->Drop(store); }
  std::vector<int> Files(StoreId store) const override { return stores_->Files(store); }
  absl::Status AdoptStore(StoreId store, Bytes size, StripeCounts counts,
                          std::vector<OwnedFd> files) override {
    return stores_->Adopt(store, size, counts, std::move(files));
  }
  StripeCounts StripesOf(StoreId store) const override { return stores_->StripesOf(store); }
  absl::Status SaveSnapshot(JobId job, const std::vector<StoreId>& stores,
                            absl::string_view text) override {
    return stores_->SaveSnapshot(job, stores, text);
  }
  absl::Status RemoveSnapshot(JobId job, const std::vector<StoreId>& stores) override {
    return stores_->RemoveSnapshot(job, stores);
  }
  absl::StatusOr<std::set<StoreId>> RemoveLeftSnapshots(const std::set<StoreId>& saved) override {
    return stores_->RemoveLeftSnapshots(saved);
  }
  absl::Status AdoptNamedStore(StoreId store, Bytes size, StripeCounts counts) override {
    return stores_->AdoptNamed(store, size, counts);
  }

 protected:
  // Transfers that a derived class has in flight use the files, and end before this object does.
  const std::shared_ptr<StoreTable> stores_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_STORED_DISK_H_
