// CudaSpace over the fake CUDA: real descriptors, real addresses, delayed copies.
#include "client/cuda/cuda_space.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"

namespace memtide::client {
namespace {

constexpr Bytes kChunk = MiB(4);

CUmemAllocationProp Properties() {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

// The daemon's side of a region.
class Lent {
 public:
  explicit Lent(Bytes size = kChunk) : size_(size) {
    const CUmemAllocationProp properties = Properties();
    EXPECT_EQ(driver_.MemCreate(&handle_, size.count(), &properties, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver_.MemAddressReserve(&base_, size.count(), 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver_.MemMap(base_, size.count(), 0, handle_, 0), CUDA_SUCCESS);
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    EXPECT_EQ(driver_.MemSetAccess(base_, size.count(), &access, 1), CUDA_SUCCESS);
  }
  ~Lent() {
    driver_.MemUnmap(base_, size_.count());
    driver_.MemAddressFree(base_, size_.count());
    driver_.MemRelease(handle_);
  }
  Region Share() const {
    int fd = -1;
    EXPECT_EQ(driver_.MemExportToShareableHandle(&fd, handle_,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    Region region;
    region.kind = MemoryKind::kCudaDescriptor;
    region.size = size_;
    region.memory = Descriptor(fd);
    return region;
  }
  char* data() const { return reinterpret_cast<char*>(base_); }

 private:
  const CudaDriver& driver_ = **LoadCudaDriver();
  const Bytes size_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr base_ = 0;
};

std::string Uuid() {
  const CudaUuid uuid = CudaDevices()->front().uuid;
  return std::string(uuid.data(), uuid.size());
}

std::unique_ptr<AddressSpace> Reserve() {
  auto space = ReserveCudaSpace({kChunk, 8}, Uuid());
  EXPECT_TRUE(space.ok()) << space.status();
  return *std::move(space);
}

Bytes FreeMemory() {
  size_t free = 0, total = 0;
  EXPECT_TRUE(UseGpu(0).ok());
  EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  return Bytes(free);
}

TEST(CudaSpaceTest, AMappedPlaceHasItsBytesAtItsOneAddress) {
  const Lent first, second;
  const auto space = Reserve();
  Region regions[] = {first.Share(), second.Share()};
  memcpy(first.data(), "first", 6);
  memcpy(second.data(), "second", 7);
  char* const address = space->address(PlaceId(3));
  EXPECT_EQ(address, space->base() + 3 * kChunk.count());
  ASSERT_TRUE(space->Map(PlaceId(3), &regions[0], Bytes(0), Access::kWrite).ok());
  EXPECT_STREQ(address, "first");
  memcpy(address, "written", 8);
  EXPECT_TRUE(space->Unmap(PlaceId(3)).ok());
  EXPECT_STREQ(first.data(), "written");
  ASSERT_TRUE(space->Map(PlaceId(3), &regions[1], Bytes(0), Access::kRead).ok());
  EXPECT_STREQ(address, "second");
  ASSERT_TRUE(space->MakeWritable(PlaceId(3)).ok());
  address[0] = 'S';
  EXPECT_STREQ(second.data(), "Second");
}

TEST(CudaSpaceDeathTest, AnAccessToAnUnmappedPlaceIsFatal) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto space = Reserve();
  EXPECT_DEATH(*space->address(PlaceId(0)) = 'x', "");
}

// Sets MEMTIDE_PROTECT=1 until it is destroyed.
class Protecting {
 public:
  Protecting() { setenv("MEMTIDE_PROTECT", "1", 1); }
  ~Protecting() { unsetenv("MEMTIDE_PROTECT"); }
};

TEST(CudaSpaceDeathTest, WithProtectionAWriteToAReadMappingIsFatalToo) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const Protecting protecting;
  const Lent lent;
  const auto space = Reserve();
  Region region = lent.Share();
  ASSERT_TRUE(space->Map(PlaceId(0), &region, Bytes(0), Access::kRead).ok());
  EXPECT_DEATH(*space->address(PlaceId(0)) = 'x', "");
  EXPECT_TRUE(space->Unmap(PlaceId(0)).ok());
  EXPECT_DEATH(*space->address(PlaceId(0)) = 'x', "");
}

// A region mapped at one place, and streams whose work on it is delayed.
class CudaSpaceWorkTest : public testing::Test {
 protected:
  static constexpr PlaceId kPlace = PlaceId(1);

  CudaSpaceWorkTest() {
    EXPECT_TRUE(UseGpu(0).ok());
    EXPECT_TRUE(space_->Map(kPlace, &region_, Bytes(0), Access::kWrite).ok());
  }
  ~CudaSpaceWorkTest() override {
    fake_cuda::SetDelay(std::chrono::microseconds(200));
    for (const CUstream stream : streams_) cuStreamDestroy(stream);
  }

  // Launches writes of 64 letters on each of two new streams; the second's follow the first's in
  // memory.
  void BeginToWrite(char first, char second) {
    for (CUstream& stream : streams_) {
      ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    }
    fake_cuda::SetDelay(std::chrono::milliseconds(50));
    const CUdeviceptr address = fake_cuda::DeviceAddress(space_->address(kPlace));
    ASSERT_EQ(cuMemsetD8Async(address, first, 64, streams_[0]), CUDA_SUCCESS);
    ASSERT_EQ(cuMemsetD8Async(address + 64, second, 64, streams_[1]), CUDA_SUCCESS);
  }
  void UseInAnEpoch(PlaceId place) {
    space_->EndUse({place});
    space_->BeginMoment();
  }
  std::string Written() const { return std::string(lent_.data(), 128); }

  const Lent lent_;
  const std::unique_ptr<AddressSpace> space_ = Reserve();
  Region region_ = lent_.Share();
  CUstream streams_[2] = {};
  std::atomic<int> threads_done_{0};
};

// The chunk is leased for reading, kernels read it, and an operation that writes it is launched.
TEST_F(CudaSpaceWorkTest, AChunkBecomesWritableUnderKernelsThatReadIt) {
  const auto upgrade_in_use = [](AddressSpace* space) {
    Lent lent;
    Region region = lent.Share();
    memcpy(lent.data(), "weight", 6);
    ASSERT_TRUE(space->Map(PlaceId(4), &region, Bytes(0), Access::kRead).ok());
    const CUdeviceptr address = fake_cuda::DeviceAddress(space->address(PlaceId(4)));
    fake_cuda::SetDelay(std::chrono::milliseconds(50));
    char read[6] = {};
    ASSERT_EQ(cuMemcpyDtoHAsync(read, address, 6, nullptr), CUDA_SUCCESS);
    space->EndUse({PlaceId(4)});
    ASSERT_TRUE(space->MakeWritable(PlaceId(4)).ok());
    ASSERT_EQ(cuMemsetD8Async(address, 'w', 6, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(std::string(read, 6), "weight");
    EXPECT_EQ(std::string(lent.data(), 6), "wwwwww");
    EXPECT_TRUE(space->Unmap(PlaceId(4)).ok());
  };
  const uint64_t calls = fake_cuda::CallCount("cuMemSetAccess");
  upgrade_in_use(space_.get());
  EXPECT_EQ(fake_cuda::CallCount("cuMemSetAccess") - calls, 2u) << "one is the daemon's side";
  const Protecting protecting;
  upgrade_in_use(Reserve().get());
}

const std::string kAsAndBs = std::string(64, 'a') + std::string(64, 'b');

TEST_F(CudaSpaceWorkTest, UnmapWaitsForWorkOfAllStreamsLaunchedBeforeTheUseEnded) {
  BeginToWrite('a', 'b');
  space_->EndUse({kPlace});
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(Written(), kAsAndBs);
}

TEST_F(CudaSpaceWorkTest, AnOldFenceStillDelaysUnmapManyUsesLater) {
  BeginToWrite('a', 'b');
  space_->EndUse({kPlace});
  for (int i = 0; i < 600; ++i) UseInAnEpoch(PlaceId(2));
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(Written(), kAsAndBs);
}

TEST_F(CudaSpaceWorkTest, AFailedWaitIsRetriedBeforeMemoryIsUnmapped) {
  BeginToWrite('a', 'b');
  space_->EndUse({kPlace});
  // Both waits return this while another thread captures a graph.
  fake_cuda::FailCall("cuEventQuery", 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  fake_cuda::FailCall("cuCtxSynchronize", 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  fake_cuda::ClearFaults();
  EXPECT_EQ(Written(), kAsAndBs);
}

TEST_F(CudaSpaceWorkTest, UnmapWaitsWhereNoEventCouldBeRecorded) {
  BeginToWrite('a', 'b');
  space_->EndUse({kPlace});
  fake_cuda::FailCall("cuCtxRecordEvent", 1, CUDA_ERROR_NOT_SUPPORTED);
  fake_cuda::FailCall("cuCtxRecordEvent", 2, CUDA_ERROR_NOT_SUPPORTED);
  space_->BeginMoment();
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  fake_cuda::ClearFaults();
  EXPECT_EQ(Written(), kAsAndBs);
}

// The work is older than all events that are kept.
TEST_F(CudaSpaceWorkTest, OldWorkDoesNotWaitForNewWork) {
  UseInAnEpoch(kPlace);
  for (int i = 0; i < 200; ++i) UseInAnEpoch(PlaceId(2));
  CUdeviceptr other = 0;
  CUevent other_done = nullptr;
  ASSERT_EQ(cuMemAlloc(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&other_done, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  fake_cuda::SetDelay(std::chrono::seconds(1));
  ASSERT_EQ(cuMemsetD8Async(other, 0, 1, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(other_done, nullptr), CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) UseInAnEpoch(PlaceId(2));
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(cuEventQuery(other_done), CUDA_ERROR_NOT_READY);
  EXPECT_FALSE(space_->IsDone(space_->FenceOf(PlaceId(2))));
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(other_done), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(other), CUDA_SUCCESS);
}

// In the worst case no moments are reported.
TEST_F(CudaSpaceWorkTest, AThousandUsesRecordThirtyOneEvents) {
  const uint64_t before = fake_cuda::CallCount("*");
  for (int i = 0; i < 1000; ++i) space_->EndUse({kPlace});
  EXPECT_EQ(fake_cuda::CallCount("*") - before, 1000u / 32);
  const uint64_t uses = fake_cuda::CallCount("*");
  for (int i = 0; i < 1000; ++i) space_->BeginMoment();
  EXPECT_EQ(fake_cuda::CallCount("*") - uses, 1u) << "only the first moment ends a use";
}

TEST_F(CudaSpaceWorkTest, UsesOfManyThreadsAreWaitedFor) {
  constexpr int kThreads = 4, kUses = 300;
  fake_cuda::SetDelay(std::chrono::microseconds(20));
  const CUdeviceptr bytes = fake_cuda::DeviceAddress(space_->address(kPlace));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      CUstream stream = nullptr;
      ASSERT_TRUE(UseGpu(0).ok());
      ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      for (int i = 0; i < kUses; ++i) {
        const char letter = i == kUses - 1 ? 'z' : 'a';
        ASSERT_EQ(cuMemsetD8Async(bytes + t, letter, 1, stream), CUDA_SUCCESS);
        space_->EndUse({kPlace});
        if (i % 7 == t) space_->BeginMoment();
        if (i % 50 == t) space_->IsDone(space_->RecordFence());
      }
      threads_done_.fetch_add(1);
      while (threads_done_.load() <= kThreads) std::this_thread::yield();
      ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
    });
  }
  while (threads_done_.load() < kThreads) std::this_thread::yield();
  EXPECT_TRUE(space_->Unmap(kPlace).ok());
  EXPECT_EQ(std::string(lent_.data(), kThreads), std::string(kThreads, 'z'));
  threads_done_.fetch_add(1);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CudaSpaceWorkTest, AFenceIsDoneWhenItsStreamsAre) {
  EXPECT_TRUE(space_->IsDone(space_->RecordFence()));
  BeginToWrite('a', 'b');
  const uint64_t work = space_->RecordFence();
  EXPECT_FALSE(space_->IsDone(work));
  for (const CUstream stream : streams_) {
    ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  EXPECT_TRUE(space_->IsDone(work));
}

TEST(CudaSpaceTest, MemoryIsFreeOnceTheRegionIsRemovedAndUnmapped) {
  const auto space = Reserve();
  const Bytes before = FreeMemory();
  auto lent = std::make_unique<Lent>();
  auto region = std::make_unique<Region>(lent->Share());
  EXPECT_EQ(FreeMemory() + kChunk, before);
  ASSERT_TRUE(space->Map(PlaceId(0), region.get(), Bytes(0), Access::kWrite).ok());
  lent.reset();
  EXPECT_EQ(FreeMemory() + kChunk, before);
  EXPECT_TRUE(space->Unmap(PlaceId(0)).ok());
  EXPECT_EQ(FreeMemory() + kChunk, before);
  region.reset();
  EXPECT_EQ(FreeMemory(), before);
}

TEST(CudaSpaceTest, ReleasesEverythingWhenDestroyed) {
  const Lent lent;
  const fake_cuda::Holdings before = fake_cuda::Held();
  {
    Region region = lent.Share();
    const auto space = Reserve();
    ASSERT_TRUE(space->Map(PlaceId(7), &region, Bytes(0), Access::kWrite).ok());
  }
  const fake_cuda::Holdings after = fake_cuda::Held();
  EXPECT_EQ(after.handles, before.handles);
  EXPECT_EQ(after.mappings, before.mappings);
  EXPECT_EQ(after.reservations, before.reservations);
  EXPECT_EQ(after.events, before.events);
}

TEST(CudaSpaceTest, AnyCallThatFailsIsAStatusAndLeavesNothing) {
  const Lent lent;
  const std::string uuid = Uuid();
  const fake_cuda::Holdings before = fake_cuda::Held();
  const auto use = [&](Region* region) -> absl::StatusOr<std::unique_ptr<AddressSpace>> {
    auto space = ReserveCudaSpace({kChunk, 8}, uuid);
    absl::Status status = space.status();
    if (status.ok()) status = (*space)->Map(PlaceId(0), region, Bytes(0), Access::kRead);
    if (status.ok()) status = (*space)->MakeWritable(PlaceId(0));
    if (status.ok()) {
      (*space)->EndUse({PlaceId(0)});
      // A failure is left to the next event.
      (*space)->BeginMoment();
    }
    fake_cuda::ClearFaults();  // The destructor cannot report a failure.
    if (!status.ok()) return status;
    return space;
  };
  // Calls that release something are excluded: their failure cannot be reported.
  int failed = 0;
  for (const char* name :
       {"cuDeviceGetCount", "cuDeviceGetName", "cuDeviceGetUuid", "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent", "cuEventCreate", "cuMemAddressReserve", "cuMemGetAllocationGranularity",
        "cuMemCreate", "cuMemMap", "cuMemImportFromShareableHandle", "cuMemSetAccess",
        "cuCtxRecordEvent"}) {
    for (uint64_t call = 1;; ++call) {
      Region region = lent.Share();
      fake_cuda::FailCall(name, call, CUDA_ERROR_OUT_OF_MEMORY);
      const uint64_t first = fake_cuda::CallCount(name);
      auto space = use(&region);
      const uint64_t calls = fake_cuda::CallCount(name) - first;
      if (!space.ok()) {
        // RESOURCE_EXHAUSTED from Map would suggest a lease budget, so it becomes INTERNAL.
        EXPECT_TRUE(absl::IsResourceExhausted(space.status()) || absl::IsInternal(space.status()))
            << space.status();
        ++failed;
      }
      space = absl::UnavailableError("ended");
      region = Region();
      const fake_cuda::Holdings after = fake_cuda::Held();
      EXPECT_EQ(after.handles + after.events, before.handles + before.events) << name << call;
      EXPECT_EQ(after.mappings + after.reservations, before.mappings + before.reservations)
          << name << call;
      if (calls < call) break;
    }
  }
  EXPECT_GT(failed, 60);
}

TEST(CudaSpaceTest, RefusesPartOfAnAllocation) {
  const Lent lent(MiB(8));
  const auto space = Reserve();
  Region region = lent.Share();
  EXPECT_EQ(space->Map(PlaceId(0), &region, Bytes(0), Access::kRead).code(),
            absl::StatusCode::kInternal);
}

TEST(CudaSpaceTest, ADeviceThatThisProcessDoesNotSeeIsNamed) {
  const auto space = ReserveCudaSpace({kChunk, 8}, std::string(16, '\x11'));
  EXPECT_EQ(space.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(space.status().message().find("GPU-11111111-1111-1111-1111-111111111111"),
            std::string::npos)
      << space.status();
}

TEST(CudaSpaceTest, MemoryThatCudaCallsTheHostsIsForTensorsOfTheCpu) {
  // The memory of a real GPU has type 2, kDLCUDA.
  EXPECT_EQ(Reserve()->device().type, 1);
}

}  // namespace
}  // namespace memtide::client
