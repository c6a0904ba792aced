#include "daemon/device/remote/remote_device.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide {

// The memory that a caller of Allocate owns.
class RemoteDevice::Lent : public DeviceMemory {
 public:
  Lent(RemoteDevice* device, uint64_t number, Bytes size)
      : device_(device), number_(number), size_(size) {}
  ~Lent() override { device_->Release(number_); }

  uint64_t number() const { return number_; }
  Bytes size() const override { return size_; }
  MemoryExport Export() const override {
    const MutexLock lock(&device_->mutex_);
    return device_->memory_.Export(number_);
  }

 private:
  RemoteDevice* const device_;
  const uint64_t number_;
  const Bytes size_;
};

absl::StatusOr<std::unique_ptr<RemoteDevice>> RemoteDevice::Open(
    const RemoteDeviceOptions& options) {
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceProcess> process,
                           DeviceProcess::Start(options.process));
  return std::unique_ptr<RemoteDevice>(new RemoteDevice(options, std::move(process)));
}

RemoteDevice::RemoteDevice(const RemoteDeviceOptions& options,
                           std::unique_ptr<DeviceProcess> process)
    : options_(options),
      opened_(process->opened()),
      placement_(NumaTopology().On(opened_.host_memory.numa_node)),
      process_(std::move(process)),
      watched_(process_),
      host_memory_(opened_.host_memory) {
  host_memory_.numa_node = placement_.node;
  thread_ = std::thread([this] { Run(); });
}

RemoteDevice::~RemoteDevice() {
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_CHECK(!memory_.has_allocations()) << "memory is still there";
    Close();
    watched_->End("the daemon ends");
    if (starting_ != nullptr) starting_->End("the daemon ends");
  }
  thread_.join();
}

void RemoteDevice::Close() {
  is_closing_ = true;
  watched_->Leave();
  if (starting_ != nullptr) starting_->Leave();
  changed_.SignalAll();
}

HostMemoryUse RemoteDevice::host_memory() const {
  const MutexLock lock(&mutex_);
  return host_memory_;
}

DeviceHealth RemoteDevice::health() const {
  const MutexLock lock(&mutex_);
  return health_;
}

void RemoteDevice::Listen(Listener listener) {
  absl::Status state;
  {
    const MutexLock lock(&mutex_);
    while (is_reporting_) changed_.Wait(&mutex_);
    if (listener == nullptr) Close();
    listener_ = std::move(listener);
    state = health_.state;
  }
  if (!state.ok()) Report(state);
}

absl::StatusOr<DeviceAnswer> RemoteDevice::Ask(DeviceProcess& process,
                                               const DeviceRequest& request) {
  absl::StatusOr<DeviceAnswer> answer = process.Ask(request);
  if (!answer.ok()) return answer;
  const MutexLock lock(&mutex_);
  if (&process == process_.get()) Note(answer->host_memory);
  return answer;
}

void RemoteDevice::Note(const HostMemoryUse& use) {
  host_memory_ = use;
  host_memory_.numa_node = placement_.node;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> RemoteDevice::Allocate(const std::string& name,
                                                                     Bytes size, MemoryKind kind) {
  DeviceRequest request = {DeviceCall::kAllocate};
  request.kind = kind;
  request.size = size;
  request.text = name;
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    if (process_ == nullptr) return health_.state;
    process = process_;
    request.memory = memory_.NewNumber();
  }
  MEMTIDE_ASSIGN_OR_RETURN(const DeviceAnswer answer, Ask(*process, request));
  MEMTIDE_RETURN_IF_ERROR(answer.status);
  const MutexLock lock(&mutex_);
  if (process != process_) {
    // No process has this memory: the one that made it has ended, and the next one knows of none.
    if (answer.descriptor >= 0) close(answer.descriptor);
    return absl::UnavailableError(absl::StrCat(Describe(), " was lost when it made memory"));
  }
  memory_.Insert(request, answer);
  return std::make_unique<Lent>(this, request.memory, size);
}

void RemoteDevice::Release(uint64_t number) {
  DeviceRequest request;
  std::shared_ptr<DeviceProcess> process;
  int fd = -1;
  {
    const MutexLock lock(&mutex_);
    fd = memory_.Export(number).fd;
    request = memory_.Free(number);
    process = process_;
  }
  // A process that has ended has freed it.
  if (process != nullptr) Ask(*process, request).IgnoreError();
  if (fd >= 0) close(fd);
}

void RemoteDevice::ShareHostMemory(char* memory, Bytes size, int fd) {
  Tell([=](MemoryTable& table) { return table.Share(memory, size, fd); });
}

void RemoteDevice::UnshareHostMemory(char* memory) {
  Tell([=](MemoryTable& table) { return table.Unshare(memory); });
}

void RemoteDevice::AddHostMemory(char* memory, Bytes size) {
  Tell([=](MemoryTable& table) { return table.Add(memory, size); });
}

// A process that hangs may keep it pinned. Then the kernel keeps these pages, although the caller
// has freed them, and uses them for nothing else.
void RemoteDevice::RemoveHostMemory(char* memory) {
  Tell([=](MemoryTable& table) { return table.Remove(memory); });
}

void RemoteDevice::Tell(const std::function<DeviceRequest(MemoryTable& memory)>& change) {
  DeviceRequest request;
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    request = change(memory_);
    process = process_;
  }
  if (process == nullptr) return;
  const absl::StatusOr<DeviceAnswer> answer = Ask(*process, request);
  // The next process learns of the change when it starts.
  if (!answer.ok() || answer->status.ok()) return;
  options_.process.warn(
      absl::StrCat(Describe(), ": host memory: ", std::string(answer->status.message())));
}

absl::Status RemoteDevice::Copy(DeviceCall call, const DeviceMemory& memory, Bytes offset,
                                const char* host, Bytes size) {
  DeviceRequest request = {call};
  // Device requires memory that came from this device, so the type is known.
  request.memory = static_cast<const Lent&>(memory).number();
  request.offset = offset;
  request.size = size;
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    if (process_ == nullptr) return health_.state;
    process = process_;
    if (host != nullptr) memory_.Locate(host, &request);
  }
  const absl::StatusOr<DeviceAnswer> answer = Ask(*process, request);
  return answer.ok() ? answer->status : answer.status();
}

absl::Status RemoteDevice::CopyIn(DeviceMemory& memory, Bytes offset, const char* host,
                                  Bytes size) {
  return Copy(DeviceCall::kCopyIn, memory, offset, host, size);
}

absl::Status RemoteDevice::CopyOut(const DeviceMemory& memory, Bytes offset, char* host,
                                   Bytes size) {
  return Copy(DeviceCall::kCopyOut, memory, offset, host, size);
}

absl::Status RemoteDevice::Zero(DeviceMemory& memory, Bytes offset, Bytes size) {
  return Copy(DeviceCall::kZero, memory, offset, nullptr, size);
}

}  // namespace memtide
