// MemoryTable: the memory that the process of a device knows by numbers: host memory that is shared
// with it, and device memory that it has allocated.
//
// Each change returns the request that tells the process of it. The requests of all memory that is
// there make a new process know the same: BeginReplay makes them unsent, with every change from
// then on, and they are taken one by one.
//
// Owns the descriptors of the memory. Not thread-safe: RemoteDevice has a lock for it.
#ifndef MEMTIDE_DAEMON_DEVICE_REMOTE_MEMORY_TABLE_H_
#define MEMTIDE_DAEMON_DEVICE_REMOTE_MEMORY_TABLE_H_

#include <deque>
#include <map>
#include <vector>

#include "absl/types/optional.h"
#include "base/memory_kind.h"
#include "daemon/device/remote/messages.h"

namespace memtide {

class MemoryTable {
 public:
  MemoryTable() = default;
  ~MemoryTable();
  MemoryTable(const MemoryTable&) = delete;
  MemoryTable& operator=(const MemoryTable&) = delete;

  // Host memory. REQUIRES: as Device says.
  DeviceRequest Share(const char* memory, Bytes size, int fd);
  DeviceRequest Unshare(const char* memory);
  DeviceRequest Add(const char* memory, Bytes size);
  DeviceRequest Remove(const char* memory);
  // Writes into the request where `host` is. REQUIRES: the range of the request is shared.
  void Locate(const char* host, DeviceRequest* request) const;

  // Device memory. A number is new for each request of kAllocate.
  uint64_t NewNumber() { return next_number_++; }
  void Insert(const DeviceRequest& request, const DeviceAnswer& answer);
  bool has_allocations() const { return !allocations_.empty(); }
  // The descriptor stays the table's until Free, and is the caller's from then on. REQUIRES, as
  // Free: the memory was inserted.
  const MemoryExport& Export(uint64_t number) const { return allocations_.at(number).exported; }
  DeviceRequest Free(uint64_t number);

  void BeginReplay();
  // nullopt: the new process has been sent everything.
  absl::optional<DeviceRequest> TakeUnsent();
  // The new process has answered a request that was unsent.
  void Receive(const DeviceRequest& request, const DeviceAnswer& answer);
  void EndReplay();

 private:
  struct Allocation {
    DeviceRequest request;
    MemoryExport exported;
  };

  DeviceRequest Record(const DeviceRequest& request);

  uint64_t next_number_ = 1;
  std::map<const char*, DeviceRequest> shared_, added_;  // The requests that made them so.
  std::map<uint64_t, Allocation> allocations_;           // By number.
  bool is_replaying_ = false;
  std::deque<DeviceRequest> unsent_;
  std::vector<int> unshared_;  // Descriptors that requests in unsent_ may have.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_REMOTE_MEMORY_TABLE_H_
