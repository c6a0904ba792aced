// MappedMemory: GPU memory of the driver's mapping interface, with an address here. For probes: any
// error ends the process with what failed.
#ifndef MEMTIDE_BENCH_GPU_MAPPED_MEMORY_H_
#define MEMTIDE_BENCH_GPU_MAPPED_MEMORY_H_

#include <cstddef>
#include <string>
#include <utility>

#include "base/cuda/cuda.h"

namespace memtide::bench {

void OrDie(const absl::Status& status);
inline void OrDie(cudaError_t error, const char* what) { OrDie(CudaStatus(error, what)); }
inline void OrDie(CUresult error, const char* what) { OrDie(CudaStatus(error, what)); }

const CudaDriver& Driver();

class MappedMemory {
 public:
  // Fresh memory of this process; or memory by a descriptor, which stays the caller's.
  static MappedMemory Create(size_t bytes);
  static MappedMemory Import(int descriptor, size_t bytes);
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&&) = delete;
  ~MappedMemory();

  // A descriptor of the caller's.
  int Export() const;
  // Each once, and Unmap only while mapped. The handle may go while the memory is mapped.
  void Map();
  void SetAccess(CUmemAccess_flags flags);
  void Unmap();
  void ReleaseHandle();
  // Gives up all three after a reset, whatever CUDA says to that; what it says, in its words.
  std::string Abandon();

  char* data() const { return reinterpret_cast<char*>(base_); }
  size_t size() const { return bytes_; }
  void Fill(int value);
  // Whether every byte has this value.
  bool Holds(int value) const;

 private:
  MappedMemory(CUmemGenericAllocationHandle handle, size_t bytes);

  CUmemGenericAllocationHandle handle_;
  size_t bytes_;
  CUdeviceptr base_ = 0;
  bool has_handle_ = true, mapped_ = false;
};

// Of the current GPU, in bytes.
size_t FreeGpuMemory();

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_MAPPED_MEMORY_H_
