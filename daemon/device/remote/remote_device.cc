#include "daemon/device/remote/remote_device.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/device/remote/lent_memory.h"

namespace memtide {

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
    MEMTIDE_CHECK(lent_.empty()) << lent_.size() << " memories are still there";
    Close();
    watched_->End("the daemon ends");
    if (starting_ != nullptr) starting_->End("the daemon ends");
  }
  thread_.join();
  for (const auto& [memory, shared] : shared_) close(shared.fd);
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
  return {why_, losses_};
}

void RemoteDevice::Listen(Listener listener) {
  absl::Status state;
  {
    const MutexLock lock(&mutex_);
    while (is_reporting_) changed_.Wait(&mutex_);
    if (listener == nullptr) Close();
    listener_ = std::move(listener);
    state = why_;
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
  auto memory = std::make_unique<Lent>(this, name, size, kind);
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    if (process_ == nullptr) return why_;
    process = process_;
    memory->number = next_number_++;
  }
  MEMTIDE_ASSIGN_OR_RETURN(const DeviceAnswer answer, Ask(*process, memory->Allocation()));
  MEMTIDE_RETURN_IF_ERROR(answer.status);
  const MutexLock lock(&mutex_);
  if (process != process_) {
    // No process has this memory: the one that made it has ended, and the next one knows of none.
    if (answer.descriptor >= 0) close(answer.descriptor);
    return absl::UnavailableError(absl::StrCat(Describe(), " was lost when it made memory"));
  }
  memory->Receive(answer);
  lent_.emplace(memory->number, memory.get());
  return std::unique_ptr<DeviceMemory>(std::move(memory));
}

void RemoteDevice::Release(const Lent& memory) {
  DeviceRequest request;
  request.call = DeviceCall::kFree;
  request.memory = memory.number;
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    if (lent_.erase(memory.number) == 0) return;
    process = WhomToTell(request);
  }
  // A process that has ended has freed it.
  if (process != nullptr) Ask(*process, request).IgnoreError();
}

std::shared_ptr<DeviceProcess> RemoteDevice::WhomToTell(const DeviceRequest& request) {
  if (starting_ != nullptr) unsent_.push_back(request);
  return process_;
}

void RemoteDevice::ShareHostMemory(char* memory, Bytes size, int fd) {
  DeviceRequest request;
  request.call = DeviceCall::kShareHost;
  request.size = size;
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    Shared& shared = shared_[memory];
    MEMTIDE_CHECK(shared.fd < 0) << "host memory that is shared already";
    shared.number = request.host = next_number_++;
    shared.size = size;
    shared.fd = request.descriptor = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    process = WhomToTell(request);
  }
  Tell(process, request);
}

void RemoteDevice::UnshareHostMemory(char* memory) {
  DeviceRequest request;
  request.call = DeviceCall::kUnshareHost;
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    const auto found = shared_.find(memory);
    MEMTIDE_CHECK(found != shared_.end() && found->second.added.empty());
    request.host = found->second.number;
    // A process that is starting may get it yet.
    unshared_.push_back(found->second.fd);
    if (starting_ == nullptr) CloseUnshared();
    shared_.erase(found);
    process = WhomToTell(request);
  }
  Tell(process, request);
}

void RemoteDevice::AddHostMemory(char* memory, Bytes size) {
  DeviceRequest request;
  request.call = DeviceCall::kAddHost;
  request.size = size;
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    Shared& shared = Locate(memory, &request);
    MEMTIDE_CHECK(shared.added.emplace(request.host_offset, size).second);
    process = WhomToTell(request);
  }
  Tell(process, request);
}

void RemoteDevice::RemoveHostMemory(char* memory) {
  DeviceRequest request;
  request.call = DeviceCall::kRemoveHost;
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    Shared& shared = Locate(memory, &request);
    MEMTIDE_CHECK(shared.added.erase(request.host_offset) == 1);
    process = WhomToTell(request);
  }
  // A process that hangs may keep it pinned. Then the kernel keeps these pages, although the caller
  // has freed them, and uses them for nothing else.
  Tell(process, request);
}

void RemoteDevice::Tell(const std::shared_ptr<DeviceProcess>& process,
                        const DeviceRequest& request) {
  if (process == nullptr) return;
  const absl::StatusOr<DeviceAnswer> answer = Ask(*process, request);
  // The next process learns of the change when it starts.
  if (!answer.ok() || answer->status.ok()) return;
  options_.process.warn(
      absl::StrCat(Describe(), ": host memory: ", std::string(answer->status.message())));
}

RemoteDevice::Shared& RemoteDevice::Locate(const char* host, DeviceRequest* request) {
  auto found = shared_.upper_bound(const_cast<char*>(host));
  MEMTIDE_CHECK(found != shared_.begin()) << "host memory that is not shared";
  --found;
  request->host = found->second.number;
  request->host_offset = Bytes(static_cast<uint64_t>(host - found->first));
  const absl::optional<Bytes> end = CheckedAdd(request->host_offset, request->size);
  MEMTIDE_CHECK(end.has_value() && *end <= found->second.size) << "host memory that is not shared";
  return found->second;
}

absl::Status RemoteDevice::Copy(DeviceCall call, const DeviceMemory& memory, Bytes offset,
                                const char* host, Bytes size) {
  DeviceRequest request;
  request.call = call;
  // Device requires memory that came from this device, so the type is known.
  request.memory = static_cast<const Lent&>(memory).number;
  request.offset = offset;
  request.size = size;
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    if (process_ == nullptr) return why_;
    process = process_;
    if (host != nullptr) Locate(host, &request);
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
