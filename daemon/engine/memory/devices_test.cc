// A node with several devices: each has a pool of its own.
#include <string>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

// Devices of 8, 12 and 12 slots, lent slot by slot.
EngineOptions ThreeDevices() {
  EngineOptions options = ThreeTiers();
  options.device_capacities = {kChunk * 8, kChunk * 12, kChunk * 12};
  options.host_capacity = kChunk * 64;
  options.device_kinds = {MemoryKind::kCudaDescriptor};
  options.quarantine_device_slots = true;
  return options;
}

class DevicesTest : public testing::Test {
 protected:
  static OpenCall On(absl::optional<uint32_t> device, uint64_t device_chunks,
                     std::string job = "") {
    OpenCall open;
    open.job_name = std::move(job);
    open.device = device;
    open.device_share = kChunk * device_chunks;
    open.elastic = true;
    return open;
  }
  OpenReply Open(const OpenCall& open, SessionId* session = nullptr) {
    const CallId call = node_.BeginOpenAs(open);
    if (session != nullptr) *session = node_.last_opened();
    const Reply& reply = node_.ReplyTo(call);
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    const auto* opened = std::get_if<OpenReply>(&reply.value);
    return opened == nullptr ? OpenReply() : *opened;
  }
  absl::Status Refused(const OpenCall& open) {
    return node_.ReplyTo(node_.BeginOpenAs(open)).status;
  }
  PoolUsage Device(uint32_t number) {
    const PoolUsage usage = node_.Inspect().pools[number];
    EXPECT_EQ(usage.pool, (Pool{Tier::kDevice, number}));
    return usage;
  }
  CallId Resize(SessionId session, uint64_t chunks) {
    ResizeCall resize{node_.Call(), session, kChunk * chunks};
    node_.Post(resize);
    return resize.call;
  }

  EngineHarness node_{ThreeDevices()};
};

TEST_F(DevicesTest, JobsOnTwoDevicesDoNotTakeEachOthersMemory) {
  EXPECT_EQ(Open(On(0, 8)).device, 0u);
  EXPECT_EQ(Device(0).free, Bytes(0));
  EXPECT_EQ(Device(1).free, kChunk * 12);
  EXPECT_EQ(Open(On(1, 12)).device, 1u);
  EXPECT_EQ(Device(1).free, Bytes(0));
  EXPECT_EQ(Device(2).free, kChunk * 12);
  for (const MakeRegion& made : node_.made_) {
    EXPECT_TRUE(made.pool.tier != Tier::kDevice || made.pool.device < 2);
  }
}

TEST_F(DevicesTest, AFullDeviceRefusesAJobThatNamesItAndTheErrorNamesTheDevice) {
  Open(On(1, 12));
  const absl::Status status = Refused(On(1, 4));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the device/1 pool has 0 B free of 24"));
  EXPECT_EQ(Open(On(2, 4)).device, 2u);
}

TEST_F(DevicesTest, AJobThatNamesNoDeviceHasTheEmptiestAndOfEqualOnesTheFirst) {
  EXPECT_EQ(Open(On(absl::nullopt, 4)).device, 1u);
  EXPECT_EQ(Open(On(absl::nullopt, 6)).device, 2u);
  EXPECT_EQ(Open(On(absl::nullopt, 4)).device, 0u) << "8 slots are free on 0 and 1, and 6 on 2";
  EXPECT_EQ(Open(On(absl::nullopt, 0)).device_slots, 8u) << "all of device 1 that is free";
  EXPECT_EQ(Device(1).free, Bytes(0));
}

TEST_F(DevicesTest, ADeviceThatDoesNotExistIsRefusedWithTheCountThatDoes) {
  const absl::Status status = Refused(On(3, 4));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("number 3, but the node has 3 devices, numbers 0 to 2"));
  EngineOptions options = ThreeTiers();
  options.device_capacities.clear();
  EngineHarness none(options);
  OpenCall open = On(0, 0);
  open.call = none.Call();
  open.session = SessionId(1);
  open.chunk_size = kChunk;
  none.Post(ClientConnected{open.session, 1000, 1});
  none.Post(open);
  EXPECT_EQ(none.CodeOf(open.call), StatusCode::kInvalidArgument);
}

TEST_F(DevicesTest, AJobIsJoinedOnItsOwnDeviceOnly) {
  EXPECT_EQ(Open(On(2, 4, "both")).device, 2u);
  EXPECT_EQ(Open(On(2, 4, "both")).device, 2u);
  EXPECT_EQ(Open(On(absl::nullopt, 4, "both")).device, 2u);
  const absl::Status status = Refused(On(1, 4, "both"));
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("on device 2, not on device 1"));
}

TEST_F(DevicesTest, AResizeUsesTheMemoryOfTheJobsDeviceOnly) {
  SessionId session;
  Open(On(0, 4), &session);
  Open(On(1, 12));
  EXPECT_EQ(node_.CodeOf(Resize(session, 8)), StatusCode::kOk);
  EXPECT_EQ(Device(0).free, Bytes(0));
  const CallId too_much = Resize(session, 9);
  EXPECT_EQ(node_.CodeOf(too_much), StatusCode::kResourceExhausted) << "device 2 is empty";
  EXPECT_THAT(std::string(node_.ReplyTo(too_much).status.message()),
              HasSubstr("the device/0 pool has 0 B free"));
  EXPECT_EQ(node_.CodeOf(Resize(session, 5)), StatusCode::kOk);
  EXPECT_EQ(Device(0).free, kChunk * 3);
  EXPECT_EQ(Device(1).free, Bytes(0));
}

TEST_F(DevicesTest, QuarantinedSlotsAreOfTheDeviceOfTheirSession) {
  SessionId killed;
  OpenCall open = On(1, 6);
  open.job_name = "kept";
  open.time_to_live = std::chrono::hours(1);
  Open(open, &killed);
  const std::vector<ChunkId> chunks = node_.Allocate(killed, 2);
  node_.Fetch(killed, chunks, Access::kWrite);
  node_.FinishTransfers();
  node_.Post(ClientGone{killed});
  EXPECT_EQ(Device(1).quarantined, kChunk * 2);
  EXPECT_EQ(Device(0).quarantined, Bytes(0));
  node_.Post(ClientQuiet{killed});
  EXPECT_EQ(Device(1).quarantined, Bytes(0));
}

}  // namespace
}  // namespace memtide
