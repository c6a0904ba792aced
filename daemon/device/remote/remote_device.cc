#include "daemon/device/remote/remote_device.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide {

// The DeviceMemory that a caller of Allocate owns. The process knows it by its number.
class RemoteDevice::Lent : public DeviceMemory {
 public:
  Lent(RemoteDevice* device, std::string name, Bytes size, MemoryKind kind)
      : device_(device), name_(std::move(name)), size_(size), kind_(kind) {}
  ~Lent() override {
    device_->Release(this);
    if (fd_ >= 0) close(fd_);
  }

  Bytes size() const override { return size_; }
  MemoryExport Export() const override {
    const MutexLock lock(&device_->mutex_);
    return {kind_, size_, fd_, ipc_handle_};
  }

  // The memory was allocated, or was again. The number of the descriptor stays, as another thread
  // may be about to duplicate it.
  void Receive(const DeviceAnswer& answer) {
    const MutexLock lock(&device_->mutex_);
    ipc_handle_ = answer.ipc_handle;
    if (fd_ < 0 || answer.descriptor < 0) {
      fd_ = answer.descriptor;
      return;
    }
    dup3(answer.descriptor, fd_, O_CLOEXEC);
    close(answer.descriptor);
  }

  DeviceRequest Allocation() const {
    DeviceRequest request;
    request.call = DeviceCall::kAllocate;
    request.kind = kind_;
    request.memory = number;
    request.size = size_;
    request.text = name_;
    return request;
  }

  uint64_t number = 0;

 private:
  RemoteDevice* const device_;
  const std::string name_;
  const Bytes size_;
  const MemoryKind kind_;
  int fd_ = -1;  // With the lock of the device, as ipc_handle_.
  std::string ipc_handle_;
};

RemoteDevice::Change::Change(RemoteDevice* device) : device_(device) {
  const MutexLock lock(&device->mutex_);
  while (device->is_changing_) device->changed_.Wait(&device->mutex_);
  device->is_changing_ = true;
}

RemoteDevice::Change::~Change() {
  const MutexLock lock(&device_->mutex_);
  device_->is_changing_ = false;
  device_->changed_.SignalAll();
}

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
      host_memory_(opened_.host_memory) {
  host_memory_.numa_node = placement_.node;
  thread_ = std::thread([this] { Run(); });
}

RemoteDevice::~RemoteDevice() {
  {
    const MutexLock lock(&mutex_);
    MEMTIDE_CHECK(lent_.empty()) << lent_.size() << " memories are still there";
    is_closing_ = true;
    if (process_ != nullptr) process_->End("");
    if (starting_ != nullptr) starting_->End("");
    changed_.SignalAll();
  }
  thread_.join();
  for (const auto& [memory, shared] : shared_) close(shared.fd);
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
    listener_ = std::move(listener);
    state = why_;
  }
  if (!state.ok()) Report(state);
}

void RemoteDevice::Report(const absl::Status& state) {
  Listener listener;
  {
    const MutexLock lock(&mutex_);
    while (is_reporting_) changed_.Wait(&mutex_);
    if (listener_ == nullptr) return;
    listener = listener_;
    is_reporting_ = true;
  }
  listener(state);
  const MutexLock lock(&mutex_);
  is_reporting_ = false;
  changed_.SignalAll();
}

absl::StatusOr<DeviceAnswer> RemoteDevice::Ask(const DeviceRequest& request) {
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    if (process_ == nullptr) return why_;
    process = process_;
  }
  absl::StatusOr<DeviceAnswer> answer = process->Ask(request);
  if (!answer.ok()) return answer;
  const MutexLock lock(&mutex_);
  if (process == process_) Note(answer->host_memory);
  return answer;
}

void RemoteDevice::Note(const HostMemoryUse& use) {
  host_memory_ = use;
  host_memory_.numa_node = placement_.node;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> RemoteDevice::Allocate(const std::string& name,
                                                                     Bytes size, MemoryKind kind) {
  auto memory = std::make_unique<Lent>(this, name, size, kind);
  // The destructor of `memory` makes a change, too, so that this one ends before it.
  absl::Status status;
  {
    const Change change(this);
    {
      const MutexLock lock(&mutex_);
      memory->number = next_number_++;
    }
    const absl::StatusOr<DeviceAnswer> answer = Ask(memory->Allocation());
    status = answer.ok() ? answer->status : answer.status();
    if (status.ok()) {
      memory->Receive(*answer);
      const MutexLock lock(&mutex_);
      lent_.insert(memory.get());
    }
  }
  if (!status.ok()) return status;
  return std::unique_ptr<DeviceMemory>(std::move(memory));
}

void RemoteDevice::Release(Lent* memory) {
  const Change change(this);
  {
    const MutexLock lock(&mutex_);
    if (lent_.erase(memory) == 0) return;
  }
  DeviceRequest request;
  request.call = DeviceCall::kFree;
  request.memory = memory->number;
  // A process that has ended has freed it.
  Ask(request).IgnoreError();
}

void RemoteDevice::ShareHostMemory(char* memory, Bytes size, int fd) {
  const Change change(this);
  DeviceRequest request;
  request.call = DeviceCall::kShareHost;
  request.size = size;
  {
    const MutexLock lock(&mutex_);
    Shared& shared = shared_[memory];
    MEMTIDE_CHECK(shared.fd < 0) << "host memory that is shared already";
    shared.number = request.host = next_number_++;
    shared.size = size;
    shared.fd = request.descriptor = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  }
  Tell(request);
}

void RemoteDevice::UnshareHostMemory(char* memory) {
  const Change change(this);
  DeviceRequest request;
  request.call = DeviceCall::kUnshareHost;
  int fd = -1;
  {
    const MutexLock lock(&mutex_);
    const auto found = shared_.find(memory);
    MEMTIDE_CHECK(found != shared_.end() && found->second.added.empty());
    request.host = found->second.number;
    fd = found->second.fd;
    shared_.erase(found);
  }
  close(fd);
  Tell(request);
}

void RemoteDevice::AddHostMemory(char* memory, Bytes size) {
  const Change change(this);
  DeviceRequest request;
  request.call = DeviceCall::kAddHost;
  request.size = size;
  {
    const MutexLock lock(&mutex_);
    Shared& shared = Locate(memory, &request);
    MEMTIDE_CHECK(shared.added.emplace(request.host_offset, size).second);
  }
  Tell(request);
}

void RemoteDevice::RemoveHostMemory(char* memory) {
  const Change change(this);
  DeviceRequest request;
  request.call = DeviceCall::kRemoveHost;
  {
    const MutexLock lock(&mutex_);
    Shared& shared = Locate(memory, &request);
    MEMTIDE_CHECK(shared.added.erase(request.host_offset) == 1);
  }
  // When it returns the memory is not pinned any more, because the process says so or has ended.
  Tell(request);
}

void RemoteDevice::Tell(const DeviceRequest& request) {
  const absl::StatusOr<DeviceAnswer> answer = Ask(request);
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
  if (host != nullptr) {
    const MutexLock lock(&mutex_);
    Locate(host, &request);
  }
  const absl::StatusOr<DeviceAnswer> answer = Ask(request);
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

void RemoteDevice::Run() {
  std::shared_ptr<DeviceProcess> process;
  {
    const MutexLock lock(&mutex_);
    process = process_;
  }
  while (process != nullptr) {
    const absl::Status how = process->Watch();
    const absl::Status why = absl::UnavailableError(
        absl::StrCat(Describe(), " was lost (", how.message(),
                     "): what its memory held is lost, copies in host memory and on SSD are kept. "
                     "memtided starts to use it again by itself; if it does not work, look at "
                     "nvidia-smi and dmesg"));
    const bool is_closing = Lose(why);
    process->AwaitEnd(why);
    process = is_closing ? nullptr : Restart();
  }
}

bool RemoteDevice::Lose(const absl::Status& why) {
  {
    const MutexLock lock(&mutex_);
    process_ = nullptr;
    why_ = why;
    if (is_closing_) return true;
    ++losses_;
    Note(HostMemoryUse());
  }
  options_.process.warn(std::string(why.message()));
  // Before any call that was in flight returns: what comes after this is known to be lost.
  Report(why);
  return false;
}

std::shared_ptr<DeviceProcess> RemoteDevice::Restart() {
  std::string said;
  for (Duration pause = options_.first_pause;;
       pause = std::min(2 * pause, options_.longest_pause)) {
    {
      const MutexLock lock(&mutex_);
      const Instant until = Now() + pause;
      while (!is_closing_ && Now() < until) changed_.WaitFor(&mutex_, until - Now());
      if (is_closing_) return nullptr;
    }
    const absl::Status started = StartAgain();
    std::shared_ptr<DeviceProcess> process;
    {
      const MutexLock lock(&mutex_);
      starting_ = nullptr;
      process = process_;
    }
    if (started.ok()) {
      options_.process.warn(absl::StrCat(Describe(), " is used again"));
      Report(absl::OkStatus());
      return process;
    }
    const std::string line =
        absl::StrCat(Describe(), " cannot be used yet: ", std::string(started.message()));
    if (line != said) options_.process.warn(line);
    said = line;
  }
}

absl::Status RemoteDevice::StartAgain() {
  DeviceProcessOptions options = options_.process;
  options.is_cancelled = [this] {
    const MutexLock lock(&mutex_);
    return is_closing_;
  };
  MEMTIDE_ASSIGN_OR_RETURN(std::shared_ptr<DeviceProcess> process, DeviceProcess::Start(options));
  if (process->opened().kinds != opened_.kinds) {
    return absl::FailedPreconditionError("it passes its memory in other ways than before");
  }
  {
    const MutexLock lock(&mutex_);
    if (is_closing_) return absl::CancelledError("the daemon ends");
    starting_ = process;
  }
  const Change change(this);
  MEMTIDE_RETURN_IF_ERROR(Furnish(*process));
  const MutexLock lock(&mutex_);
  if (is_closing_) return absl::CancelledError("the daemon ends");
  process_ = process;
  why_ = absl::OkStatus();
  return absl::OkStatus();
}

// Tells a new process of all memory. REQUIRES: within a Change, so that the tables stay.
absl::Status RemoteDevice::Furnish(DeviceProcess& process) {
  std::vector<DeviceRequest> requests;
  std::vector<Lent*> lent;
  {
    const MutexLock lock(&mutex_);
    for (const auto& [memory, shared] : shared_) {
      DeviceRequest request;
      request.call = DeviceCall::kShareHost;
      request.host = shared.number;
      request.size = shared.size;
      request.descriptor = shared.fd;
      requests.push_back(request);
      request.call = DeviceCall::kAddHost;
      request.descriptor = -1;
      for (const auto& [offset, size] : shared.added) {
        request.host_offset = offset;
        request.size = size;
        requests.push_back(request);
      }
    }
    lent.assign(lent_.begin(), lent_.end());
  }
  for (const DeviceRequest& request : requests) {
    MEMTIDE_ASSIGN_OR_RETURN(const DeviceAnswer answer, process.AskUnwatched(request));
    MEMTIDE_RETURN_IF_ERROR(answer.status);
    const MutexLock lock(&mutex_);
    Note(answer.host_memory);
  }
  for (Lent* const memory : lent) {
    MEMTIDE_ASSIGN_OR_RETURN(const DeviceAnswer answer, process.AskUnwatched(memory->Allocation()));
    MEMTIDE_RETURN_IF_ERROR(answer.status);
    memory->Receive(answer);
  }
  return absl::OkStatus();
}

}  // namespace memtide
