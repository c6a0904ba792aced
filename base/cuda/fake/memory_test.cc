// Memory of the fake GPU: allocated, mapped, exported, and shared with other processes.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/cuda/fake/fake_cuda_fixture.h"
#include "base/cuda/fake/importer_process.h"
#include "gtest/gtest.h"

namespace memtide::fake_cuda {
namespace {

TEST_F(FakeCudaTest, FreshMemoryIsPoison) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuMemAlloc(&memory, 5), CUDA_SUCCESS);
  EXPECT_EQ(std::string(At(memory), kPiece), std::string(kPiece, kPoison));
  EXPECT_EQ(Free(), MiB(30)) << "rounded up to 2 MiB";
  EXPECT_EQ(cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, EachDeviceHasItsCapacity) {
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cu_.vmm.Create(&handle, 16 * kPiece, &properties_, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle more = 0;
  EXPECT_EQ(cu_.vmm.Create(&more, kPiece, &properties_, 0), CUDA_ERROR_OUT_OF_MEMORY);
  properties_.location.id = 1;
  EXPECT_EQ(cu_.vmm.Create(&more, kPiece, &properties_, 0), CUDA_SUCCESS);
  properties_.location.id = 2;
  EXPECT_EQ(cu_.vmm.Create(&more, kPiece, &properties_, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, MemoryIsFreeWhenHandleMappingAndDescriptorAreGone) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  char* const memory = Map(handle, kPiece);
  const int fd = Export(handle);
  EXPECT_EQ(cu_.vmm.Release(handle), CUDA_SUCCESS);
  EXPECT_EQ(Free(), MiB(30));
  close(fd);
  EXPECT_EQ(Free(), MiB(30));
  EXPECT_EQ(memory[7], kPoison);
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  EXPECT_EQ(cu_.vmm.Unmap(address, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(Free(), MiB(32));
  EXPECT_EQ(cu_.vmm.AddressFree(address, kPiece), CUDA_SUCCESS);
  EXPECT_TRUE(Held().empty());
}

TEST_F(FakeCudaTest, OnlyWholeAllocationsAreMappedAndWholeMappingsUnmapped) {
  const CUmemGenericAllocationHandle handle = Create(2 * kPiece);
  const CUdeviceptr at = Reserve(4 * kPiece);
  EXPECT_EQ(cu_.vmm.Map(at, kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.vmm.Map(at, kPiece, kPiece, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.vmm.Map(at + 4096, 2 * kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.vmm.Map(at + 3 * kPiece, 2 * kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu_.vmm.Map(at + kPiece, 2 * kPiece, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu_.vmm.Map(at, 2 * kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "overlaps";
  EXPECT_EQ(cu_.vmm.SetAccess(at + kPiece, kPiece, &access_, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.vmm.Unmap(at + kPiece, kPiece), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.vmm.AddressFree(at, 4 * kPiece), CUDA_ERROR_INVALID_VALUE) << "still mapped";
  EXPECT_EQ(cu_.vmm.Unmap(at + kPiece, 2 * kPiece), CUDA_SUCCESS);
  EXPECT_EQ(cu_.vmm.AddressFree(at, 4 * kPiece), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, SizesAreMultiplesOfTheGranularity) {
  size_t granularity = 0;
  EXPECT_EQ(cu_.vmm.GetAllocationGranularity(&granularity, &properties_,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(granularity, kPiece);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cu_.vmm.Create(&handle, 4096, &properties_, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr address = 0;
  EXPECT_EQ(cu_.vmm.AddressReserve(&address, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, AnAccessBeforeItIsAllowedIsASegmentationFault) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  const CUdeviceptr address = Reserve(kPiece);
  ASSERT_EQ(cu_.vmm.Map(address, kPiece, 0, handle, 0), CUDA_SUCCESS);
  char* const memory = reinterpret_cast<char*>(address);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], memory, 1), -1) << "not even the kernel reads it";
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
  char byte = 'x';
  EXPECT_EQ(cuMemcpyHtoDAsync(address, &byte, 1, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaTest, OnlyMemoryMadeForItIsExported) {
  properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  int fd = -1;
  EXPECT_EQ(cu_.vmm.ExportToShareableHandle(&fd, Create(kPiece), kDescriptor, 0),
            CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cu_.vmm.ImportFromShareableHandle(&handle, reinterpret_cast<void*>(0), kDescriptor),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, AnotherProcessSharesTheMemoryAndKeepsItUntilItIsKilled) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  char* const memory = Map(handle, kPiece);
  const int fd = Export(handle);
  {
    ImporterProcess other({MemoryKind::kCudaDescriptor, MiB(2), fd, ""});
    other.Poke(Bytes(9), "theirs");
    EXPECT_EQ(std::string(memory + 9, 6), "theirs");
    std::memcpy(memory, "ours", 4);
    EXPECT_EQ(other.Peek(Bytes(0), Bytes(4)), "ours");
    close(fd);
    EXPECT_TRUE(ResetGpu(0).ok());
    EXPECT_TRUE(UseGpu(0).ok());
    EXPECT_EQ(Free(), MiB(30)) << "theirs";
    EXPECT_EQ(other.Peek(Bytes(9), Bytes(6)), "theirs");
  }
  EXPECT_EQ(Free(), MiB(32));
}

TEST_F(FakeCudaTest, LegacyHandlesAreForOtherProcesses) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuMemAlloc(&memory, kPiece), CUDA_SUCCESS);
  CUipcMemHandle handle;
  EXPECT_EQ(cuIpcGetMemHandle(&handle, memory + 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuIpcGetMemHandle(&handle, memory), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  EXPECT_EQ(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
            CUDA_ERROR_INVALID_CONTEXT);
  const std::string bytes(reinterpret_cast<const char*>(&handle), sizeof(handle));
  {
    ImporterProcess other({MemoryKind::kCudaIpc, MiB(2), -1, bytes});
    other.Poke(Bytes(3), "theirs");
    EXPECT_EQ(std::string(At(memory) + 3, 6), "theirs");
    ASSERT_EQ(cuMemFree(memory), CUDA_SUCCESS);
    EXPECT_EQ(Free(), MiB(30));
    EXPECT_EQ(other.Peek(Bytes(3), Bytes(2)), std::string(2, kPoison));
  }
  EXPECT_EQ(Free(), MiB(32));
  EXPECT_EQ(cuIpcGetMemHandle(&handle, memory), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, AccessIsGivenToAListOfDevices) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  const CUdeviceptr address = Reserve(kPiece);
  ASSERT_EQ(cu_.vmm.Map(address, kPiece, 0, handle, 0), CUDA_SUCCESS);
  CUmemAccessDesc list[] = {access_, access_};
  EXPECT_EQ(cu_.vmm.SetAccess(address, kPiece, list, 2), CUDA_ERROR_INVALID_VALUE) << "named twice";
  list[1].location.id = 2;
  EXPECT_EQ(cu_.vmm.SetAccess(address, kPiece, list, 2), CUDA_ERROR_INVALID_VALUE) << "no device";
  list[1].location.id = 1;
  list[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  EXPECT_EQ(cu_.vmm.SetAccess(address, kPiece, list, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.vmm.SetAccess(address, kPiece, list, 2), CUDA_SUCCESS);
  *reinterpret_cast<char*>(address) = 'a';
}

}  // namespace
}  // namespace memtide::fake_cuda
