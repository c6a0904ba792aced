// CudaSpace over the fake CUDA: real descriptors, real addresses.
#include "client/cuda/cuda_space.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "client/cuda/testing/cuda_space_harness.h"

namespace memtide::client {
namespace {

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

TEST(CudaSpaceTest, ANumberNamesADeviceThatThisProcessSees) {
  const auto first = CudaDeviceUuid(0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, Uuid());
  const size_t seen = CudaDevices()->size();
  const absl::Status beyond = CudaDeviceUuid(static_cast<uint32_t>(seen)).status();
  EXPECT_EQ(beyond.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(beyond.message().find(absl::StrCat("sees ", seen, " GPUs")), absl::string_view::npos)
      << beyond;
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
