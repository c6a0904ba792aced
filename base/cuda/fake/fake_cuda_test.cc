#include "base/cuda/fake/fake_cuda.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
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

  static char* At(CUdeviceptr memory) { return reinterpret_cast<char*>(memory); }

  static constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CudaDriver& cu_;
  CUmemAllocationProp properties_ = {};
  CUmemAccessDesc access_ = {};
};

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
  EXPECT_EQ(cuMemcpyHtoDAsync(address, &byte, 1, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
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

TEST_F(FakeCudaTest, CopiesAreDelayed) {
  SetDelay(std::chrono::hours(1));
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(cuMemAlloc(&memory, kPiece), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS) << "never recorded";
  ASSERT_EQ(cuMemcpyHtoDAsync(memory, "new", 3, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(At(memory)[0], kPoison);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS) << "which finishes it";
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(std::string(At(memory), 3), "new");
}

TEST_F(FakeCudaTest, AnEventOfTheContextAwaitsEveryStream) {
  CUdeviceptr memory = 0;
  CUstream streams[2] = {};
  CUevent event = nullptr;
  ASSERT_EQ(cuMemAlloc(&memory, kPiece), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuMemsetD8Async(memory + i, 'a', 1, streams[i]), CUDA_SUCCESS);
  }
  CUcontext context = nullptr;
  ASSERT_EQ(cu_.CtxGetCurrent(&context), CUDA_SUCCESS);
  ASSERT_NE(context, nullptr);
  ASSERT_EQ(cu_.CtxRecordEvent(context, event), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(std::string(At(memory), 2), "aa");
}

TEST_F(FakeCudaTest, UnmappingUnderWorkBreaksTheContextUntilItIsReset) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  char* const memory = Map(handle, kPiece);
  const int fd = Export(handle);
  memory[0] = 'k';
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  ASSERT_EQ(cuMemsetD8Async(address, 'a', 1, stream), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemUnmap(address, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUmemGenericAllocationHandle imported = 0;
  void* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  EXPECT_EQ(cu_.MemImportFromShareableHandle(&imported, descriptor, kDescriptor),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_TRUE(ResetGpu(0).ok());
  EXPECT_TRUE(Held().empty());
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_TRUE(UseGpu(0).ok());
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cu_.MemImportFromShareableHandle(&imported, descriptor, kDescriptor), CUDA_SUCCESS);
  EXPECT_EQ(Map(imported, kPiece)[0], 'k') << "the descriptor kept it";
  close(fd);
}

TEST_F(FakeCudaTest, ChangingTheAccessOfOpenMemoryBreaksWorkThatIsQueuedOnIt) {
  const CUmemGenericAllocationHandle handles[] = {Create(kPiece), Create(kPiece)};
  char* const memory[] = {Map(handles[0], kPiece), Map(handles[1], kPiece)};
  SetDelay(std::chrono::milliseconds(20));
  ASSERT_EQ(cuMemsetD8Async(DeviceAddress(memory[0]), 'a', 1, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemSetAccess(reinterpret_cast<CUdeviceptr>(memory[1]), kPiece, &access_, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS) << "the work uses other memory";
  EXPECT_EQ(memory[0][0], 'a');
  ASSERT_EQ(cuMemcpyAsync(DeviceAddress(memory[1]), DeviceAddress(memory[0]), 1, nullptr),
            CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemSetAccess(reinterpret_cast<CUdeviceptr>(memory[0]), kPiece, &access_, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(memory[1][0], kPoison);
}

TEST_F(FakeCudaTest, MemoryThatIsMappedAnewUnderWorkBreaksIt) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  const auto address = reinterpret_cast<CUdeviceptr>(Map(handle, kPiece));
  SetDelay(std::chrono::milliseconds(20));
  ASSERT_EQ(cuMemsetD8Async(address, 'a', 1, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemUnmap(address, kPiece), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemMap(address, kPiece, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu_.MemSetAccess(address, kPiece, &access_, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaTest, ALostContextDropsAllWorkThatIsQueued) {
  char* const memory = Map(Create(kPiece), kPiece);
  CUstream streams[2] = {};
  for (CUstream& stream : streams) {
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  const CUdeviceptr unmapped = Reserve(kPiece);
  ASSERT_EQ(cuMemsetD8Async(unmapped, 0, 1, streams[0]), CUDA_SUCCESS);
  SetDelay(std::chrono::hours(1));
  ASSERT_EQ(cuMemsetD8Async(DeviceAddress(memory), 'a', 1, streams[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(DeviceAddress(memory + 1), 'b', 1, streams[1]), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
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
  SetCost("cuMemGetInfo", std::chrono::milliseconds(3));
  const Instant start = Now();
  Free();
  EXPECT_GE(Now() - start, std::chrono::milliseconds(3));
  SetCost("cuMemGetInfo", Duration(0));
}

TEST_F(FakeCudaTest, InjectedFaultsFailTheirCalls) {
  FailCall("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr memory = 0;
  const uint64_t before = CallCount("cuMemAlloc");
  EXPECT_EQ(cuMemAlloc(&memory, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&memory, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&memory, 1), CUDA_SUCCESS);
  EXPECT_EQ(CallCount("cuMemAlloc"), before + 3);
  FailCall("*", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemFree(memory), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(FakeCudaTest, HostMemoryIsPinnedOnceAndInPieces) {
  std::vector<char> memory(8192);
  ASSERT_EQ(cuMemHostRegister(&memory[0], 4096, CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister(&memory[4095], 2, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuMemHostRegister(&memory[4096], (size_t{64} << 30) + 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Held().registrations, 1u);
  EXPECT_EQ(cuMemHostUnregister(&memory[1]), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuMemHostUnregister(&memory[0]), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, TheDirectionOfACopyIsThatOfItsMemory) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuMemAlloc(&memory, kPiece), CUDA_SUCCESS);
  char host[4] = "abc";
  const auto elsewhere = reinterpret_cast<CUdeviceptr>(&host);
  EXPECT_EQ(cuMemcpyDtoHAsync(host, elsewhere, 4, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoDAsync(elsewhere, host, 4, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoDAsync(memory, host, 4, nullptr), CUDA_SUCCESS);
  unsigned type = 0;
  EXPECT_EQ(cu_.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
}

TEST_F(FakeCudaTest, AThreadHasNoContextUntilItTakesOne) {
  std::thread([] {
    CUdeviceptr memory = 0;
    EXPECT_EQ(cuMemAlloc(&memory, kPiece), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_TRUE(UseGpu(1).ok());
    EXPECT_EQ(cuMemAlloc(&memory, kPiece), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(memory), CUDA_SUCCESS);
  }).join();
}

TEST_F(FakeCudaTest, DoesNotSurviveAFork) {
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr memory = 0;
    _exit(cuMemAlloc(&memory, 1) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(FakeCudaTest, NoMoreIsPinnedThanTheLimit) {
  std::string memory(16384, 'x');
  SetPinnedLimit(KiB(12));
  void* host = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostRegister(&memory[0], 8192, 0), CUDA_SUCCESS);
  EXPECT_EQ(PinnedBytes(), KiB(12));
  EXPECT_EQ(cuMemHostRegister(&memory[8192], 1, 0), CUDA_ERROR_OUT_OF_MEMORY);
  void* more = nullptr;
  EXPECT_EQ(cuMemHostAlloc(&more, 1, CU_MEMHOSTALLOC_PORTABLE), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister(&memory[8192], 4096, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(&memory[8192]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(&memory[0]), CUDA_SUCCESS);
}

TEST_F(FakeCudaTest, ARateHoldsForItsKindOfHostMemoryOnly) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuMemAlloc(&memory, kPiece), CUDA_SUCCESS);
  std::string pinned(kPiece, 'p'), pageable(4096, 'h');
  ASSERT_EQ(cuMemHostRegister(&pinned[0], kPiece, 0), CUDA_SUCCESS);
  CUstream slow = nullptr, fast = nullptr;
  ASSERT_EQ(cuStreamCreate(&slow, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&fast, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  // At a byte a second, 4 KiB do not arrive before the test ends.
  SetRates(Bytes(1'000'000'000), Bytes(1));
  const Bytes before = PageableBytes();
  ASSERT_EQ(cuMemcpyHtoDAsync(memory, pageable.data(), 4096, slow), CUDA_SUCCESS);
  EXPECT_EQ(PageableBytes() - before, KiB(4));
  ASSERT_EQ(cuMemcpyHtoDAsync(memory, pinned.data(), kPiece, fast), CUDA_SUCCESS);
  EXPECT_EQ(PageableBytes() - before, KiB(4)) << "pinned copies are not counted";
  ASSERT_EQ(cuStreamSynchronize(fast), CUDA_SUCCESS);
  EXPECT_EQ(std::string(At(memory), kPiece), pinned);
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, slow), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
}

TEST_F(FakeCudaTest, ACopyWhoseHostMemoryIsUnregisteredBreaks) {
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuMemAlloc(&memory, kPiece), CUDA_SUCCESS);
  std::string host(4096, 'h');
  ASSERT_EQ(cuMemHostRegister(&host[0], host.size(), 0), CUDA_SUCCESS);
  SetDelay(std::chrono::seconds(1));
  ASSERT_EQ(cuMemcpyHtoDAsync(memory, host.data(), host.size(), nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostUnregister(&host[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace memtide::fake_cuda
