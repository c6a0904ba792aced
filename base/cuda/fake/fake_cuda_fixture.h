// FakeCudaTest: the fixture of the tests of the fake driver, with two GPUs of 32 MiB. After a
// test the first one is reset, and all of its memory must be free.
#ifndef MEMTIDE_BASE_CUDA_FAKE_FAKE_CUDA_FIXTURE_H_
#define MEMTIDE_BASE_CUDA_FAKE_FAKE_CUDA_FIXTURE_H_

#include <chrono>
#include <cstddef>

#include "base/bytes.h"
#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "gtest/gtest.h"

namespace memtide::fake_cuda {

inline const SharedFakeCuda shared_fake_cuda("memory=32MiB,devices=2");
inline constexpr size_t kPiece = size_t{2} << 20;

class FakeCudaTest : public testing::Test {
 protected:
  FakeCudaTest() : cu_(**LoadCudaDriver()) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access_.location = properties_.location;
    access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    EXPECT_TRUE(UseGpu(0).ok());
  }
  ~FakeCudaTest() override {
    ClearFaults();
    SetDelay(std::chrono::microseconds(200));
    SetPinnedLimit(Bytes());
    SetRates(Bytes(), Bytes());
    EXPECT_TRUE(ResetGpu(0).ok());
    EXPECT_TRUE(UseGpu(0).ok());
    EXPECT_EQ(Free(), MiB(32));
  }

  static Bytes Free() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return Bytes(free);
  }
  CUmemGenericAllocationHandle Create(size_t size) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cu_.vmm.Create(&handle, size, &properties_, 0), CUDA_SUCCESS);
    return handle;
  }
  CUdeviceptr Reserve(size_t size) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu_.vmm.AddressReserve(&address, size, 0, 0, 0), CUDA_SUCCESS);
    return address;
  }
  char* Map(CUmemGenericAllocationHandle handle, size_t size) {
    const CUdeviceptr address = Reserve(size);
    EXPECT_EQ(cu_.vmm.Map(address, size, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu_.vmm.SetAccess(address, size, &access_, 1), CUDA_SUCCESS);
    return reinterpret_cast<char*>(address);
  }
  int Export(CUmemGenericAllocationHandle handle) {
    int fd = -1;
    EXPECT_EQ(cu_.vmm.ExportToShareableHandle(&fd, handle, kDescriptor, 0), CUDA_SUCCESS);
    return fd;
  }

  static char* At(CUdeviceptr memory) { return reinterpret_cast<char*>(memory); }

  static constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CudaDriver& cu_;
  CUmemAllocationProp properties_ = {};
  CUmemAccessDesc access_ = {};
};

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_FAKE_CUDA_FIXTURE_H_
