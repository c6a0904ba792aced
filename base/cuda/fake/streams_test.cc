// Work that is queued on streams of the fake GPU: when it is done, and what breaks it.
#include <unistd.h>

#include <string>

#include "base/cuda/fake/fake_cuda_fixture.h"
#include "gtest/gtest.h"

namespace memtide::fake_cuda {
namespace {

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
  ASSERT_EQ(cu_.events.RecordContext(context, event), CUDA_SUCCESS);
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
  ASSERT_EQ(cu_.vmm.Unmap(address, kPiece), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUmemGenericAllocationHandle imported = 0;
  void* const descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  EXPECT_EQ(cu_.vmm.ImportFromShareableHandle(&imported, descriptor, kDescriptor),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_TRUE(ResetGpu(0).ok());
  EXPECT_TRUE(Held().empty());
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_TRUE(UseGpu(0).ok());
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cu_.vmm.ImportFromShareableHandle(&imported, descriptor, kDescriptor), CUDA_SUCCESS);
  EXPECT_EQ(Map(imported, kPiece)[0], 'k') << "the descriptor kept it";
  close(fd);
}

TEST_F(FakeCudaTest, ChangingTheAccessOfOpenMemoryBreaksWorkThatIsQueuedOnIt) {
  const CUmemGenericAllocationHandle handles[] = {Create(kPiece), Create(kPiece)};
  char* const memory[] = {Map(handles[0], kPiece), Map(handles[1], kPiece)};
  SetDelay(std::chrono::milliseconds(20));
  ASSERT_EQ(cuMemsetD8Async(DeviceAddress(memory[0]), 'a', 1, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cu_.vmm.SetAccess(reinterpret_cast<CUdeviceptr>(memory[1]), kPiece, &access_, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS) << "the work uses other memory";
  EXPECT_EQ(memory[0][0], 'a');
  ASSERT_EQ(cuMemcpyAsync(DeviceAddress(memory[1]), DeviceAddress(memory[0]), 1, nullptr),
            CUDA_SUCCESS);
  ASSERT_EQ(cu_.vmm.SetAccess(reinterpret_cast<CUdeviceptr>(memory[0]), kPiece, &access_, 1),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(memory[1][0], kPoison);
}

TEST_F(FakeCudaTest, MemoryThatIsMappedAnewUnderWorkBreaksIt) {
  const CUmemGenericAllocationHandle handle = Create(kPiece);
  const auto address = reinterpret_cast<CUdeviceptr>(Map(handle, kPiece));
  SetDelay(std::chrono::milliseconds(20));
  ASSERT_EQ(cuMemsetD8Async(address, 'a', 1, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cu_.vmm.Unmap(address, kPiece), CUDA_SUCCESS);
  ASSERT_EQ(cu_.vmm.Map(address, kPiece, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cu_.vmm.SetAccess(address, kPiece, &access_, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaTest, ALostContextDropsAllWorkThatIsQueued) {
  char* const memory = Map(Create(kPiece), kPiece);
  CUstream streams[2] = {};
  for (CUstream& stream : streams) {
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  const CUdeviceptr unmapped = Reserve(kPiece);
  SetDelay(std::chrono::milliseconds(200));  // The context is lost when all is queued.
  ASSERT_EQ(cuMemsetD8Async(unmapped, 0, 1, streams[0]), CUDA_SUCCESS);
  SetDelay(std::chrono::hours(1));
  ASSERT_EQ(cuMemsetD8Async(DeviceAddress(memory), 'a', 1, streams[0]), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(DeviceAddress(memory + 1), 'b', 1, streams[1]), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(std::string(memory, 2), std::string(2, kPoison));
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
