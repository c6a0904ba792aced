// CudaPointers: cuIpcOpenMemHandle gives each region one address, and leases are offsets into it.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/cuda.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/cuda/cuda_context.h"
#include "client/cuda/cuda_space.h"
#include "client/cuda/current_context.h"

namespace memtide::client {
namespace {

class OpenedHandle : public CudaImport {
 public:
  OpenedHandle(std::shared_ptr<const CudaContext> context, CUdeviceptr address)
      : context_(std::move(context)), address_(address) {}
  ~OpenedHandle() override {
    const CurrentCudaContext current(context_->driver(), context_->context());
    context_->driver().IpcCloseMemHandle(address_);
  }
  char* address() const { return reinterpret_cast<char*>(address_); }

 private:
  const std::shared_ptr<const CudaContext> context_;  // Regions may outlive the space.
  const CUdeviceptr address_;
};

class CudaPointers : public AddressSpace {
 public:
  CudaPointers(const Options& options, std::unique_ptr<CudaContext> context)
      : AddressSpace(options), context_(std::move(context)) {}

  char* base() const override { return nullptr; }
  char* address(PlaceId place) const override {
    const MutexLock lock(&mutex_);
    return mappings_[place.value()].address;
  }
  DlDevice device() const override { return {2, context_->ordinal()}; }

  absl::Status Bind(PlaceRange range) override { return absl::OkStatus(); }
  void Unbind(PlaceRange range) override {}
  absl::Status Map(PlaceId place, Region* region, Bytes offset, Access access) override;
  // Legacy IPC cannot protect single chunks.
  absl::Status MakeWritable(PlaceId place) override { return absl::OkStatus(); }
  void ResumeWaiters(PlaceId place, Access access) override {}
  void EndUse(absl::Span<const PlaceId> places) override;
  uint64_t RecordFence() override { return context_->NoteWork(); }
  bool IsDone(uint64_t fence) override { return context_->IsDone(fence); }
  uint64_t FenceOf(PlaceId place) const override {
    const MutexLock lock(&mutex_);
    return mappings_[place.value()].fence;
  }
  void BeginMoment() override { context_->EndEpoch(); }
  bool needs_streams() const override { return context_->needs_streams(); }
  void CoverStreams(absl::Span<const uint64_t> streams) override {
    context_->CoverStreams(streams);
  }
  void CoverAllStreams() override { context_->CoverAllStreams(); }
  absl::Status Unmap(PlaceId place) override;
  void Wake(PlaceId place) override {}

 private:
  struct Mapping {
    char* address = nullptr;
    uint64_t fence = 0;
  };
  absl::StatusOr<char*> Import(Region* region) ABSL_LOCKS_EXCLUDED(importing_);

  const std::shared_ptr<CudaContext> context_;
  Mutex importing_;  // Held while a region is opened, so that it is opened once.
  mutable Mutex mutex_;
  std::vector<Mapping> mappings_ ABSL_GUARDED_BY(mutex_) = std::vector<Mapping>(places());
};

absl::StatusOr<char*> CudaPointers::Import(Region* region) {
  const MutexLock lock(&importing_);
  if (region->import == nullptr) {
    CUipcMemHandle handle;
    if (region->ipc_handle.size() != sizeof(handle)) {
      return absl::InternalError(absl::StrCat("the daemon sent a CUDA IPC handle of ",
                                              region->ipc_handle.size(), " bytes, not of ",
                                              sizeof(handle)));
    }
    region->ipc_handle.copy(reinterpret_cast<char*>(&handle), sizeof(handle));
    const CurrentCudaContext current(context_->driver(), context_->context());
    MEMTIDE_RETURN_IF_ERROR(current.status());
    CUdeviceptr address = 0;
    MEMTIDE_RETURN_IF_ERROR(CudaStatus(
        context_->driver().IpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        absl::StrCat("opening ", FormatBytes(region->size),
                     " of the daemon's GPU memory by its IPC handle (daemon and program must share "
                     "the PID and IPC namespaces of one container)")));
    region->import = std::make_unique<OpenedHandle>(context_, address);
  }
  return static_cast<OpenedHandle&>(*region->import).address();
}

absl::Status CudaPointers::Map(PlaceId place, Region* region, Bytes offset, Access access) {
  MEMTIDE_ASSIGN_OR_RETURN(char* const address, Import(region));
  CountMap();
  const MutexLock lock(&mutex_);
  mappings_[place.value()] = {address + offset.count(), 0};
  return absl::OkStatus();
}

void CudaPointers::EndUse(absl::Span<const PlaceId> places) {
  const uint64_t fence = context_->NoteWork();
  const MutexLock lock(&mutex_);
  for (const PlaceId place : places) {
    if (place.value() >= mappings_.size()) continue;  // LeaseCache reports such a place.
    mappings_[place.value()].fence = std::max(mappings_[place.value()].fence, fence);
  }
}

absl::Status CudaPointers::Unmap(PlaceId place) {
  uint64_t fence;
  {
    const MutexLock lock(&mutex_);
    fence = mappings_[place.value()].fence;
    mappings_[place.value()].address = nullptr;
  }
  // The address stays valid until the region closes; waiting keeps the slot's next tenant safe.
  return context_->AwaitOrGiveUp(fence);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AddressSpace>> OpenCudaPointers(const AddressSpace::Options& options,
                                                               const std::string& uuid) {
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<CudaContext> context, CudaContext::Open(uuid));
  return std::make_unique<CudaPointers>(options, std::move(context));
}

}  // namespace memtide::client
