#include "daemon/device/remote/device_server.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/numa.h"
#include "base/shared_memory.h"
#include "base/status_macros.h"
#include "daemon/device/remote/messages.h"

namespace memtide {
namespace {

// The memory that calls name. A call holds what it uses for as long as it runs.
class DeviceServer {
 public:
  explicit DeviceServer(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  const Device& device() const { return *device_; }

  // Serves one channel until the daemon closes it.
  void Serve(int channel) {
    RunOn(device_->placement().cpus);
    for (;;) {
      absl::StatusOr<HelperPacket> packet = ReceivePacket(channel, kForever);
      if (!packet.ok()) break;
      absl::StatusOr<DeviceRequest> request = DecodeRequest(*std::move(packet));
      DeviceAnswer answer;
      // DATA_LOSS would be that of the device's memory.
      answer.status = request.ok() ? Handle(*request, &answer)
                                   : absl::InternalError(request.status().message());
      answer.host_memory = device_->host_memory();
      if (!SendPacket(channel, Encode(answer)).ok()) break;
    }
    close(channel);
  }

 private:
  using Memory = std::shared_ptr<DeviceMemory>;
  using Host = std::shared_ptr<SharedMemory>;

  absl::Status Handle(const DeviceRequest& request, DeviceAnswer* answer);
  absl::Status Allocate(const DeviceRequest& request, DeviceAnswer* answer);
  absl::Status ShareHost(const DeviceRequest& request);
  absl::Status Copy(const DeviceRequest& request);
  absl::StatusOr<Memory> FindMemory(const DeviceRequest& request);
  // With a size: the range that the request names is inside.
  absl::StatusOr<Host> FindHost(const DeviceRequest& request);

  const std::unique_ptr<Device> device_;
  Mutex mutex_;
  std::map<uint64_t, Memory> memories_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Host> hosts_ ABSL_GUARDED_BY(mutex_);
};

bool IsInside(Bytes offset, Bytes size, Bytes whole) {
  const absl::optional<Bytes> end = CheckedAdd(offset, size);
  return end.has_value() && *end <= whole;
}

absl::StatusOr<DeviceServer::Memory> DeviceServer::FindMemory(const DeviceRequest& request) {
  const MutexLock lock(&mutex_);
  const auto found = memories_.find(request.memory);
  if (found != memories_.end() && IsInside(request.offset, request.size, found->second->size())) {
    return found->second;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the device's process has no such range of memory ", request.memory));
}

absl::StatusOr<DeviceServer::Host> DeviceServer::FindHost(const DeviceRequest& request) {
  const MutexLock lock(&mutex_);
  const auto found = hosts_.find(request.host);
  if (found != hosts_.end() && IsInside(request.host_offset, request.size, found->second->size())) {
    return found->second;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the device's process has no such range of host memory ", request.host));
}

absl::Status DeviceServer::Handle(const DeviceRequest& request, DeviceAnswer* answer) {
  switch (request.call) {
    case DeviceCall::kAllocate:
      return Allocate(request, answer);
    case DeviceCall::kFree: {
      MEMTIDE_ASSIGN_OR_RETURN(Memory memory, FindMemory(request));
      {
        const MutexLock lock(&mutex_);
        memories_.erase(request.memory);
      }
      memory.reset();
      return absl::OkStatus();
    }
    case DeviceCall::kShareHost:
      return ShareHost(request);
    case DeviceCall::kUnshareHost: {
      MEMTIDE_ASSIGN_OR_RETURN(const Host host, FindHost(request));
      const MutexLock lock(&mutex_);
      hosts_.erase(request.host);
      return absl::OkStatus();
    }
    case DeviceCall::kAddHost: {
      MEMTIDE_ASSIGN_OR_RETURN(const Host host, FindHost(request));
      device_->AddHostMemory(host->data() + request.host_offset.count(), request.size);
      return absl::OkStatus();
    }
    case DeviceCall::kRemoveHost: {
      MEMTIDE_ASSIGN_OR_RETURN(const Host host, FindHost(request));
      device_->RemoveHostMemory(host->data() + request.host_offset.count());
      return absl::OkStatus();
    }
    case DeviceCall::kCopyIn:
    case DeviceCall::kCopyOut:
      return Copy(request);
    case DeviceCall::kZero: {
      MEMTIDE_ASSIGN_OR_RETURN(const Memory memory, FindMemory(request));
      return device_->Zero(*memory, request.offset, request.size);
    }
  }
  return absl::InvalidArgumentError("an unknown call");
}

absl::Status DeviceServer::Allocate(const DeviceRequest& request, DeviceAnswer* answer) {
  constexpr Bytes kMultiple = MiB(2);
  const std::vector<MemoryKind> kinds = device_->kinds();
  if (std::count(kinds.begin(), kinds.end(), request.kind) == 0 || request.size.IsZero() ||
      !request.size.IsMultipleOf(kMultiple)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the device has no memory of ", FormatBytes(request.size), " that passes in this way"));
  }
  MEMTIDE_ASSIGN_OR_RETURN(Memory memory,
                           device_->Allocate(request.text, request.size, request.kind));
  const MemoryExport exported = memory->Export();
  {
    const MutexLock lock(&mutex_);
    if (!memories_.emplace(request.memory, std::move(memory)).second) {
      return absl::InvalidArgumentError(absl::StrCat("there is a memory ", request.memory));
    }
  }
  answer->ipc_handle = exported.ipc_handle;
  answer->descriptor = exported.fd;
  return absl::OkStatus();
}

absl::Status DeviceServer::ShareHost(const DeviceRequest& request) {
  MEMTIDE_ASSIGN_OR_RETURN(SharedMemory shared,
                           SharedMemory::Borrow(request.descriptor, request.size));
  const MutexLock lock(&mutex_);
  if (hosts_.emplace(request.host, std::make_shared<SharedMemory>(std::move(shared))).second) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("there is a host memory ", request.host));
}

absl::Status DeviceServer::Copy(const DeviceRequest& request) {
  MEMTIDE_ASSIGN_OR_RETURN(const Memory memory, FindMemory(request));
  MEMTIDE_ASSIGN_OR_RETURN(const Host host, FindHost(request));
  char* const at = host->data() + request.host_offset.count();
  if (request.call == DeviceCall::kCopyIn) {
    return device_->CopyIn(*memory, request.offset, at, request.size);
  }
  return device_->CopyOut(*memory, request.offset, at, request.size);
}

void Notify(DeviceNotice::What what, const absl::Status& status) {
  DeviceNotice notice;
  notice.what = what;
  notice.code = status.code();
  notice.text = std::string(status.message());
  // A daemon that has ended reads no notices.
  SendPacket(kHelperSocket, Encode(notice)).IgnoreError();
}

void NotifyOpened(const Device& device) {
  DeviceNotice notice;
  notice.what = DeviceNotice::What::kOpened;
  notice.text = device.Describe();
  notice.kinds = device.kinds();
  notice.copies_in_flight = static_cast<uint32_t>(device.copies_in_flight());
  notice.maps_under_work = device.maps_under_work();
  notice.host_memory = device.host_memory();
  // Also where no host memory is placed yet.
  notice.host_memory.numa_node = device.placement().node;
  SendPacket(kHelperSocket, Encode(notice)).IgnoreError();
}

}  // namespace

void ServeDevice(const OpenDevice& open) {
  // Ctrl-C reaches all processes of a terminal. The daemon decides when this one ends.
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  DeviceReports reports;
  reports.warn = [](const std::string& line) {
    DeviceNotice notice;
    notice.text = line;
    SendPacket(kHelperSocket, Encode(notice)).IgnoreError();
  };
  // Without destructors: they would wait for calls that hang in the driver, and the kernel frees
  // all that the process has.
  reports.lost = [](const absl::Status& why) {
    Notify(DeviceNotice::What::kLost, why);
    _exit(1);
  };
  absl::StatusOr<std::unique_ptr<Device>> device = open(reports);
  if (!device.ok()) {
    Notify(DeviceNotice::What::kFailed, device.status());
    _exit(1);
  }
  // tidy(raw-new): threads use it until the process ends.
  DeviceServer& server = *new DeviceServer(*std::move(device));
  NotifyOpened(server.device());
  for (;;) {
    const absl::StatusOr<HelperPacket> packet = ReceivePacket(kHelperSocket, kForever);
    if (!packet.ok()) _exit(0);
    if (packet->descriptor < 0) continue;
    std::thread([&server, channel = packet->descriptor] { server.Serve(channel); }).detach();
  }
}

}  // namespace memtide
