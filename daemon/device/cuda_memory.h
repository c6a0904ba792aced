// CudaMemory: one allocation of GPU memory that other processes can map.
//
// There are two kinds. By descriptor: one cuMemCreate (a mapping can neither begin inside an
// allocation nor be split), mapped in this process for copies. CudaMemory keeps the descriptor
// open, so that the bytes survive a reset of the GPU and can be mapped again. By legacy IPC:
// cuMemAlloc and its handle; the bytes are lost with the context. CUDA does not define what happens
// if such memory is freed while another process maps it, so the caller frees it only when none
// does.
//
// The class creates and releases CUDA objects and nothing else; CudaDevice locks, zeroes and
// retries. REQUIRES (all): the GPU's context is current in the calling thread. Errors name the
// memory, its size and the call that failed.
#ifndef MEMTIDE_DAEMON_DEVICE_CUDA_MEMORY_H_
#define MEMTIDE_DAEMON_DEVICE_CUDA_MEMORY_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/cuda/cuda.h"
#include "base/memory_kind.h"

namespace memtide {

struct CudaMemoryOptions {
  const CudaDriver* driver = nullptr;
  int ordinal = 0;
  std::string name;
  Bytes size;
};

class CudaMemory {
 public:
  // The bytes are undefined. RESOURCE_EXHAUSTED if the GPU has too little free memory.
  static absl::StatusOr<std::unique_ptr<CudaMemory>> Create(const CudaMemoryOptions& options,
                                                            MemoryKind kind);
  // Releases the memory. A failure is retried once and then ignored: in a lost context everything
  // fails, and the reset releases everything.
  virtual ~CudaMemory() = default;

  const std::string& name() const { return options_.name; }
  Bytes size() const { return options_.size; }
  // "memory \"NAME\" (64 MiB)"
  std::string Describe() const;

  virtual MemoryExport Export() const = 0;
  // Address in this process. UNAVAILABLE if the bytes are lost.
  virtual absl::StatusOr<CUdeviceptr> Address() const = 0;

  // After the GPU was reset: first Forget all memory, which undoes what the reset may have left,
  // then Reopen each.
  virtual void Forget() = 0;
  virtual absl::Status Reopen() = 0;

 protected:
  explicit CudaMemory(const CudaMemoryOptions& options) : options_(options) {}

  const CudaMemoryOptions& options() const { return options_; }
  const CudaDriver& cu() const { return *options_.driver; }
  // `error` as a status that says which call it was, and on what.
  absl::Status Failed(CUresult error, absl::string_view call) const;

 private:
  const CudaMemoryOptions options_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_CUDA_MEMORY_H_
