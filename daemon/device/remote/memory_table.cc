#include "daemon/device/remote/memory_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "base/check.h"

namespace memtide {

MemoryTable::~MemoryTable() {
  EndReplay();
  for (const auto& [memory, request] : shared_) close(request.descriptor);
}

DeviceRequest MemoryTable::Share(const char* memory, Bytes size, int fd) {
  DeviceRequest request = {DeviceCall::kShareHost};
  request.host = NewNumber();
  request.size = size;
  request.descriptor = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  MEMTIDE_CHECK(shared_.emplace(memory, request).second) << "host memory that is shared already";
  return Record(request);
}

DeviceRequest MemoryTable::Unshare(const char* memory) {
  const auto found = shared_.find(memory);
  MEMTIDE_CHECK(found != shared_.end());
  const auto added = added_.lower_bound(memory);
  MEMTIDE_CHECK(added == added_.end() || added->first >= memory + found->second.size.count());
  DeviceRequest request = {DeviceCall::kUnshareHost};
  request.host = found->second.host;
  unshared_.push_back(found->second.descriptor);
  // A request that is unsent may need it.
  if (!is_replaying_) EndReplay();
  shared_.erase(found);
  return Record(request);
}

DeviceRequest MemoryTable::Add(const char* memory, Bytes size) {
  DeviceRequest request = {DeviceCall::kAddHost};
  request.size = size;
  Locate(memory, &request);
  MEMTIDE_CHECK(added_.emplace(memory, request).second);
  return Record(request);
}

DeviceRequest MemoryTable::Remove(const char* memory) {
  DeviceRequest request = {DeviceCall::kRemoveHost};
  Locate(memory, &request);
  MEMTIDE_CHECK(added_.erase(memory) == 1);
  return Record(request);
}

void MemoryTable::Locate(const char* host, DeviceRequest* request) const {
  const auto after = shared_.upper_bound(host);
  MEMTIDE_CHECK(after != shared_.begin()) << "host memory that is not shared";
  const auto& [memory, shared] = *std::prev(after);
  request->host = shared.host;
  request->host_offset = Bytes(static_cast<uint64_t>(host - memory));
  const absl::optional<Bytes> end = CheckedAdd(request->host_offset, request->size);
  MEMTIDE_CHECK(end.has_value() && *end <= shared.size) << "host memory that is not shared";
}

void MemoryTable::Insert(const DeviceRequest& request, const DeviceAnswer& answer) {
  allocations_[request.memory] = {
      request, {request.kind, request.size, answer.descriptor, answer.ipc_handle}};
}

DeviceRequest MemoryTable::Free(uint64_t number) {
  MEMTIDE_CHECK(allocations_.erase(number) == 1);
  DeviceRequest request = {DeviceCall::kFree};
  request.memory = number;
  return Record(request);
}

void MemoryTable::BeginReplay() {
  is_replaying_ = true;
  for (const auto& [memory, request] : shared_) unsent_.push_back(request);
  for (const auto& [memory, request] : added_) unsent_.push_back(request);
  for (const auto& [number, allocation] : allocations_) unsent_.push_back(allocation.request);
}

absl::optional<DeviceRequest> MemoryTable::TakeUnsent() {
  if (unsent_.empty()) return absl::nullopt;
  DeviceRequest request = std::move(unsent_.front());
  unsent_.pop_front();
  return request;
}

void MemoryTable::Receive(const DeviceRequest& request, const DeviceAnswer& answer) {
  const auto found = allocations_.find(request.memory);
  if (request.call == DeviceCall::kAllocate && found != allocations_.end()) {
    MemoryExport& exported = found->second.exported;
    exported.ipc_handle = answer.ipc_handle;
    if (exported.fd < 0 || answer.descriptor < 0) {
      exported.fd = answer.descriptor;
      return;
    }
    // The number of the descriptor stays, as another thread may be about to duplicate it.
    dup3(answer.descriptor, exported.fd, O_CLOEXEC);
  }
  if (answer.descriptor >= 0) close(answer.descriptor);
}

void MemoryTable::EndReplay() {
  is_replaying_ = false;
  unsent_.clear();
  for (const int fd : unshared_) close(fd);
  unshared_.clear();
}

DeviceRequest MemoryTable::Record(const DeviceRequest& request) {
  if (is_replaying_) unsent_.push_back(request);
  return request;
}

}  // namespace memtide
