// CudaMemory: one piece of a GPU's memory that can be lent to another process.
//
// Two ways. A descriptor: one cuMemCreate (a mapping cannot begin inside an allocation, nor be
// split), mapped here for copies; its descriptor is kept, so that the bytes outlive this process's
// use of the GPU and can be opened again after a reset. Legacy IPC: cudaMalloc and its handle; the
// bytes go with the context. Freeing it while an importer has it open is not defined by CUDA: the
// caller frees it when nobody does.
//
// Makes the bare objects and releases them, nothing else: locking, zeroing and retries are
// CudaDevice's. REQUIRES (all): the GPU is the calling thread's current one. Errors name the
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
  // Its bytes are anything. RESOURCE_EXHAUSTED: the GPU has no more.
  static absl::StatusOr<std::unique_ptr<CudaMemory>> Create(const CudaMemoryOptions& options,
                                                            MemoryKind kind);
  // Releases what it has. What fails is tried once more and then left: in a context that is lost
  // everything fails, and its reset releases everything.
  virtual ~CudaMemory() = default;

  const std::string& name() const { return options_.name; }
  Bytes size() const { return options_.size; }
  // "memory \"NAME\" (64 MiB)"
  std::string Describe() const;

  virtual MemoryExport Export() const = 0;
  // Where it is in this process. UNAVAILABLE: its bytes are lost.
  virtual absl::StatusOr<char*> Address() const = 0;

  // After the GPU was reset: first Forget all memory, which undoes what the reset may have left,
  // then Reopen each.
  virtual void Forget() = 0;
  virtual absl::Status Reopen() = 0;

 protected:
  explicit CudaMemory(const CudaMemoryOptions& options) : options_(options) {}

  const CudaMemoryOptions& options() const { return options_; }
  // `error` as a status that says which call it was, and on what.
  template <typename Error>
  absl::Status Failed(Error error, absl::string_view call) const {
    return CudaStatus(error, Describing(call));
  }

 private:
  std::string Describing(absl::string_view call) const;

  const CudaMemoryOptions options_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_CUDA_MEMORY_H_
