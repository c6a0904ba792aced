#include "client/rpc/default_chunk_size.h"

#include <gtest/gtest.h>

namespace memtide::client {
namespace {

v1::InspectNodeResponse Node(Bytes device, Bytes host) {
  v1::InspectNodeResponse node;
  for (const auto& [tier, free] : {std::pair{v1::TIER_DEVICE, device}, {v1::TIER_HOST, host}}) {
    if (free.IsZero()) continue;
    v1::Pool* const pool = node.add_pools();
    pool->set_tier(tier);
    pool->set_free_bytes(free.count());
  }
  return node;
}

TEST(DefaultChunkSizeTest, IsA24thOfHostMemoryAndATwelfthOfTheDevice) {
  EXPECT_EQ(DefaultChunkSize({}, Node(Bytes(0), MiB(250))), MiB(10));
  EXPECT_EQ(DefaultChunkSize({}, Node(MiB(96), GiB(1))), MiB(8));
  EXPECT_EQ(DefaultChunkSize({}, Node(MiB(96), MiB(97))), MiB(4));
}

TEST(DefaultChunkSizeTest, ItIsTheNamedDeviceThatCountsOrTheEmptiest) {
  v1::InspectNodeResponse node = Node(MiB(96), GiB(10));
  v1::Pool* const second = node.add_pools();
  second->set_tier(v1::TIER_DEVICE);
  second->set_free_bytes(MiB(48).count());
  second->set_device_number(1);
  second->set_cuda_device_uuid("sixteen bytes of");
  v1::OpenRequest request;
  EXPECT_EQ(DefaultChunkSize(request, node), MiB(8));
  request.set_device_number(1);
  EXPECT_EQ(DefaultChunkSize(request, node), MiB(4));
  request.set_device_number(0);
  EXPECT_EQ(DefaultChunkSize(request, node), MiB(8));
  request.set_cuda_device_uuid("sixteen bytes of");
  EXPECT_EQ(DefaultChunkSize(request, node), MiB(4));
}

TEST(DefaultChunkSizeTest, OfSharesNeedsNoNode) {
  EXPECT_EQ(DefaultChunkSize(MiB(96), MiB(240)), MiB(8));
  EXPECT_EQ(DefaultChunkSize(Bytes(0), Bytes(0)), MiB(64));
}

TEST(DefaultChunkSizeTest, IsNeitherTooSmallNorTooLarge) {
  EXPECT_EQ(DefaultChunkSize({}, Node(Bytes(0), MiB(8))), MiB(2));
  EXPECT_EQ(DefaultChunkSize({}, Node(GiB(80), GiB(1000))), MiB(128));
  EXPECT_EQ(DefaultChunkSize({}, Node(Bytes(0), GiB(1000))), MiB(64));
  EXPECT_EQ(DefaultChunkSize({}, v1::InspectNodeResponse()), MiB(64));
}

// There is one region for each slot.
TEST(DefaultChunkSizeTest, NoSlotOfTheDeviceIsARegionTooMany) {
  EXPECT_EQ(DefaultChunkSize(GiB(46), MiB(256)), MiB(12));
  EXPECT_EQ(DefaultChunkSize(GiB(8), MiB(48)), MiB(2)) << "4096 regions";
  EXPECT_EQ(DefaultChunkSize(GiB(8) + MiB(2), MiB(48)), MiB(4)) << "4097 regions";
}

TEST(DefaultChunkSizeTest, RequestedSharesCountWhereTheNodeHasSuchMemory) {
  v1::OpenRequest request;
  request.set_device_share_bytes(MiB(48).count());
  request.set_host_share_bytes(MiB(240).count());
  EXPECT_EQ(DefaultChunkSize(request, Node(MiB(960), GiB(10))), MiB(4));
  EXPECT_EQ(DefaultChunkSize(request, Node(Bytes(0), GiB(10))), MiB(10));
}

TEST(DefaultChunkSizeTest, MemoryOfJobsThatEndCountsAsFree) {
  v1::InspectNodeResponse node = Node(Bytes(0), MiB(48));
  node.mutable_pools(0)->set_scrubbing_bytes(MiB(192).count());
  EXPECT_EQ(DefaultChunkSize({}, node), MiB(10));
}

TEST(DefaultChunkSizeTest, MemoryReclaimableFromOtherJobsCountsAsFree) {
  v1::InspectNodeResponse node = Node(Bytes(0), MiB(4));
  node.mutable_pools(0)->set_obtainable_bytes(MiB(240).count());
  EXPECT_EQ(DefaultChunkSize({}, node), MiB(10));
}

TEST(DefaultChunkSizeTest, AQuotaMayPermitLessThanIsFree) {
  v1::InspectNodeResponse node = Node(Bytes(0), GiB(10));
  node.mutable_pools(0)->set_obtainable_bytes(MiB(240).count());
  EXPECT_EQ(DefaultChunkSize({}, node), MiB(10));
}

}  // namespace
}  // namespace memtide::client
