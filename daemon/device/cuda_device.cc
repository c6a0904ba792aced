#include "daemon/device/cuda_device.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(1);
constexpr Duration kLongestPause = std::chrono::milliseconds(50);

absl::Status WithFreeMemory(const CudaDriver& cu, const absl::Status& status) {
  size_t free = 0, total = 0;
  if (cu.MemGetInfo(&free, &total) != CUDA_SUCCESS) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), "; ", FormatBytes(Bytes(free)), " of ",
                   FormatBytes(Bytes(total)), " are free on the GPU. Another process may use it"));
}

}  // namespace

NumaPlacement PlacementOf(const CudaDeviceFacts& facts, const NumaTopology& topology) {
  return topology.On(facts.numa_node ? facts.numa_node : topology.NodeOfPci(facts.pci_id));
}

absl::StatusOr<CudaDeviceFacts> ChooseCudaDevice(const std::vector<CudaDeviceFacts>& devices,
                                                 const std::string& device) {
  std::vector<std::string> known;
  for (const CudaDeviceFacts& facts : devices) {
    const std::string uuid = facts.FormatUuid();
    const bool by_uuid = absl::StartsWith(device, "GPU-") || absl::StartsWith(device, "MIG-");
    const bool meant =
        by_uuid ? absl::StartsWith(uuid, device) : device == absl::StrCat(facts.ordinal);
    if (device.empty() || meant) return facts;
    known.push_back(absl::StrCat(facts.ordinal, " (", facts.name, ", ", uuid, ")"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("there is no GPU \"", device, "\"; there are ", absl::StrJoin(known, ", ")));
}

// The DeviceMemory that a caller of Allocate owns.
class CudaDevice::Lent : public DeviceMemory {
 public:
  Lent(CudaDevice* device, std::unique_ptr<CudaMemory> memory)
      : device_(device), memory_(std::move(memory)) {}
  ~Lent() override { device_->Release(std::move(memory_)); }

  Bytes size() const override { return memory_->size(); }
  MemoryExport Export() const override { return memory_->Export(); }

  const CudaMemory& memory() const { return *memory_; }

 private:
  CudaDevice* const device_;
  std::unique_ptr<CudaMemory> memory_;
};

// Device requires memory that came from this device, so the type is known.
const CudaMemory& CudaDevice::MemoryOf(const DeviceMemory& memory) {
  return static_cast<const Lent&>(memory).memory();
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(const CudaDeviceOptions& options) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, CudaDevices());
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDeviceFacts facts, ChooseCudaDevice(devices, options.device));
  MEMTIDE_RETURN_IF_ERROR(CheckComputeMode(facts));
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  std::unique_ptr<CudaDevice> device(new CudaDevice(options, driver, facts));
  if (device->kinds().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(device->Describe(),
                     " can pass its memory to no other process: neither by descriptor nor "
                     "by legacy IPC. Use --device=none"));
  }
  MEMTIDE_RETURN_IF_ERROR(UseGpu(facts.ordinal));
  MEMTIDE_RETURN_IF_ERROR(device->MakeStreams());
  MEMTIDE_RETURN_IF_ERROR(device->MakeRing());
  if (facts.mps) {
    options.warn(
        absl::StrCat(device->Describe(),
                     " is shared through CUDA's MPS, under which an illegal address in one "
                     "program ends the GPU work of all, memtided's too"));
  }
  return device;
}

CudaDevice::CudaDevice(const CudaDeviceOptions& options, const CudaDriver* driver,
                       const CudaDeviceFacts& facts)
    : options_(options),
      driver_(driver),
      facts_(facts),
      placement_(PlacementOf(facts, NumaTopology(options.sysfs))),
      host_(driver) {}

CudaDevice::~CudaDevice() {
  {
    MutexLock lock(&mutex_);
    MEMTIDE_CHECK(memories_.empty()) << memories_.size() << " memories are still there";
  }
  UseGpu(facts_.ordinal).IgnoreError();
  if (ring_ != nullptr) ring_->Unpin();
  DestroyStreams();
}

std::string CudaDevice::Describe() const {
  return absl::StrCat("GPU ", facts_.ordinal, ", ", facts_.name, ", ", FormatBytes(facts_.memory),
                      ", ", facts_.FormatUuid());
}

std::vector<MemoryKind> CudaDevice::kinds() const {
  std::vector<MemoryKind> kinds;
  if (facts_.descriptors && options_.descriptors) kinds.push_back(MemoryKind::kCudaDescriptor);
  if (facts_.legacy_ipc && options_.legacy_ipc) kinds.push_back(MemoryKind::kCudaIpc);
  return kinds;
}

absl::Status CudaDevice::MakeStreams() {
  for (CUstream& stream : streams_) {
    MEMTIDE_RETURN_IF_ERROR(
        CudaStatus(driver_->StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::MakeRing() {
  MEMTIDE_ASSIGN_OR_RETURN(ring_, StagingRing::Make(driver_, placement_.node));
  WarnOfRing(ring_->Pin());
  return absl::OkStatus();
}

// A failure is retried once and then ignored: in a broken context everything fails.
void CudaDevice::DestroyStreams() {
  for (CUstream& stream : streams_) {
    for (int i = 0; i < 2 && stream != nullptr; ++i) {
      if (driver_->StreamDestroy(stream) == CUDA_SUCCESS) stream = nullptr;
    }
    stream = nullptr;
  }
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> CudaDevice::Allocate(const std::string& name,
                                                                   Bytes size, MemoryKind kind) {
  const std::vector<MemoryKind> known = kinds();
  MEMTIDE_CHECK(std::find(known.begin(), known.end(), kind) != known.end()) << name;
  CudaMemoryOptions options;
  options.driver = driver_;
  options.ordinal = facts_.ordinal;
  options.name = name;
  options.size = size;
  // A client unmaps GPU memory a little after it says so, and other processes come and go: an
  // allocation that fails now may succeed within `patience`.
  const Instant deadline = Now() + options_.patience;
  bool unpinned = false;
  for (Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    std::unique_ptr<CudaMemory> memory;
    const absl::Status status = Run([&] { return AllocateOnce(options, kind, &memory); });
    if (status.ok()) return std::unique_ptr<DeviceMemory>(new Lent(this, std::move(memory)));
    if (status.code() != absl::StatusCode::kResourceExhausted) return status;
    // CUDA is out of memory on a GPU that has enough: it could not pin host memory.
    if (!unpinned && IsFree(size) && UnpinSome()) {
      unpinned = true;
      continue;
    }
    if (Now() + pause > deadline) {
      const CudaGate::Use use(&gate_);
      // The gate is entered because cuMemGetInfo uses the context, which a restart may be
      // resetting.
      return WithFreeMemory(*driver_, status);
    }
    // tidy(sleep): CUDA has no event for memory that another process frees.
    std::this_thread::sleep_for(pause);
  }
}

bool CudaDevice::IsFree(Bytes size) {
  const CudaGate::Use use(&gate_);
  size_t free = 0, total = 0;
  return UseGpu(facts_.ordinal).ok() && driver_->MemGetInfo(&free, &total) == CUDA_SUCCESS &&
         Bytes(free) >= size;
}

absl::Status CudaDevice::AllocateOnce(const CudaMemoryOptions& options, MemoryKind kind,
                                      std::unique_ptr<CudaMemory>* memory) {
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<CudaMemory> made, CudaMemory::Create(options, kind));
  MEMTIDE_ASSIGN_OR_RETURN(const CUdeviceptr address, made->Address());
  MEMTIDE_RETURN_IF_ERROR(
      // A client must not see what another job, or another process, had in this memory.
      Wait(kNew, absl::StrCat("zeroing new ", made->Describe()), [&](CUstream stream) {
        return driver_->MemsetD8Async(address, 0, options.size.count(), stream);
      }));
  MutexLock lock(&mutex_);
  // This thread is inside the gate, so no restart can pass between the zeroing and this line.
  memories_.insert(made.get());
  *memory = std::move(made);
  return absl::OkStatus();
}

// Release is inside the gate as a whole: a restart must not reopen memory that is being destroyed.
void CudaDevice::Release(std::unique_ptr<CudaMemory> memory) {
  const CudaGate::Use use(&gate_);
  {
    MutexLock lock(&mutex_);
    memories_.erase(memory.get());
    failed_.erase(memory.get());
  }
  UseGpu(facts_.ordinal).IgnoreError();
  memory.reset();
}

void CudaDevice::AddHostMemory(char* memory, Bytes size) {
  absl::Status status;
  {
    const CudaGate::Use use(&gate_);
    UseGpu(facts_.ordinal).IgnoreError();
    status = host_.Add(memory, size);
  }
  // `warn` is the owner's code, so it runs outside the gate.
  WarnUnpinned(status);
}

void CudaDevice::RemoveHostMemory(char* memory) {
  const CudaGate::Use use(&gate_);
  UseGpu(facts_.ordinal).IgnoreError();
  host_.Remove(memory);
}

HostMemoryUse CudaDevice::host_memory() const {
  HostMemoryUse use;
  const CudaHostMemory::Amounts amounts = host_.amounts();
  use.pinned = amounts.pinned;
  use.unpinned = amounts.added - amounts.pinned;
  use.staging = ring_->pinned();
  use.coherent = facts_.coherent;
  use.numa_node = placement_.node;
  return use;
}

void CudaDevice::WarnUnpinned(const absl::Status& why) {
  if (why.ok() || warned_unpinned_.exchange(true)) return;
  const Bytes staging = ring_->pinned();
  options_.warn(absl::StrCat(
      "some host memory is not pinned, ",
      staging.IsZero() ? "so its copies to and from the GPU are slower"
                       : absl::StrCat("so its copies go through ", FormatBytes(staging),
                                      " of pinned buffers, which takes CPU time"),
      ": ", why.message(),
      ". Other programs pin memory too, a container or WSL2 may limit it, or the IOMMU is full: "
      "see dmesg"));
}

void CudaDevice::WarnOfRing(const absl::Status& why) {
  if (why.ok()) return;
  options_.warn(absl::StrCat(
      "the buffers for copies cannot be pinned, so copies to and from the GPU are slower: ",
      why.message(), ". See dmesg, and which other programs pin memory"));
}

absl::Status CudaDevice::MemoryFailed(const std::string& what) const {
  return absl::DataLossError(
      absl::StrCat(what, ": memory of ", Describe(),
                   " has failed (uncorrectable ECC error); its bytes are lost, and it is not used "
                   "again. Resume from the last commit (--resume); see nvidia-smi -q -d "
                   "ECC,ROW_REMAPPER, and if it happens again, reset the GPU or have it replaced"));
}

}  // namespace memtide
