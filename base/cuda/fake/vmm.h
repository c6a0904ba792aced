// The fake driver's functions that create, export and map memory; cuGetProcAddress hands them out.
// Thread-safe.
#ifndef MEMTIDE_BASE_CUDA_FAKE_VMM_H_
#define MEMTIDE_BASE_CUDA_FAKE_VMM_H_

#include "base/cuda/cuda.h"

namespace memtide::fake_cuda {

CUresult MemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                     CUmemAllocationGranularity_flags option);
CUresult MemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                   const CUmemAllocationProp* properties, unsigned long long flags);
CUresult MemRelease(CUmemGenericAllocationHandle handle);
CUresult MemExportToShareableHandle(void* descriptor, CUmemGenericAllocationHandle handle,
                                    CUmemAllocationHandleType type, unsigned long long flags);
CUresult MemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* descriptor,
                                      CUmemAllocationHandleType type);
CUresult MemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr hint,
                           unsigned long long flags);
CUresult MemAddressFree(CUdeviceptr address, size_t size);
CUresult MemMap(CUdeviceptr address, size_t size, size_t offset,
                CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult MemUnmap(CUdeviceptr address, size_t size);
CUresult MemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access,
                      size_t count);

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_VMM_H_
