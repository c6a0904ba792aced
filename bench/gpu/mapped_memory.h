// MappedMemory: GPU memory from the driver's virtual memory interface, with an address in this
// process. For probes: an error ends the process with a message.
#ifndef MEMTIDE_BENCH_GPU_MAPPED_MEMORY_H_
#define MEMTIDE_BENCH_GPU_MAPPED_MEMORY_H_

#include <cstddef>
#include <string>
#include <utility>

#include "base/cuda/cuda.h"

namespace memtide::bench {

void OrDie(const absl::Status& status);
inline void OrDie(CUresult error, const char* what) { OrDie(CudaStatus(error, what)); }

// The driver's functions. Copies and allocations need a context in the calling thread as well.
const CudaDriver& Driver();
// CUDA's name of the error.
std::string NameOf(CUresult error);
// Makes the first GPU's context current for the calling thread.
void UseFirstGpu();

class MappedMemory {
 public:
  // Allocates memory, or imports it from a descriptor, which the caller still owns.
  static MappedMemory Create(size_t bytes);
  static MappedMemory Import(int descriptor, size_t bytes);
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&&) = delete;
  ~MappedMemory();

  // Returns a descriptor of the memory, which the caller owns.
  int Export() const;
  // REQUIRES: each is called once, and Unmap while mapped. The handle may be released while the
  // memory is mapped.
  void Map();
  // Maps it, and opens it for no access yet.
  void MapClosed();
  void SetAccess(CUmemAccess_flags flags);
  void Unmap();
  void ReleaseHandle();
  // Releases mapping, handle and address after a reset, and returns the names of CUDA's errors.
  std::string Abandon();

  CUdeviceptr data() const { return base_; }
  size_t size() const { return bytes_; }
  void Fill(int value);
  // Whether every byte is `value`.
  bool Holds(int value) const;

 private:
  MappedMemory(CUmemGenericAllocationHandle handle, size_t bytes);

  CUmemGenericAllocationHandle handle_;
  size_t bytes_;
  CUdeviceptr base_ = 0;
  bool has_handle_ = true, mapped_ = false;
};

// The free memory of the current GPU, in bytes.
size_t FreeGpuMemory();

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_MAPPED_MEMORY_H_
