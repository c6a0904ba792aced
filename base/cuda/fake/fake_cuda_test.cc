#include "base/cuda/fake/fake_cuda.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/cuda/cuda.h"
#include "base/cuda/fake/importer_process.h"
#include "gtest/gtest.h"

namespace memtide::fake_cuda {
namespace {

const SharedFakeCuda shared("memory=32MiB,devices=2");
constexpr size_t kPiece = size_t{2} << 20;

class FakeCudaTest : public testing::Test {
 protected:
  FakeCudaTest() : cu_(**LoadCudaDriver()) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access_.location = properties_.location;
    access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  ~FakeCudaTest() override {
    ClearFaults();
    SetDelay(std::chrono::microseconds(200));
    EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
    cudaGetLastError();
    EXPECT_EQ(Free(), MiB(32));
  }

  static Bytes Free() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return Bytes(free);
  }
  CUmemGenericAllocationHandle Create(size_t size) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cu_.MemCreate(&handle, size, &properties_, 0), CUDA_SUCCESS);
    return handle;
  }
  CUdeviceptr Reserve(size_t size) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cu_.MemAddressReserve(&address, size, 0, 0, 0), CUDA_SUCCESS);
    return address;
  }
  char* Map(CUmemGenericAllocationHandle handle, size_t size) {
    const CUdeviceptr address = Reserve(size);
    EXPECT_EQ(cu_.MemMap(address, size, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu_.MemSetAccess(address, size, &access_, 1), CUDA_SUCCESS);
    return reinterpret_cast<char*>(address);
  }
  int Export(CUmemGenericAllocationHandle handle) {
    int fd = -1;
    EXPECT_EQ(cu_.MemExportToShareableHandle(&fd, handle, kDescriptor, 0), CUDA_SUCCESS);
    return fd;
  }

  static constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CudaDriver& cu_;
  CUmemAllocationProp properties_ = {};
  CUmemAccessDesc access_ = {};
};

TEST_F(FakeCudaTest, FreshMemoryIsPoison) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 5), cudaSuccess);
  EXPECT_EQ(std::string(static_cast<char*>(memory), kPiece), std::string(kPiece, kPoison));
  EXPECT_EQ(Free(), MiB(30)) << "rounded up to 2 MiB";
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
}

TEST_F(FakeCudaTest, EachDeviceHasItsCapacity) {
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cu_.MemCreate(&handle, 16 * kPiece, &properties_, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle more = 0;
  EXPECT_EQ(cu_.MemCreate(&more, kPiece, &properties_, 0), CUDA_ERROR_OUT_OF_MEMORY);
  properties_.location.id = 1;
  EXPECT_EQ(cu_.MemCreate(&more, kPiece, &properties_, 0), CUDA_SUCCESS);
  properties_.location.id = 2;
  EXPECT_EQ(cu_.MemCreate(&more, kPiece, &properties_, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, MemoryIsFreeWhenHandleMappingAndDescriptorAreGone) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  char* const memory = Map(handle, kPiece);
  const int fd = Export(handle);
  EXPECT_EQ(cu_.MemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(Free(), MiB(30));
  close(fd);
  EXPECT_EQ(Free(), MiB(30));
  EXPECT_EQ(memory[7], kPoison);
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  EXPECT_EQ(cu_.MemUnmap(address, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(Free(), MiB(32));
  EXPECT_EQ(cu_.MemAddressFree(address, kPiece), CUDA_SUCCESS);
  EXPECT_TRUE(Held().empty());
}

TEST_F(FakeCudaTest, OnlyWholeAllocationsAreMappedAndWholeMappingsUnmapped) {
  const CUmemGenericAllocationHandle handle = Create(2 * kPiece);
  const CUdeviceptr at = Reserve(4 * kPiece);
  EXPECT_EQ(cu_.MemMap(at, kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemMap(at, kPiece, kPiece, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemMap(at + 4096, 2 * kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemMap(at + 3 * kPiece, 2 * kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu_.MemMap(at + kPiece, 2 * kPiece, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu_.MemMap(at, 2 * kPiece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "overlaps";
  EXPECT_EQ(cu_.MemSetAccess(at + kPiece, kPiece, &access_, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemUnmap(at + kPiece, kPiece), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemAddressFree(at, 4 * kPiece), CUDA_ERROR_INVALID_VALUE) << "still mapped";
  EXPECT_EQ(cu_.MemUnmap(at + kPiece, 2 * kPiece), CUDA_SUCCESS);
  EXPECT_EQ(cu_.MemAddressFree(at, 4 * kPiece), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, SizesAreMultiplesOfTheGranularity) {
  size_t granularity = 0;
  EXPECT_EQ(
      cu_.MemGetAllocationGranularity(&granularity, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      CUDA_SUCCESS);
  EXPECT_EQ(granularity, kPiece);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cu_.MemCreate(&handle, 4096, &properties_, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr address = 0;
  EXPECT_EQ(cu_.MemAddressReserve(&address, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaTest, AnAccessBeforeItIsAllowedIsASegmentationFault) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  const CUdeviceptr address = Reserve(kPiece);
  ASSERT_EQ(cu_.MemMap(address, kPiece, 0, handle, 0), CUDA_SUCCESS);
  char* const memory = reinterpret_cast<char*>(address);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], memory, 1), -1) << "not even the kernel reads it";
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
  char byte = 'x';
  EXPECT_EQ(cudaMemcpy(memory, &byte, 1, cudaMemcpyHostToDevice), cudaErrorIllegalAddress);
}

TEST_F(FakeCudaTest, OnlyMemoryMadeForItIsExported) {
  properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  int fd = -1;
  EXPECT_EQ(cu_.MemExportToShareableHandle(&fd, Create(kPiece), kDescriptor, 0),
            CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cu_.MemImportFromShareableHandle(&handle, reinterpret_cast<void*>(0), kDescriptor),
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
    EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
    EXPECT_EQ(Free(), MiB(30)) << "theirs";
    EXPECT_EQ(other.Peek(Bytes(9), Bytes(6)), "theirs");
  }
  EXPECT_EQ(Free(), MiB(32));
}

TEST_F(FakeCudaTest, LegacyHandlesAreForOtherProcesses) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kPiece), cudaSuccess);
  cudaIpcMemHandle_t handle;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, static_cast<char*>(memory) + 1), cudaErrorInvalidValue);
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaSuccess);
  void* again = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess),
            cudaErrorDeviceUninitialized);
  const std::string bytes(reinterpret_cast<const char*>(&handle), sizeof(handle));
  {
    ImporterProcess other({MemoryKind::kCudaIpc, MiB(2), -1, bytes});
    other.Poke(Bytes(3), "theirs");
    EXPECT_EQ(std::string(static_cast<char*>(memory) + 3, 6), "theirs");
    ASSERT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(Free(), MiB(30));
    EXPECT_EQ(other.Peek(Bytes(3), Bytes(2)), std::string(2, kPoison));
  }
  EXPECT_EQ(Free(), MiB(32));
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaErrorInvalidValue);
}

TEST_F(FakeCudaTest, CopiesAreDelayed) {
  SetDelay(std::chrono::hours(1));
  void* memory = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kPiece), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess) << "never recorded";
  ASSERT_EQ(cudaMemcpyAsync(memory, "new", 3, cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(static_cast<char*>(memory)[0], kPoison);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess) << "which finishes it";
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(std::string(static_cast<char*>(memory), 3), "new");
}

TEST_F(FakeCudaTest, AnEventOfTheContextAwaitsEveryStream) {
  void* memory = nullptr;
  cudaStream_t streams[2] = {};
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kPiece), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(static_cast<char*>(memory) + i, 'a', 1, streams[i]), cudaSuccess);
  }
  CUcontext context = nullptr;
  ASSERT_EQ(cu_.CtxGetCurrent(&context), CUDA_SUCCESS);
  ASSERT_NE(context, nullptr);
  ASSERT_EQ(cu_.CtxRecordEvent(context, event), CUDA_SUCCESS);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(std::string(static_cast<char*>(memory), 2), "aa");
}

TEST_F(FakeCudaTest, UnmappingUnderWorkBreaksTheContextUntilItIsReset) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  char* const memory = Map(handle, kPiece);
  const int fd = Export(handle);
  memory[0] = 'k';
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(memory, 'a', 1, stream), cudaSuccess);
  ASSERT_EQ(cu_.MemUnmap(reinterpret_cast<CUdeviceptr>(memory), kPiece), CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  CUmemGenericAllocationHandle imported = 0;
  void* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  EXPECT_EQ(cu_.MemImportFromShareableHandle(&imported, descriptor, kDescriptor),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_TRUE(Held().empty());
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cu_.MemImportFromShareableHandle(&imported, descriptor, kDescriptor), CUDA_SUCCESS);
  EXPECT_EQ(Map(imported, kPiece)[0], 'k') << "the descriptor kept it";
  close(fd);
}

TEST_F(FakeCudaTest, ChangingTheAccessOfOpenMemoryBreaksWorkThatIsQueuedOnIt) {
  const CUmemGenericAllocationHandle handles[] = {Create(kPiece), Create(kPiece)};
  char* const memory[] = {Map(handles[0], kPiece), Map(handles[1], kPiece)};
  SetDelay(std::chrono::milliseconds(20));
  ASSERT_EQ(cudaMemsetAsync(memory[0], 'a', 1, nullptr), cudaSuccess);
  ASSERT_EQ(cu_.MemSetAccess(reinterpret_cast<CUdeviceptr>(memory[1]), kPiece, &access_, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess) << "the work uses other memory";
  EXPECT_EQ(memory[0][0], 'a');
  ASSERT_EQ(cudaMemcpyAsync(memory[1], memory[0], 1, cudaMemcpyDefault, nullptr), cudaSuccess);
  ASSERT_EQ(cu_.MemSetAccess(reinterpret_cast<CUdeviceptr>(memory[0]), kPiece, &access_, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorIllegalAddress);
  EXPECT_EQ(memory[1][0], kPoison);
}

TEST_F(FakeCudaTest, MemoryThatIsMappedAnewUnderWorkBreaksIt) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  const auto address = reinterpret_cast<CUdeviceptr>(Map(handle, kPiece));
  SetDelay(std::chrono::milliseconds(20));
  ASSERT_EQ(cudaMemsetAsync(reinterpret_cast<void*>(address), 'a', 1, nullptr), cudaSuccess);
  ASSERT_EQ(cu_.MemUnmap(address, kPiece), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemMap(address, kPiece, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemSetAccess(address, kPiece, &access_, 1), CUDA_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorIllegalAddress);
}

TEST_F(FakeCudaTest, ALostContextDropsAllWorkThatIsQueued) {
  char* const memory = Map(Create(kPiece), kPiece);
  cudaStream_t streams[2] = {};
  for (cudaStream_t& stream : streams) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  const CUdeviceptr unmapped = Reserve(kPiece);
  ASSERT_EQ(cudaMemsetAsync(reinterpret_cast<void*>(unmapped), 0, 1, streams[0]), cudaSuccess);
  SetDelay(std::chrono::hours(1));
  ASSERT_EQ(cudaMemsetAsync(memory, 'a', 1, streams[0]), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(memory + 1, 'b', 1, streams[1]), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(std::string(memory, 2), std::string(2, kPoison));
}

TEST_F(FakeCudaTest, AccessIsGivenToAListOfDevices) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  const CUdeviceptr address = Reserve(kPiece);
  ASSERT_EQ(cu_.MemMap(address, kPiece, 0, handle, 0), CUDA_SUCCESS);
  CUmemAccessDesc list[] = {access_, access_};
  EXPECT_EQ(cu_.MemSetAccess(address, kPiece, list, 2), CUDA_ERROR_INVALID_VALUE) << "named twice";
  list[1].location.id = 2;
  EXPECT_EQ(cu_.MemSetAccess(address, kPiece, list, 2), CUDA_ERROR_INVALID_VALUE) << "no device";
  list[1].location.id = 1;
  list[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  EXPECT_EQ(cu_.MemSetAccess(address, kPiece, list, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu_.MemSetAccess(address, kPiece, list, 2), CUDA_SUCCESS);
  *reinterpret_cast<char*>(address) = 'a';
}

TEST_F(FakeCudaTest, ACallTakesTheTimeThatItCosts) {
  SetCost("cudaMemGetInfo", std::chrono::milliseconds(3));
  const Instant start = Now();
  Free();
  EXPECT_GE(Now() - start, std::chrono::milliseconds(3));
  SetCost("cudaMemGetInfo", Duration(0));
}

TEST_F(FakeCudaTest, InjectedFaultsFailTheirCalls) {
  FailCall("cudaMalloc", 2, cudaErrorMemoryAllocation);
  void* memory = nullptr;
  const uint64_t before = CallCount("cudaMalloc");
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaSuccess);
  EXPECT_EQ(CallCount("cudaMalloc"), before + 3);
  FailCall("*", 1, cudaErrorNotSupported);
  EXPECT_EQ(cudaFree(memory), cudaErrorNotSupported);
}

TEST_F(FakeCudaTest, HostMemoryIsPinnedOnceAndInPieces) {
  std::vector<char> memory(8192);
  ASSERT_EQ(cudaHostRegister(&memory[0], 4096, cudaHostRegisterPortable), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(&memory[4095], 2, 0), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaHostRegister(&memory[4096], (size_t{64} << 30) + 1, 0), cudaErrorInvalidValue);
  EXPECT_EQ(Held().registrations, 1u);
  EXPECT_EQ(cudaHostUnregister(&memory[1]), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaHostUnregister(&memory[0]), cudaSuccess);
}

TEST_F(FakeCudaTest, TheDirectionOfACopyIsThatOfItsMemory) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kPiece), cudaSuccess);
  char host[4] = "abc";
  EXPECT_EQ(cudaMemcpy(memory, host, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(memory, host, 4, cudaMemcpyDefault), cudaSuccess);
  unsigned type = 0;
  EXPECT_EQ(cu_.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(memory)),
            CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
}

TEST_F(FakeCudaTest, DoesNotSurviveAFork) {
  const pid_t child = fork();
  if (child == 0) {
    void* memory = nullptr;
    _exit(cudaMalloc(&memory, 1) == cudaErrorInitializationError ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace memtide::fake_cuda
