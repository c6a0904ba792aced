#include "client/cuda/cuda_space.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/cuda/cuda.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/cuda/cuda_context.h"
#include "client/cuda/kept_mappings.h"
#include "proto/protocol.h"

namespace memtide::client {
namespace {

// DLPack's device types.
constexpr int32_t kDlCpu = 1, kDlCuda = 2, kDlExtension = 12;

// GPU memory imported by descriptor. Its physical memory is pinned until this is destroyed and no
// place maps it.
class ImportedHandle : public CudaImport {
 public:
  ImportedHandle(const CudaVmm* vmm, CUmemGenericAllocationHandle handle)
      : vmm_(vmm), handle_(handle) {}
  ~ImportedHandle() override { vmm_->Release(handle_); }
  CUmemGenericAllocationHandle get() const { return handle_; }

 private:
  const CudaVmm* const vmm_;
  const CUmemGenericAllocationHandle handle_;
};

// If the driver itself lacks memory, RESOURCE_EXHAUSTED would suggest that too many chunks are
// leased.
absl::Status WithoutLeaseAdvice(absl::Status status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::InternalError(status.message());
}

// Whether leases for reading are mapped read-only.
bool IsProtecting() {
  const char* const chosen = std::getenv("MEMTIDE_PROTECT");
  return chosen != nullptr && std::strcmp(chosen, "1") == 0;
}

class CudaSpace : public AddressSpace {
 public:
  static absl::StatusOr<std::unique_ptr<AddressSpace>> Reserve(const Options& options,
                                                               const std::string& uuid);
  ~CudaSpace() override;

  char* base() const override { return reinterpret_cast<char*>(base_); }
  char* address(PlaceId place) const override {
    return reinterpret_cast<char*>(DeviceAddress(place));
  }
  DlDevice device() const override { return device_; }

  // Without page faults an unbound place and an absent one are alike.
  absl::Status Bind(PlaceRange range) override { return absl::OkStatus(); }
  void Unbind(PlaceRange range) override {}
  absl::Status Map(PlaceId place, Region* region, Bytes offset, Access access) override;
  absl::Status MakeWritable(PlaceId place) override;
  void ResumeWaiters(PlaceId place, Access access) override {}
  void EndUse(absl::Span<const PlaceId> places) override;
  uint64_t RecordFence() override { return context_->NoteWork(); }
  bool IsDone(uint64_t fence) override { return context_->IsDone(fence); }
  uint64_t FenceOf(PlaceId place) const override {
    const MutexLock lock(&mutex_);
    return fences_[place.value()];
  }
  void BeginMoment() override { context_->EndEpoch(); }
  bool needs_streams() const override { return context_->needs_streams(); }
  void CoverStreams(absl::Span<const uint64_t> streams) override {
    context_->CoverStreams(streams);
  }
  void CoverAllStreams() override { context_->CoverAllStreams(); }
  absl::Status Unmap(PlaceId place) override;
  void Wake(PlaceId place) override {}
  void Forget(const Region& region) override;
  void EndIteration() override;
  void Protect() override;
  uint64_t protected_iterations() const override;

 private:
  CudaSpace(const Options& options, std::unique_ptr<CudaContext> context)
      : AddressSpace(options),
        context_(std::move(context)),
        protects_(IsProtecting()),
        maps_when_idle_(options.maps_when_idle),
        fences_(options.places),
        mappings_(options.places, /*keeps=*/!protects_) {}

  CUdeviceptr DeviceAddress(PlaceId place) const {
    return base_ + place.value() * chunk_size().count();
  }
  const CudaDriver& driver() const { return context_->driver(); }
  // Waits for all work of the process, if the GPU maps memory only then.
  absl::Status AwaitIdle();
  // REQUIRES: the range was just mapped, or no work that uses it is queued.
  absl::Status SetAccess(CUdeviceptr address, size_t size, Access access);
  // Maps memory of this process for a moment: to check that mapping works, and to learn the DLPack
  // device.
  absl::Status ProbeMapping();
  absl::Status MapWhole(PlaceId place, Region* region, Bytes offset, Access access);
  // True: the place keeps its mapping of the region. Otherwise it maps nothing.
  absl::StatusOr<bool> TakeKept(PlaceId place, const Region* region);
  absl::Status UnmapByDriver(PlaceId place);
  // Ends the mappings of the region, or of all, that no lease holds.
  void EndKept(const Region* region);
  absl::StatusOr<CUmemGenericAllocationHandle> Import(Region* region);

  const std::unique_ptr<CudaContext> context_;
  const bool protects_;
  const bool maps_when_idle_;
  CUdeviceptr base_ = 0;
  DlDevice device_;

  mutable Mutex mutex_;
  // By place: the epoch of its last use, which Unmap awaits; zero: it was not used.
  std::vector<uint64_t> fences_ ABSL_GUARDED_BY(mutex_);
  KeptMappings mappings_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<AddressSpace>> CudaSpace::Reserve(const Options& options,
                                                                 const std::string& uuid) {
  MEMTIDE_CHECK(options.chunk_size.IsMultipleOf(kChunkAlignment) && options.places > 0);
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<CudaContext> context, CudaContext::Open(uuid));
  if (!context->descriptors()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the daemon lends GPU memory by descriptor, but the driver of GPU ", context->ordinal(),
        " in this process cannot import descriptors: is it the daemon's driver? Legacy "
        "handles may work (device_memory MEMTIDE_CUDA_IPC)"));
  }
  std::unique_ptr<CudaSpace> space(new CudaSpace(options, std::move(context)));
  const Bytes size = options.chunk_size * options.places;
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(
      space->driver().vmm.AddressReserve(&space->base_, size.count(), 0, 0, 0),
      absl::StrCat("reserving ", FormatBytes(size), " of GPU addresses (lower address_bytes)")));
  MEMTIDE_RETURN_IF_ERROR(space->ProbeMapping());
  return space;
}

CudaSpace::~CudaSpace() {
  for (uint32_t i = 0; i < places(); ++i) {
    const PlaceId place(i);
    {
      const MutexLock lock(&mutex_);
      if (mappings_.mapped(place) == nullptr) continue;
    }
    // A lost context needs no report any more: the session ends with the leases that it has.
    context_->AwaitOrGiveUp(FenceOf(place)).IgnoreError();
    UnmapByDriver(place).IgnoreError();
  }
  if (base_ != 0) driver().vmm.AddressFree(base_, chunk_size().count() * places());
}

absl::Status CudaSpace::ProbeMapping() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = context_->ordinal();
  size_t size = 0;
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(
      driver().vmm.GetAllocationGranularity(&size, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "asking for the granularity of GPU memory"));
  if (!chunk_size().IsMultipleOf(Bytes(size))) {
    return absl::FailedPreconditionError(
        absl::StrCat("chunks of ", FormatBytes(chunk_size()), " cannot be mapped: this GPU maps ",
                     FormatBytes(Bytes(size)), " at a time; choose a multiple (--chunk-size)"));
  }
  CUmemGenericAllocationHandle handle;
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver().vmm.Create(&handle, size, &properties, 0),
                                     "trying a first mapping on the GPU"));
  const ImportedHandle owner(&driver().vmm, handle);
  MEMTIDE_RETURN_IF_ERROR(
      CudaStatus(driver().vmm.Map(base_, size, 0, handle, 0), "trying a first mapping on the GPU"));
  absl::Status opened = SetAccess(base_, size, Access::kWrite);
  CUmemorytype type = CU_MEMORYTYPE_DEVICE;
  const CUresult result =
      driver().PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base_);
  // Undo in any case, and report the first error.
  const CUresult unmapped = driver().vmm.Unmap(base_, size);
  MEMTIDE_RETURN_IF_ERROR(opened);
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(unmapped, "undoing a first mapping on the GPU"));
  if (result != CUDA_SUCCESS) type = CU_MEMORYTYPE_DEVICE;  // Assume what GPU memory is.
  // CUDA itself reports the third type, and the other two are the fake's (base/cuda/fake): tensors
  // on the CPU, or on a torch backend of its own.
  device_ = type == CU_MEMORYTYPE_HOST      ? DlDevice{kDlCpu, 0}
            : type == CU_MEMORYTYPE_UNIFIED ? DlDevice{kDlExtension, context_->ordinal()}
                                            : DlDevice{kDlCuda, context_->ordinal()};
  return absl::OkStatus();
}

// Needs no lock: a region is one slot, and only the thread that maps its lease gets here.
absl::StatusOr<CUmemGenericAllocationHandle> CudaSpace::Import(Region* region) {
  if (region->import == nullptr) {
    CUmemGenericAllocationHandle handle;
    // The CUDA interface passes a descriptor as a pointer.
    void* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(region->memory.get()));
    MEMTIDE_RETURN_IF_ERROR(CudaStatus(
        driver().vmm.ImportFromShareableHandle(&handle, descriptor,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        absl::StrCat("importing ", FormatBytes(region->size),
                     " of the daemon's GPU memory (same GPU driver in this container?)")));
    region->import = std::make_unique<ImportedHandle>(&driver().vmm, handle);
    region->memory = Descriptor();  // Close it: a descriptor pins the memory too.
  }
  return static_cast<ImportedHandle&>(*region->import).get();
}

absl::Status CudaSpace::Map(PlaceId place, Region* region, Bytes offset, Access access) {
  return WithoutLeaseAdvice(MapWhole(place, region, offset, access));
}

absl::Status CudaSpace::MapWhole(PlaceId place, Region* region, Bytes offset, Access access) {
  // CUDA maps an allocation from its beginning, and cannot split a mapping (decision 9).
  if (!offset.IsZero() || region->size != chunk_size()) {
    return absl::InternalError(absl::StrCat(
        "the daemon lent ", FormatBytes(chunk_size()), " at byte ", offset.count(),
        " of GPU memory of ", FormatBytes(region->size), ", which can only be mapped whole"));
  }
  MEMTIDE_ASSIGN_OR_RETURN(const bool is_mapped, TakeKept(place, region));
  if (is_mapped) return absl::OkStatus();
  MEMTIDE_ASSIGN_OR_RETURN(const CUmemGenericAllocationHandle handle, Import(region));
  MEMTIDE_RETURN_IF_ERROR(AwaitIdle());
  MEMTIDE_RETURN_IF_ERROR(
      CudaStatus(driver().vmm.Map(DeviceAddress(place), chunk_size().count(), 0, handle, 0),
                 absl::StrCat("mapping ", FormatBytes(chunk_size()), " of GPU memory")));
  // For writing in any case: MakeWritable could not change it under kernels that read the chunk.
  const Access open = protects_ ? access : Access::kWrite;
  if (absl::Status status = SetAccess(DeviceAddress(place), chunk_size().count(), open);
      !status.ok()) {
    driver().vmm.Unmap(DeviceAddress(place), chunk_size().count());
    return status;
  }
  CountMap();
  const MutexLock lock(&mutex_);
  mappings_.Hold(place, region);
  fences_[place.value()] = 0;
  return absl::OkStatus();
}

absl::StatusOr<bool> CudaSpace::TakeKept(PlaceId place, const Region* region) {
  bool in_use = false;
  {
    const MutexLock lock(&mutex_);
    const Region* const mapped = mappings_.mapped(place);
    if (mapped == nullptr) return false;
    // The fence stays: a lease that moves may have uses, and that of others was awaited.
    if (mapped == region) {
      mappings_.Hold(place, region);
      return true;
    }
    in_use = mappings_.is_held(place);
  }
  MEMTIDE_RETURN_IF_ERROR(in_use ? context_->Await(context_->NoteWork()) : AwaitIdle());
  {
    const MutexLock lock(&mutex_);
    if (mappings_.mapped(place) == nullptr) return false;  // It has ended meanwhile.
    mappings_.Unmapped(place);                             // No other thread unmaps it from now on.
  }
  MEMTIDE_RETURN_IF_ERROR(UnmapByDriver(place));
  return false;
}

void CudaSpace::Forget(const Region& region) { EndKept(&region); }

void CudaSpace::Protect() {
  {
    const MutexLock lock(&mutex_);
    mappings_.Protect();
  }
  EndKept(nullptr);
}

void CudaSpace::EndIteration() {
  const MutexLock lock(&mutex_);
  mappings_.EndIteration();
}

uint64_t CudaSpace::protected_iterations() const {
  const MutexLock lock(&mutex_);
  return mappings_.protected_iterations();
}

void CudaSpace::EndKept(const Region* region) {
  {
    const MutexLock lock(&mutex_);
    if (mappings_.Kept(region).empty()) return;
  }
  // No work uses what is not leased. An error is that of a lost context, which the next use of a
  // lease reports, or of a capture that does not end, beside which memory is unmapped all the same.
  AwaitIdle().IgnoreError();
  // The lock is held meanwhile, so that no lease takes one of these mappings.
  const MutexLock lock(&mutex_);
  for (const PlaceId place : mappings_.Kept(region)) {
    UnmapByDriver(place).IgnoreError();
    mappings_.Unmapped(place);
  }
}

absl::Status CudaSpace::UnmapByDriver(PlaceId place) {
  return CudaStatus(driver().vmm.Unmap(DeviceAddress(place), chunk_size().count()),
                    "unmapping a chunk from the GPU");
}

absl::Status CudaSpace::SetAccess(CUdeviceptr address, size_t size, Access access) {
  CUmemAccessDesc description = {};
  description.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  description.location.id = context_->ordinal();
  description.flags =
      access == Access::kWrite ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  return CudaStatus(driver().vmm.SetAccess(address, size, &description, 1),
                    "opening GPU memory for access");
}

absl::Status CudaSpace::AwaitIdle() {
  return maps_when_idle_ ? context_->Await(context_->NoteWork()) : absl::OkStatus();
}

absl::Status CudaSpace::MakeWritable(PlaceId place) {
  if (!protects_) return absl::OkStatus();
  // CUDA may unmap the place for a moment, which ends the context if a kernel uses it then.
  MEMTIDE_RETURN_IF_ERROR(context_->Await(context_->NoteWork()));
  return SetAccess(DeviceAddress(place), chunk_size().count(), Access::kWrite);
}

void CudaSpace::EndUse(absl::Span<const PlaceId> places) {
  const uint64_t fence = context_->NoteWork();
  const MutexLock lock(&mutex_);
  for (const PlaceId place : places) {
    if (place.value() >= fences_.size()) continue;  // LeaseCache reports such a place.
    fences_[place.value()] = std::max(fences_[place.value()], fence);
  }
}

absl::Status CudaSpace::Unmap(PlaceId place) {
  // A kernel that accesses unmapped memory ends the process's CUDA context (decision 8).
  absl::Status status = context_->AwaitOrGiveUp(FenceOf(place));
  {
    const MutexLock lock(&mutex_);
    if (mappings_.Release(place) && status.ok()) return status;
    mappings_.Unmapped(place);
  }
  status.Update(AwaitIdle());
  // After a loss the driver refuses this, too. No kernel runs any more that could use the mapping.
  status.Update(UnmapByDriver(place));
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AddressSpace>> ReserveCudaSpace(const AddressSpace::Options& options,
                                                               const std::string& uuid) {
  return CudaSpace::Reserve(options, uuid);
}

}  // namespace memtide::client
