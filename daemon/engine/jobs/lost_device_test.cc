// A device that is lost costs what was on it, and nothing else.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/engine_harness.h"

namespace memtide {
namespace {

using absl::StatusCode;

const absl::Status kWhy = absl::UnavailableError("GPU 0 fell off the bus");

EngineOptions TwoDevices(MemoryKind kind) {
  EngineOptions options = ThreeTiers();
  options.device_capacities = {kChunk * 6, kChunk * 6};
  options.host_capacity = kChunk * 32;
  options.device_kinds = {kind};
  options.quarantine_device_slots = true;
  return options;
}

class LostDeviceTest : public testing::TestWithParam<MemoryKind> {
 protected:
  SessionId Open(uint32_t device, const std::string& job = "") {
    return node_.OpenAs(Call(device, job));
  }
  absl::Status OpenStatus(absl::optional<uint32_t> device, const std::string& job = "") {
    return node_.ReplyTo(node_.BeginOpenAs(Call(device, job))).status;
  }
  static OpenCall Call(absl::optional<uint32_t> device, const std::string& job) {
    OpenCall open = EngineHarness::ElasticOpen(job);
    open.device = device;
    return open;
  }
  // Chunk 0 is on the device only, chunk 1 also in host memory, and chunk 2 there only.
  std::vector<ChunkId> Spread(SessionId session) {
    const std::vector<ChunkId> chunks = node_.Allocate(session, 3);
    for (const ChunkId chunk : chunks) node_.Touch(session, chunk, Access::kWrite);
    for (const size_t i : {1, 2}) {
      node_.Post(EvictCall{node_.Call(), session, Tier::kHost, {chunks[i]}});
      node_.FinishTransfers();
    }
    node_.Touch(session, chunks[1], Access::kRead);
    return chunks;
  }
  StatusCode Read(SessionId session, ChunkId chunk) {
    const CallId fetch = node_.Fetch(session, {chunk}, Access::kRead);
    node_.FinishTransfers();
    const StatusCode code = node_.CodeOf(fetch);
    if (code == StatusCode::kOk) node_.Release(session, {chunk});
    return code;
  }
  void Lose(uint32_t device) { node_.Post(DeviceState{device, kWhy}); }
  void Return(uint32_t device) { node_.Post(DeviceState{device, absl::OkStatus()}); }

  EngineHarness node_{TwoDevices(GetParam())};
};

INSTANTIATE_TEST_SUITE_P(Kinds, LostDeviceTest,
                         testing::Values(MemoryKind::kCudaDescriptor, MemoryKind::kCudaIpc));

TEST_P(LostDeviceTest, SessionsOnTheDeviceEndAndThoseOnTheOtherDoNotNotice) {
  const SessionId lost = Open(0), other = Open(1);
  const std::vector<ChunkId> chunks = Spread(other);
  Spread(lost);
  Lose(0);
  ASSERT_EQ(node_.closed_.size(), 1u);
  EXPECT_EQ(node_.closed_[0].session, lost);
  EXPECT_EQ(node_.closed_[0].reason, kWhy);
  for (const ChunkId chunk : chunks) EXPECT_EQ(Read(other, chunk), StatusCode::kOk);
  EXPECT_EQ(node_.Inspect().session_count, 1u);
}

TEST_P(LostDeviceTest, CallsThatWaitForTheDeviceReturnTheReason) {
  const SessionId session = Open(0);
  const std::vector<ChunkId> chunks = Spread(session);
  const CallId fetch = node_.Fetch(session, {chunks[2]}, Access::kRead);
  ASSERT_EQ(node_.transfers_.size(), 1u);
  Lose(0);
  EXPECT_EQ(node_.ReplyTo(fetch).status, kWhy);
  node_.FinishTransfers(kWhy);
}

TEST_P(LostDeviceTest, ANamedJobKeepsWhatIsOnOtherTiersAndIsResumedWhenTheDeviceWorks) {
  const SessionId session = Open(0, "kept");
  const std::vector<ChunkId> chunks = Spread(session);
  Lose(0);
  node_.Post(ClientQuiet{session});
  EXPECT_EQ(OpenStatus(absl::nullopt, "kept"), kWhy);
  EXPECT_EQ(OpenStatus(0), kWhy);
  Return(0);
  const SessionId resumed = Open(0, "kept");
  EXPECT_EQ(Read(resumed, chunks[0]), StatusCode::kDataLoss);
  EXPECT_EQ(Read(resumed, chunks[1]), StatusCode::kOk);
  EXPECT_EQ(Read(resumed, chunks[2]), StatusCode::kOk);
  node_.Touch(resumed, chunks[0], Access::kWrite);
  EXPECT_EQ(Read(resumed, chunks[0]), StatusCode::kOk);
}

TEST_P(LostDeviceTest, ANamedJobStoresWhatLeavesHostMemoryAlsoIfTheDeviceHasIt) {
  const SessionId session = Open(0, "kept");
  const std::vector<ChunkId> chunks = Spread(session);
  node_.Fetch(session, {chunks[1]}, Access::kRead);  // It stays on the device.
  for (const ChunkId chunk : node_.Allocate(session, 40)) {
    node_.Touch(session, chunk, Access::kWrite);
    node_.Post(EvictCall{node_.Call(), session, Tier::kHost, {chunk}});
    node_.FinishTransfers();
  }
  Lose(0);
  node_.Post(ClientQuiet{session});
  Return(0);
  const SessionId resumed = Open(0, "kept");
  EXPECT_EQ(Read(resumed, chunks[1]), StatusCode::kOk);
}

TEST_P(LostDeviceTest, WhatArrivesOfACopyDuringTheLossDoesNotCount) {
  const SessionId session = Open(0, "kept");
  const std::vector<ChunkId> chunks = Spread(session);
  // Chunk 2 moves to the device, and chunk 0 leaves it.
  node_.Fetch(session, {chunks[2]}, Access::kRead);
  node_.Post(EvictCall{node_.Call(), session, Tier::kHost, {chunks[0]}});
  ASSERT_EQ(node_.transfers_.size(), 2u);
  Lose(0);
  // Both say that they have arrived: from, or in, memory that is there anew.
  node_.FinishTransfers();
  node_.Post(ClientQuiet{session});
  Return(0);
  const SessionId resumed = Open(0, "kept");
  EXPECT_EQ(Read(resumed, chunks[0]), StatusCode::kDataLoss);
  const CallId fetch = node_.Fetch(resumed, {chunks[2]}, Access::kRead);
  EXPECT_EQ(node_.transfers_.size(), 1u) << "it is copied again";
  node_.FinishTransfers();
  EXPECT_EQ(node_.CodeOf(fetch), StatusCode::kOk);
}

TEST_P(LostDeviceTest, ACheckThatMeetsTheLossFindsNoDifference) {
  EngineOptions options = TwoDevices(GetParam());
  options.clean_drops_per_check = 1;
  EngineHarness node(options);
  const SessionId session = node.OpenAs(Call(0, "kept"));
  const ChunkId chunk = node.Allocate(session, 1)[0];
  node.Touch(session, chunk, Access::kWrite);
  for (int i = 0; i < 2; ++i) {
    node.Post(EvictCall{node.Call(), session, Tier::kHost, {chunk}});
    while (!node.transfers_.empty() &&
           node.transfers_[0].kind != StartTransfer::Kind::kCompareDeviceWithHost) {
      node.FinishOne();
    }
    if (i == 0) node.Touch(session, chunk, Access::kRead);
  }
  ASSERT_EQ(node.transfers_.size(), 1u);
  node.Post(DeviceState{0, kWhy});
  node.FinishOne(absl::DataLossError("they differ"));
  node.Post(ClientQuiet{session});
  node.Post(DeviceState{0, absl::OkStatus()});
  const SessionId resumed = node.OpenAs(Call(0, "kept"));
  node.Touch(resumed, chunk, Access::kRead);
}

TEST_P(LostDeviceTest, NewJobsGoToADeviceThatWorks) {
  Lose(0);
  EXPECT_TRUE(OpenStatus(absl::nullopt).ok());
  EXPECT_EQ(node_.made_.front().pool.device, 1u);
  EXPECT_EQ(OpenStatus(0), kWhy);
  Lose(1);
  EXPECT_EQ(OpenStatus(absl::nullopt), kWhy);
  Return(0);
  EXPECT_TRUE(OpenStatus(absl::nullopt).ok());
}

TEST_P(LostDeviceTest, AJobThatLingersLosesItsCopiesToo) {
  const SessionId session = Open(0, "kept");
  const std::vector<ChunkId> chunks = Spread(session);
  node_.Post(ClientGone{session});
  node_.FinishTransfers();
  Lose(0);
  Return(0);
  const SessionId resumed = Open(0, "kept");
  EXPECT_EQ(Read(resumed, chunks[0]), StatusCode::kDataLoss);
  EXPECT_EQ(Read(resumed, chunks[1]), StatusCode::kOk);
}

TEST_P(LostDeviceTest, ASlotWhoseLeaseEndedWithTheProcessIsLentAgainWhenThatIsGone) {
  const SessionId session = Open(0, "kept");
  const std::vector<ChunkId> chunks = node_.Allocate(session, 2);
  node_.Fetch(session, chunks, Access::kWrite);
  node_.FinishTransfers();
  Lose(0);
  EXPECT_EQ(node_.Inspect().pools[0].quarantined, kChunk * 2);
  node_.Post(ClientQuiet{session});
  EXPECT_EQ(node_.Inspect().pools[0].quarantined, Bytes(0));
  EXPECT_EQ(node_.Inspect().pools[0].used, Bytes(0));
  Return(0);
  const SessionId resumed = Open(0, "kept");
  for (const ChunkId chunk : chunks) {
    EXPECT_EQ(Read(resumed, chunk), StatusCode::kDataLoss);
    node_.Touch(resumed, chunk, Access::kWrite);
  }
}

TEST_P(LostDeviceTest, AJobThatUsesHostMemoryOnlyGoesOnThere) {
  const SessionId session = Open(0, "kept");
  const std::vector<ChunkId> chunks = node_.Allocate(session, 2);
  for (const ChunkId chunk : chunks) {
    node_.Fetch(session, {chunk}, Access::kWrite, Tier::kHost);
    node_.FinishTransfers();
  }
  node_.Release(session, chunks);
  Lose(0);
  EXPECT_TRUE(node_.closed_.empty());
  Return(0);
  const CallId fetch = node_.Fetch(session, chunks, Access::kRead, Tier::kHost);
  EXPECT_EQ(node_.CodeOf(fetch), StatusCode::kOk);
  node_.Release(session, chunks);
  // It has regions of the device that are not there any more.
  EXPECT_EQ(node_.CodeOf(node_.Fetch(session, chunks)), StatusCode::kUnavailable);
  node_.Post(ClientGone{session});
  const SessionId resumed = Open(0, "kept");
  for (const ChunkId chunk : chunks) EXPECT_EQ(Read(resumed, chunk), StatusCode::kOk);
}

}  // namespace
}  // namespace memtide
