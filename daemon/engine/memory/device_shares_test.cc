// Elastic shares of one device: several jobs, none of which asked for a size.
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/engine/testing/resize_harness.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using absl::StatusCode;

constexpr uint32_t kDeviceSlots = 24;

EngineOptions OfGpus(size_t devices) {
  EngineOptions options{std::vector<Bytes>(devices, kChunk * kDeviceSlots), kChunk * 96,
                        kChunk * 256, Limits()};
  options.device_kinds = {MemoryKind::kCudaDescriptor, MemoryKind::kCudaIpc};
  return options;
}

// Clients return the regions that are gone at once.
class DeviceSharesHarness : public ResizeHarness {
 public:
  explicit DeviceSharesHarness(const EngineOptions& options = OfGpus(1)) : ResizeHarness(options) {}

  CallId BeginOpen(Bytes device_share = Bytes(0), std::string name = "",
                   absl::optional<uint32_t> device = absl::nullopt) {
    OpenCall open = ElasticOpen(std::move(name));
    open.device_share = device_share;
    open.device = device;
    return BeginOpenAs(std::move(open));
  }
  SessionId Open(Bytes device_share = Bytes(0), std::string name = "",
                 absl::optional<uint32_t> device = absl::nullopt) {
    const CallId call = BeginOpen(device_share, std::move(name), device);
    Settle();
    EXPECT_EQ(CodeOf(call), StatusCode::kOk) << ReplyTo(call).status;
    return last_opened();
  }
  // All transfers end, and sessions return what they are asked for.
  void Settle() {
    for (size_t seen = ~size_t{0}; seen != gone_.size();) {
      seen = gone_.size();
      FinishTransfers();
      for (const SessionId session : Sessions()) ReturnAll(session);
    }
    FinishTransfers();
  }
  void Use(SessionId session, ChunkId chunk) {
    const CallId fetch = Fetch(session, {chunk}, Access::kWrite);
    Settle();
    EXPECT_EQ(CodeOf(fetch), StatusCode::kOk) << ReplyTo(fetch).status;
    Release(session, {chunk});
    Settle();
  }
  // A chunk that waits for memory of another job takes the slot of a victim meanwhile, so that the
  // share has what it needs after some rounds.
  void UseAll(SessionId session, const std::vector<ChunkId>& chunks) {
    for (int round = 0; round < 3; ++round) {
      for (const ChunkId chunk : chunks) Use(session, chunk);
    }
  }
  uint64_t ShareOf(SessionId session) {
    for (const SessionInfo& info : InspectSessions()) {
      if (info.session == session) return info.device_share / kChunk;
    }
    return 0;
  }
  std::vector<SessionId> Sessions() {
    std::vector<SessionId> sessions;
    for (const SessionInfo& info : InspectSessions()) sessions.push_back(info.session);
    return sessions;
  }

 private:
  std::vector<SessionInfo> InspectSessions() {
    InspectCall inspect;
    inspect.call = Call();
    inspect.sessions = true;
    Post(inspect);
    return std::get<InspectReply>(ReplyTo(inspect.call).value).sessions;
  }
};

TEST(DeviceSharesTest, AJobAloneHasAllOfTheDevice) {
  DeviceSharesHarness node;
  EXPECT_EQ(node.ShareOf(node.Open()), kDeviceSlots);
}

TEST(DeviceSharesTest, ASecondJobComesToItsHalfOfAFullDevice) {
  DeviceSharesHarness node;
  const SessionId first = node.Open();
  const std::vector<ChunkId> of_first = node.Allocate(first, kDeviceSlots);
  node.UseAll(first, of_first);
  const SessionId second = node.Open();
  const std::vector<ChunkId> of_second = node.Allocate(second, kDeviceSlots);
  node.UseAll(second, of_second);
  EXPECT_EQ(node.ShareOf(first), kDeviceSlots / 2);
  EXPECT_EQ(node.ShareOf(second), kDeviceSlots / 2);
  EXPECT_EQ(node.Inspect().counters.device_reclaimed, kChunk * (kDeviceSlots / 2));
  // The content that was written is still there, and neither job takes more from the other.
  node.UseAll(first, of_first);
  node.UseAll(second, of_second);
  EXPECT_EQ(node.ShareOf(first), kDeviceSlots / 2);
}

// The first job asks before the second one whenever memory has become free.
TEST(DeviceSharesTest, WhatAJobGivesBackItDoesNotTakeAgainBeforeTheOther) {
  for (const size_t at_once : {1, 4}) {
    SCOPED_TRACE(at_once);
    DeviceSharesHarness node;
    const SessionId first = node.Open();
    const std::vector<ChunkId> of_first = node.Allocate(first, kDeviceSlots + 8);
    node.UseAll(first, of_first);
    const SessionId second = node.Open();
    const std::vector<ChunkId> of_second = node.Allocate(second, kDeviceSlots);
    for (size_t i = 0; i < of_second.size(); i += at_once) {
      const std::vector<ChunkId> wanted(of_second.begin() + i, of_second.begin() + i + at_once);
      const CallId before = node.Fetch(first, {of_first[i]}, Access::kWrite);
      const CallId fetch = node.Fetch(second, wanted, Access::kWrite);
      node.Settle();
      EXPECT_EQ(node.CodeOf(before), StatusCode::kOk);
      EXPECT_EQ(node.CodeOf(fetch), StatusCode::kOk);
      node.Release(first, {of_first[i]});
      node.Release(second, wanted);
      node.Settle();
    }
    // A job asks for all that it lacks, or for nothing: it stays below its half by less than that.
    EXPECT_GT(node.ShareOf(second) + at_once, kDeviceSlots / 2);
    EXPECT_LE(node.ShareOf(second), kDeviceSlots / 2);
  }
}

TEST(DeviceSharesTest, AJobThatNeedsLittleTakesLittle) {
  DeviceSharesHarness node;
  const SessionId first = node.Open();
  node.UseAll(first, node.Allocate(first, kDeviceSlots));
  const SessionId second = node.Open();
  node.UseAll(second, node.Allocate(second, 6));
  EXPECT_EQ(node.ShareOf(second), 6u);
  EXPECT_EQ(node.ShareOf(first), kDeviceSlots - 6);
}

TEST(DeviceSharesTest, WhatAnEndedJobHadGoesToThoseThatNeedIt) {
  DeviceSharesHarness node;
  const SessionId first = node.Open();
  const std::vector<ChunkId> of_first = node.Allocate(first, kDeviceSlots);
  node.UseAll(first, of_first);
  const SessionId second = node.Open();
  node.UseAll(second, node.Allocate(second, kDeviceSlots));
  node.Post(ClientGone{second});
  node.Settle();
  node.UseAll(first, of_first);
  EXPECT_EQ(node.ShareOf(first), kDeviceSlots);
}

TEST(DeviceSharesTest, AShareThatIsReclaimedSaysItsBudgetAtOnceAndKeepsWhatIsAnnounced) {
  DeviceSharesHarness node;
  const SessionId first = node.Open();
  node.UseAll(first, node.Allocate(first, kDeviceSlots));
  const SessionId second = node.Open();
  node.budgets_.clear();
  node.UseAll(second, node.Allocate(second, kDeviceSlots));
  uint32_t slots = 0;
  for (const SendLeaseBudget& budget : node.budgets_) {
    if (budget.session == first) slots = budget.slots;
  }
  EXPECT_EQ(slots, kDeviceSlots / 2);
  ASSERT_FALSE(node.gone_.empty());
  EXPECT_EQ(node.gone_.back().lease_budget, kDeviceSlots - kDeviceSlots / 4);
}

TEST(DeviceSharesTest, AnOpenWaitsForLeasesThatAreRevoked) {
  DeviceSharesHarness node;
  const SessionId first = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(first, kDeviceSlots);
  node.Fetch(first, chunks, Access::kWrite);
  node.Settle();
  const CallId open = node.BeginOpen();
  EXPECT_FALSE(node.Answered(open)) << "all slots are leased";
  ASSERT_FALSE(node.revokes_.empty());
  EXPECT_EQ(node.revokes_.back().session, first);
  node.Release(first, chunks);
  node.Settle();
  EXPECT_EQ(node.CodeOf(open), StatusCode::kOk) << node.ReplyTo(open).status;
}

TEST(DeviceSharesTest, NoShareFallsBelowACallThatWaits) {
  DeviceSharesHarness node;
  const SessionId first = node.Open(Bytes(0), "two sessions");
  const std::vector<ChunkId> chunks = node.Allocate(first, kDeviceSlots);
  node.UseAll(first, chunks);
  const SessionId joined = node.Open(Bytes(0), "two sessions");
  node.Fetch(first, {chunks[0]}, Access::kWrite);
  const CallId waits = node.Fetch(joined, {chunks.begin(), chunks.begin() + 18}, Access::kRead);
  EXPECT_FALSE(node.Answered(waits));
  const SessionId other = node.Open();
  node.UseAll(other, node.Allocate(other, kDeviceSlots));
  EXPECT_EQ(node.ShareOf(first), 18u);
  node.Release(first, {chunks[0]});
  node.Settle();
  EXPECT_EQ(node.CodeOf(waits), StatusCode::kOk) << node.ReplyTo(waits).status;
}

TEST(DeviceSharesTest, AFixedShareIsReclaimedFromElasticOnesAndNeverGivesWay) {
  DeviceSharesHarness node;
  const SessionId first = node.Open();
  const std::vector<ChunkId> of_first = node.Allocate(first, kDeviceSlots);
  node.UseAll(first, of_first);
  const SessionId fixed = node.Open(kChunk * 16);
  EXPECT_EQ(node.ShareOf(fixed), 16u);
  EXPECT_EQ(node.ShareOf(first), kDeviceSlots - 16);
  node.UseAll(first, of_first);
  EXPECT_EQ(node.ShareOf(fixed), 16u);
  const CallId too_much = node.BeginOpen(kChunk * 8);
  EXPECT_EQ(node.CodeOf(too_much), StatusCode::kResourceExhausted) << "the guaranteed share stays";
}

TEST(DeviceSharesTest, AResizeSetsTheLimitAndNeedSetsTheRest) {
  DeviceSharesHarness node;
  const SessionId first = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(first, kDeviceSlots);
  node.UseAll(first, chunks);
  const CallId smaller = node.Resize(first, 8);
  node.Settle();
  EXPECT_EQ(node.Resized(smaller).device_slots, 8u);
  EXPECT_EQ(node.Resized(smaller).lease_budget, 6u);
  node.UseAll(first, chunks);
  EXPECT_EQ(node.ShareOf(first), 8u) << "the script has the rest";
  const SessionId second = node.Open();
  node.UseAll(second, node.Allocate(second, kDeviceSlots));
  EXPECT_EQ(node.ShareOf(second), kDeviceSlots - 8);
  const CallId larger = node.Resize(first, kDeviceSlots);
  EXPECT_EQ(node.CodeOf(larger), StatusCode::kOk);
  node.UseAll(first, chunks);
  EXPECT_EQ(node.ShareOf(first), kDeviceSlots / 2);
}

TEST(DeviceSharesTest, JobsOfOtherDevicesGiveNothing) {
  DeviceSharesHarness node(OfGpus(2));
  const SessionId other = node.Open(Bytes(0), "", 1);
  const std::vector<ChunkId> of_other = node.Allocate(other, kDeviceSlots);
  node.UseAll(other, of_other);
  const SessionId first = node.Open(Bytes(0), "", 0);
  node.UseAll(first, node.Allocate(first, kDeviceSlots));
  const SessionId second = node.Open(Bytes(0), "", 0);
  node.UseAll(second, node.Allocate(second, kDeviceSlots));
  EXPECT_EQ(node.ShareOf(first), kDeviceSlots / 2);
  EXPECT_EQ(node.ShareOf(second), kDeviceSlots / 2);
  EXPECT_EQ(node.ShareOf(other), kDeviceSlots);
}

TEST(DeviceSharesTest, AJobThatLingersKeepsItsGuaranteedShareAlone) {
  DeviceSharesHarness node;
  const SessionId named = node.Open(Bytes(0), "training");
  node.UseAll(named, node.Allocate(named, kDeviceSlots));
  node.Post(ClientGone{named});
  node.Settle();
  const SessionId second = node.Open();
  node.UseAll(second, node.Allocate(second, kDeviceSlots));
  EXPECT_EQ(node.ShareOf(second), kDeviceSlots - kDeviceSlots / 4);
}

TEST(DeviceSharesTest, MemoryOfTheDeviceThatEndsLeavesASmallerShareThatWorks) {
  DeviceSharesHarness node;
  const SessionId first = node.Open();
  const std::vector<ChunkId> chunks = node.Allocate(first, 12);
  node.UseAll(first, {chunks.begin(), chunks.begin() + 6});
  node.fail_memory_ = true;
  node.UseAll(first, chunks);
  EXPECT_EQ(node.ShareOf(first), 6u);
  node.Post(ClientGone{first});
  node.Settle();
  node.ExpectEmpty();
}

}  // namespace
}  // namespace memtide
