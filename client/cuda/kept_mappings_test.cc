// CudaSpace keeps mappings of places whose leases have ended.
#include "client/cuda/kept_mappings.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/cuda/fake/fake_cuda.h"
#include "client/cuda/testing/cuda_space_harness.h"

namespace memtide::client {
namespace {

constexpr PlaceId kPlace(3), kOther(4);

TEST(KeptMappingsTest, EachPlaceIsUnmappedInOneOfSixtyFourIterations) {
  KeptMappings mappings(64, /*keeps=*/true);
  const Region region;
  for (uint64_t i = 0; i < KeptMappings::kQuietIterations; ++i) {
    EXPECT_FALSE(mappings.Release(kPlace));
    mappings.EndIteration();
  }
  EXPECT_EQ(mappings.protected_iterations(), KeptMappings::kQuietIterations);
  int unmapped = 0;
  for (uint64_t i = 0; i < KeptMappings::kSample; ++i) {
    mappings.Hold(kPlace, &region);
    unmapped += !mappings.Release(kPlace);
    mappings.EndIteration();
  }
  EXPECT_EQ(unmapped, 1);
  mappings.Protect();
  EXPECT_FALSE(mappings.Release(kPlace));
}

// A space after two iterations without anything new.
class KeptMappingsSpaceTest : public testing::Test {
 protected:
  KeptMappingsSpaceTest() {
    for (uint64_t i = 0; i < KeptMappings::kQuietIterations; ++i) space_->EndIteration();
  }
  // Maps the region at the place, and unmaps it again.
  void Use(PlaceId place, Region* region) {
    ASSERT_TRUE(space_->Map(place, region, Bytes(0), Access::kWrite).ok());
    memcpy(space_->address(place), "used", 5);
    ASSERT_TRUE(space_->Unmap(place).ok());
  }

  const Lent first_, second_;
  Region regions_[2] = {first_.Share(), second_.Share()};
  std::unique_ptr<AddressSpace> space_ = Reserve();
};

TEST_F(KeptMappingsSpaceTest, AChunkThatComesBackToItsSlotNeedsNoMap) {
  for (int i = 0; i < 4; ++i) {
    Use(kPlace, &regions_[0]);
    Use(kOther, &regions_[1]);
  }
  EXPECT_EQ(space_->maps(), 2u);
  Use(kPlace, &regions_[1]);
  EXPECT_EQ(space_->maps(), 3u);
  EXPECT_STREQ(second_.data(), "used");
}

TEST_F(KeptMappingsSpaceTest, ARegionThatGoesIsUnmappedEverywhere) {
  Use(kPlace, &regions_[0]);
  Use(kOther, &regions_[0]);
  Use(PlaceId(5), &regions_[1]);
  const uint64_t before = fake_cuda::Held().mappings;
  space_->Forget(regions_[0]);
  EXPECT_EQ(fake_cuda::Held().mappings, before - 2);
  Use(kPlace, &regions_[0]);
  EXPECT_EQ(space_->maps(), 4u);
}

TEST_F(KeptMappingsSpaceTest, WhatIsNewEndsAllKeptMappings) {
  Use(kPlace, &regions_[0]);
  ASSERT_TRUE(space_->Map(kOther, &regions_[1], Bytes(0), Access::kWrite).ok());
  space_->Protect();
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(*space_->address(kPlace) = 'x', "");
  *space_->address(kOther) = 'x';  // A lease holds it.
  EXPECT_TRUE(space_->Unmap(kOther).ok());
  EXPECT_DEATH(*space_->address(kOther) = 'x', "");
}

TEST_F(KeptMappingsSpaceTest, WithProtectionNothingIsKept) {
  const Protecting protecting;
  space_ = Reserve();
  for (int i = 0; i < 3; ++i) space_->EndIteration();
  Use(kPlace, &regions_[0]);
  Use(kPlace, &regions_[0]);
  EXPECT_EQ(space_->maps(), 2u);
  EXPECT_EQ(space_->protected_iterations(), 3u);
}

TEST_F(KeptMappingsSpaceTest, ReleasesKeptMappingsWhenDestroyed) {
  Use(kPlace, &regions_[0]);
  const uint64_t before = fake_cuda::Held().mappings;
  space_.reset();
  EXPECT_EQ(fake_cuda::Held().mappings, before - 1);
}

}  // namespace
}  // namespace memtide::client
