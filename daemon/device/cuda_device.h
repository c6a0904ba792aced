// CudaDevice: a GPU, through the seam.
//
// Memory is lent by descriptor where the driver can, and by legacy IPC for clients that want a
// plain pointer or where it cannot. A stream for each direction and one for new memory; each call
// waits for an event of its own, asleep.
//
// An error after which a context is of no use loses the GPU, not the state: everybody is locked
// out, the GPU is reset, host memory pinned and every living descriptor opened again, and the call
// that met the error is made once more. Memory lent by legacy IPC does not survive that: its copies
// return UNAVAILABLE from then on. Where the restart itself fails every call does, and says so.
//
// Thread-safe. Must outlive its memory. Lines for people (a restart, host memory that cannot be
// pinned) go to a callback, from any thread.
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
#include "daemon/device/cuda_gate.h"
#include "daemon/device/cuda_host_memory.h"
#include "daemon/device/cuda_memory.h"
#include "daemon/device/device.h"

namespace memtide {

struct CudaDeviceOptions {
  std::string device;  // An ordinal, or the beginning of a GPU-uuid. Empty: the first.
  // How long an allocation waits for importers of memory freed lately to let it go.
  Duration patience = std::chrono::seconds(2);
  std::function<void(const std::string& line)> warn = [](const std::string&) {};
};

// Which of `devices` is meant. FAILED_PRECONDITION: none, and which there are.
absl::StatusOr<CudaDeviceFacts> ChooseCudaDevice(const std::vector<CudaDeviceFacts>& devices,
                                                 const std::string& device);

class CudaDevice : public Device {
 public:
  // FAILED_PRECONDITION, UNAVAILABLE: no GPU can be used, and what to do about it.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(const CudaDeviceOptions& options);
  // REQUIRES: its memory is gone.
  ~CudaDevice() override;

  std::string Describe() const override;
  std::vector<MemoryKind> kinds() const override;
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
  using Enqueue = std::function<cudaError_t(char* at, cudaStream_t stream)>;

  CudaDevice(const CudaDeviceOptions& options, const CudaDriver* driver,
             const CudaDeviceFacts& facts);

  absl::Status MakeStreams();
  void DestroyStreams();

  // Does `work` inside the gate, and once more after a restart if it lost the GPU.
  absl::Status Run(const std::function<absl::Status()>& work);
  absl::Status Restart(uint64_t generation, const absl::Status& why);
  absl::Status Revive();
  absl::Status Lost() const;

  // Enqueues on the stream and waits for the end of it. What fails is no longer under way.
  absl::Status Wait(StreamOf stream, const std::string& what,
                    const std::function<cudaError_t(cudaStream_t)>& enqueue);
  absl::Status OnMemory(const DeviceMemory& memory, Bytes offset, Bytes size, StreamOf stream,
                        absl::string_view verb, const Enqueue& enqueue);
  absl::Status AllocateOnce(const CudaMemoryOptions& options, MemoryKind kind,
                            std::unique_ptr<CudaMemory>* memory);
  void Release(std::unique_ptr<CudaMemory> memory);
  void WarnUnpinned(const absl::Status& why);

  const CudaDeviceOptions options_;
  const CudaDriver* const driver_;
  const CudaDeviceFacts facts_;
  CudaGate gate_;
  CudaHostMemory host_;
  std::array<cudaStream_t, kStreams> streams_ = {};  // Changed behind the closed gate only.
  std::atomic<bool> warned_unpinned_{false};

  mutable Mutex mutex_;
  std::set<CudaMemory*> memories_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_CUDA_DEVICE_H_
