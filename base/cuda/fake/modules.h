// The fake's functions for modules of code, and for launching their kernels. Thread-safe.
#ifndef MEMTIDE_BASE_CUDA_FAKE_MODULES_H_
#define MEMTIDE_BASE_CUDA_FAKE_MODULES_H_

#include <cuda.h>

namespace memtide::fake_cuda {

// Accepts any code: only kernels that DefineKernel names are in it.
CUresult ModuleLoadData(CUmodule* module, const void* image);
CUresult ModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
CUresult LaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                      unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                      unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                      void** parameters, void** extra);

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_MODULES_H_
