// CudaDevice: the Device of a GPU.
//
// Host memory is pinned while the machine permits it, and copies from and to the rest go through
// staging_ring.h. Where CUDA lacks host memory itself, it gets some that was pinned.
//
// Memory is exported by descriptor if the driver can, and by legacy IPC otherwise or for clients
// that need a plain pointer. There is one stream per direction and one for new memory; each call
// blocks on CUDA events of its own.
//
// An error that breaks the CUDA context loses the GPU but not the bytes: CudaDevice stops all
// calls, resets the GPU, pins host memory again, reopens every living descriptor, and repeats the
// call that failed. Memory exported by legacy IPC does not survive the reset: its copies return
// UNAVAILABLE from then on. If the restart itself fails, every later call returns that error.
//
// Where a copy out met an uncorrectable error of the GPU's memory (ECC), its bytes are lost: the
// copy returns DATA_LOSS and is not repeated, and neither is that memory used again.
//
// Ownership: the CudaDevice must outlive the DeviceMemory that it allocates. Log lines (a restart,
// host memory that cannot be pinned) go to a callback, from any thread.
//
// Thread safety: thread-safe.
#ifndef MEMTIDE_DAEMON_DEVICE_CUDA_DEVICE_H_
#define MEMTIDE_DAEMON_DEVICE_CUDA_DEVICE_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/cuda/cuda.h"
#include "base/mutex.h"
#include "base/numa.h"
#include "daemon/device/cuda_gate.h"
#include "daemon/device/cuda_host_memory.h"
#include "daemon/device/cuda_memory.h"
#include "daemon/device/device.h"
#include "daemon/device/staging_ring.h"

namespace memtide {

struct CudaDeviceOptions {
  // An ordinal, or the beginning of a GPU-uuid or MIG-uuid. Empty: the first.
  std::string device;
  // Abilities that first_use/first_use.h found in the GPU. Memory is lent in a way only if the
  // driver has it, too.
  bool descriptors = true, legacy_ipc = true, maps_under_work = true;
  // How long Allocate waits for other processes to unmap memory that was freed shortly before.
  Duration patience = std::chrono::seconds(2);
  std::function<void(const std::string& line)> warn = [](const std::string&) {};
  // Gets the reason when a restart has failed, before any call returns it.
  std::function<void(const absl::Status& why)> lost = [](const absl::Status&) {};
  std::string sysfs = "/sys";  // Another root in tests of machines with several NUMA nodes.
};

// The placement near a GPU: where the driver does not know the node, sysfs may.
NumaPlacement PlacementOf(const CudaDeviceFacts& facts, const NumaTopology& topology);

// The one of `devices` that `device` names. FAILED_PRECONDITION, listing the devices, if none is.
absl::StatusOr<CudaDeviceFacts> ChooseCudaDevice(const std::vector<CudaDeviceFacts>& devices,
                                                 const std::string& device);

class CudaDevice : public Device {
 public:
  // NOT_FOUND, FAILED_PRECONDITION or UNAVAILABLE, with what to do about it, if no GPU can be used.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(const CudaDeviceOptions& options);
  // REQUIRES: all of its DeviceMemory is destroyed.
  ~CudaDevice() override;

  std::string Describe() const override;
  std::vector<MemoryKind> kinds() const override;
  bool maps_under_work() const override { return options_.maps_under_work; }
  // The second copy waits in the stream while the first one runs. Otherwise the copy engine would
  // be idle while a thread wakes and the engine decides: 60 to 150 us, of 1.3 ms that 64 MiB take.
  size_t copies_in_flight() const override { return StagingRing::kLanes; }
  NumaPlacement placement() const override { return placement_; }
  HostMemoryUse host_memory() const override;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(const std::string& name, Bytes size,
                                                         MemoryKind kind) override;
  void AddHostMemory(char* memory, Bytes size) override;
  void RemoveHostMemory(char* memory) override;
  absl::Status CopyIn(DeviceMemory& memory, Bytes offset, const char* host, Bytes size) override;
  absl::Status CopyOut(const DeviceMemory& memory, Bytes offset, char* host, Bytes size) override;
  absl::Status Zero(DeviceMemory& memory, Bytes offset, Bytes size) override;

 private:
  class Lent;
  enum StreamOf { kIn, kOut, kNew, kStreams };
  using What = std::string;  // The action of a call, for its error.
  // Copies from or to `at`, and waits for it.
  using Copy = std::function<absl::Status(CUdeviceptr at, const What& what)>;

  CudaDevice(const CudaDeviceOptions& options, const CudaDriver* driver,
             const CudaDeviceFacts& facts);

  static const CudaMemory& MemoryOf(const DeviceMemory& memory);

  absl::Status MakeStreams();
  absl::Status MakeRing();
  void DestroyStreams();

  // Runs `work` inside the gate, and a second time after a restart if it lost the GPU.
  absl::Status Run(const std::function<absl::Status()>& work);
  absl::Status Restart(uint64_t generation, const absl::Status& why);
  // Whether host memory could be pinned again.
  struct Pinned {
    absl::Status ring, host;
  };
  absl::Status Revive(Pinned* pinned);
  absl::Status Lost() const;

  // Enqueues on the stream and waits for completion. On failure nothing is left in flight.
  absl::Status Wait(StreamOf stream, const What& what,
                    const std::function<CUresult(CUstream)>& enqueue);
  // Runs a copy out, which may meet memory that failed: DATA_LOSS. The error ends the context, and
  // all that is in flight fails with it. So it is a copy's own only if no other copy out was in
  // flight, and if the context had not met such an error before. Others are repeated, one at a time
  // (kRepeated).
  enum class Reads { kTogether, kRepeated };
  absl::Status Reading(const What& what, Reads reads, const std::function<absl::Status()>& read);
  struct BegunRead {
    uint64_t number = 0;
    bool is_alone = false;  // No other copy out was in flight when it began.
  };
  BegunRead BeginReading(Reads reads);
  absl::Status MemoryFailed(const std::string& what) const;
  // The status of `result`. After a failure, waits for what the stream still has.
  absl::Status Settle(StreamOf stream, const What& what, CUresult result);
  // Copies through a lane of the ring. REQUIRES: buffers are pinned.
  absl::Status StageIn(CUdeviceptr to, const char* from, Bytes size, const What& what);
  absl::Status StageOut(CUdeviceptr from, char* to, Bytes size, const What& what);
  absl::Status OnMemory(const DeviceMemory& memory, Bytes offset, Bytes size,
                        absl::string_view verb, const Copy& copy);
  // Gives CUDA host memory that was pinned; false if nothing could be unpinned.
  bool UnpinSome();
  bool IsFree(Bytes size);
  absl::Status AllocateOnce(const CudaMemoryOptions& options, MemoryKind kind,
                            std::unique_ptr<CudaMemory>* memory);
  void Release(std::unique_ptr<CudaMemory> memory);
  void WarnUnpinned(const absl::Status& why);
  void WarnOfRing(const absl::Status& why);

  const CudaDeviceOptions options_;
  const CudaDriver* const driver_;
  const CudaDeviceFacts facts_;
  CudaGate gate_;
  const NumaPlacement placement_;
  CudaHostMemory host_;
  std::unique_ptr<StagingRing> ring_;
  std::array<CUstream, kStreams> streams_ = {};  // Changed behind the closed gate only.
  std::atomic<bool> warned_unpinned_{false};

  uint64_t contexts_ = 1;  // Contexts made so far. Changed behind the closed gate only.

  mutable Mutex mutex_;
  std::set<CudaMemory*> memories_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  std::set<const CudaMemory*> failed_ ABSL_GUARDED_BY(mutex_);  // By uncorrectable errors.
  CondVar reads_ended_;
  // Copies out that are in flight, and all that were begun.
  uint64_t reads_ ABSL_GUARDED_BY(mutex_) = 0, begun_reads_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t waiting_repeats_ ABSL_GUARDED_BY(mutex_) = 0;
  bool repeats_ ABSL_GUARDED_BY(mutex_) = false;  // A repeated copy is in flight.
  // The last context that has met failed memory.
  uint64_t failed_context_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_CUDA_DEVICE_H_
