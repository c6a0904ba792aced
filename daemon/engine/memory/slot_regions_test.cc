// Device memory that is lent slot by slot, and how it is asked for.
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/resize_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;

StatusCode CodeOfOpen(EngineHarness& node, absl::optional<MemoryKind> kind, Bytes device_share) {
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(900 + open.call.value());
  open.chunk_size = kChunk;
  open.device_share = device_share;
  open.device_memory = kind;
  node.Post(ClientConnected{open.session, 1, 1});
  node.Post(open);
  const StatusCode code = node.CodeOf(open.call);
  node.Post(ClientGone{open.session});
  return code;
}

TEST(SlotRegionsTest, EverySlotOfTheDeviceIsARegionOfItsOwn) {
  ResizeHarness node;
  const SessionId session = node.OpenEight();
  node.Fill(session);
  uint32_t on_device = 0;
  for (const MakeRegion& made : node.made_) {
    EXPECT_EQ(made.memory, made.pool.tier == Tier::kDevice ? MemoryKind::kCudaDescriptor
                                                           : MemoryKind::kSharedMemory);
    if (made.pool.tier != Tier::kDevice) continue;
    ++on_device;
    EXPECT_EQ(made.size, kChunk);
  }
  EXPECT_EQ(on_device, 8u);
}

TEST(SlotRegionsTest, TheNodeSaysHowItsDeviceCanLend) {
  ResizeHarness node;
  EXPECT_EQ(CodeOfOpen(node, MemoryKind::kCudaIpc, kChunk * 4), StatusCode::kOk);
  EXPECT_EQ(node.made_[0].memory, MemoryKind::kCudaIpc);
  EXPECT_EQ(node.made_[0].size, kChunk * 4) << "as large as shared memory's";
  EXPECT_EQ(CodeOfOpen(node, absl::nullopt, kChunk * 4), StatusCode::kOk);
  EngineOptions options = SlotRegions();
  options.device_kinds = {MemoryKind::kCudaIpc};
  ResizeHarness ipc_only(options);
  OpenCall open;
  open.call = ipc_only.Call();
  open.session = SessionId(7);
  open.chunk_size = kChunk;
  open.device_memory = MemoryKind::kCudaDescriptor;
  ipc_only.Post(ClientConnected{open.session, 1, 1});
  ipc_only.Post(open);
  EXPECT_EQ(ipc_only.CodeOf(open.call), StatusCode::kFailedPrecondition);
  EXPECT_NE(ipc_only.ReplyTo(open.call).status.message().find("it can as CUDA_IPC"),
            absl::string_view::npos);
  options.device_kinds = {MemoryKind::kSharedMemory};
  ResizeHarness emulated(options);
  EXPECT_EQ(CodeOfOpen(emulated, MemoryKind::kCudaDescriptor, kChunk * 4), StatusCode::kOk);
}

TEST(SlotRegionsTest, AJobHasNoMoreRegionsThanTheLimit) {
  EngineOptions options = SlotRegions();
  options.limits.device_regions = 6;
  ResizeHarness node(options);
  EXPECT_EQ(CodeOfOpen(node, absl::nullopt, kChunk * 7), StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOfOpen(node, absl::nullopt, kChunk * 6), StatusCode::kOk);
  EXPECT_EQ(CodeOfOpen(node, MemoryKind::kCudaIpc, kChunk * 7), StatusCode::kOk);
}

TEST(SlotRegionsTest, NoUserHasSoManyRegionsThatOthersFindNone) {
  EngineOptions options = SlotRegions();
  options.device_capacities = {kChunk * 256};
  options.limits.device_regions_per_node = 64;
  ResizeHarness node(options);
  const auto open = [&node](uint32_t uid, uint64_t slots) {
    OpenCall call;
    call.device_share = kChunk * slots;
    call.host_share = call.ssd_share = kChunk * 4;
    return node.CodeOf(node.BeginOpenAs(call, uid));
  };
  EXPECT_EQ(open(1000, 33), StatusCode::kResourceExhausted);
  EXPECT_EQ(open(1000, 20), StatusCode::kOk);
  EXPECT_EQ(open(1000, 13), StatusCode::kResourceExhausted);
  EXPECT_EQ(open(1000, 12), StatusCode::kOk) << "half of all";
  EXPECT_EQ(open(1000, 4), StatusCode::kResourceExhausted);
  EXPECT_EQ(open(1001, 17), StatusCode::kResourceExhausted);
  EXPECT_EQ(open(1001, 16), StatusCode::kOk) << "half of the rest";
  EXPECT_EQ(open(1002, 8), StatusCode::kOk);
  const CallId last = node.BeginOpenAs(OpenCall(), 1000);
  EXPECT_EQ(node.ReplyTo(last).status.message().rfind("device_regions_per_node: ", 0), 0u)
      << node.ReplyTo(last).status;
}

TEST(SlotRegionsTest, AJobOpensWithFourSlotsOrNotAtAll) {
  ResizeHarness node;
  node.hold_memory_ = true;
  OpenCall open;
  open.call = node.Call();
  open.session = SessionId(7);
  open.chunk_size = kChunk;
  node.Post(ClientConnected{open.session, 1, 1});
  node.Post(open);
  for (int round = 0; round < 3; ++round) {
    node.FinishMemory();
    EXPECT_FALSE(node.Answered(open.call));
  }
  node.fail_memory_ = true;
  node.FinishMemory();
  EXPECT_EQ(node.CodeOf(open.call), StatusCode::kOk);
  EXPECT_EQ(node.made_.size(), 5u) << "four of the device, one of the host";
}

}  // namespace
}  // namespace memtide
