#include "daemon/engine/shares/share_ledger.h"

#include <memory>
#include <utility>
#include <vector>

#include "daemon/engine/shares/testing/open_calls.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr uint32_t kUid = 1000;

// A node of 16 device chunks, 64 host chunks and 256 SSD chunks.
class ShareLedgerTest : public testing::Test {
 protected:
  std::unique_ptr<JobShares> Lend(const OpenCall& open,
                                  MemoryKind device_memory = MemoryKind::kSharedMemory) {
    absl::StatusOr<std::unique_ptr<JobShares>> shares =
        ledger_.Lend(JobId(next_job_++), Owner{kUid}, open, device_memory);
    ledger_.CheckInvariants();
    EXPECT_TRUE(shares.ok()) << shares.status();
    return shares.ok() ? *std::move(shares) : nullptr;
  }
  // Makes all memory that the share may have now.
  void Make(Share& share) {
    while (share.can_grow()) {
      ledger_.MakeSegment(share, next_segment_);
      EXPECT_TRUE(ledger_.SegmentMade(share, next_segment_++));
      ledger_.CheckInvariants();
    }
  }
  // Frees the pages of slots beyond the size of the pool.
  void ReleaseSurplus(Share& share) {
    while (share.slots().surplus_slots() > 0) {
      ledger_.balloons().SlotReleased(share, ledger_.balloons().ReleaseSlot(share));
      ledger_.CheckInvariants();
    }
  }
  // The changes by which elastic jobs make room for a new one.
  ShareLedger::Changes Reclaim(Tier tier, uint64_t chunks) {
    return ledger_.elastic().ReclaimFromOthers({{tier}, kChunk * chunks, Bytes(0), nullptr}, {});
  }
  uint64_t FreeChunks(Tier tier) { return ledger_.pools().Free({tier}) / kChunk; }

  Limits limits_;
  ShareLedger ledger_{{{kChunk * 16}, kChunk * 64, kChunk * 256}, limits_};
  uint64_t next_job_ = 1;
  uint32_t next_segment_ = 1;
};

TEST_F(ShareLedgerTest, AShareIsChargedWholeAndGoesBackWithItsJob) {
  std::unique_ptr<JobShares> job = Lend(Fixed(4, 10, 20));
  EXPECT_EQ(FreeChunks(Tier::kDevice), 12u);
  EXPECT_EQ(FreeChunks(Tier::kHost), 54u);
  EXPECT_EQ(FreeChunks(Tier::kSsd), 236u);
  EXPECT_EQ(ledger_.pools().Usage({Tier::kHost}).reserved, kChunk * 10);
  EXPECT_EQ(job->home(), Tier::kSsd);
  job.reset();
  EXPECT_EQ(FreeChunks(Tier::kHost), 64u);
}

TEST_F(ShareLedgerTest, SharesAreLentAllOrNone) {
  EXPECT_EQ(ledger_.Lend(JobId(1), Owner{kUid}, Fixed(4, 10, 257), MemoryKind::kSharedMemory)
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(FreeChunks(Tier::kHost), 64u);
  EXPECT_EQ(ledger_.Lend(JobId(1), Owner{kUid}, Fixed(4, 3, 20), MemoryKind::kSharedMemory)
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted)
      << "fewer slots than chunks need to move";
}

TEST_F(ShareLedgerTest, TheMemoryOfAnEndingJobIsScrubbedUntilItGoes) {
  const std::unique_ptr<JobShares> job = Lend(Fixed(4, 10, 20));
  Share& host = (*job)[Tier::kHost];
  Make(host);
  ledger_.SetState(*job, JobState::kEnding);
  EXPECT_EQ(ledger_.pools().Usage({Tier::kHost}).scrubbing, kChunk * 10);
  EXPECT_EQ(ledger_.pools().Usage({Tier::kHost}).reserved, Bytes(0));
  const std::vector<uint32_t> segments = ledger_.DropSegments(host);
  EXPECT_EQ(segments, std::vector<uint32_t>{1});
  EXPECT_EQ(job->pending(), 1u);
  EXPECT_FALSE(ledger_.SegmentDropped(*job, 1));
  EXPECT_EQ(job->pending(), 0u);
}

TEST_F(ShareLedgerTest, ASegmentIsPendingUntilItIsMadeOrFails) {
  const std::unique_ptr<JobShares> job = Lend(Elastic());
  Share& host = (*job)[Tier::kHost];
  EXPECT_EQ(host.target(), 64u) << "one job has all of a pool";
  EXPECT_EQ(host.guaranteed(), 16u);
  EXPECT_EQ(ledger_.MakeSegment(host, 1), kChunk * 8);
  EXPECT_EQ(job->pending(), 1u);
  EXPECT_EQ(host.made_slots(), 8u) << "what is being made counts";
  EXPECT_TRUE(ledger_.SegmentMade(host, 1));
  EXPECT_EQ(job->pending(), 0u);
  ledger_.MakeSegment(host, 2);
  ledger_.SegmentFailed(*job, host, 2);
  ledger_.CheckInvariants();
  EXPECT_EQ(host.limit(), 8u);
  EXPECT_EQ(host.guaranteed(), 8u);
  EXPECT_EQ(FreeChunks(Tier::kHost), 56u);
  EXPECT_TRUE(ledger_.pools().TakeFreed());
  EXPECT_FALSE(ledger_.pools().TakeFreed());
}

// As a job that a daemon before this one had.
TEST_F(ShareLedgerTest, ARunningJobWithoutMemoryKeepsItsShareAndMakesItLater) {
  const std::unique_ptr<JobShares> job = Lend(Fixed(4, 10, 20));
  ledger_.SetState(*job, JobState::kRunning);
  for (const Tier tier : {Tier::kHost, Tier::kSsd}) {
    Share& share = (*job)[tier];
    const uint32_t slots = share.slots().size();
    ledger_.MakeSegment(share, 1);
    ledger_.SegmentFailed(*job, share, 1);
    ledger_.CheckInvariants();
    EXPECT_EQ(share.slots().size(), slots);
    // At the home tier each allocation requests memory anew.
    EXPECT_EQ(share.can_grow(), tier == Tier::kSsd);
  }
  ledger_.RetrySegments(*job);
  EXPECT_TRUE((*job)[Tier::kHost].can_grow());
}

TEST_F(ShareLedgerTest, EachRankHasTheLeastThatOneSessionNeeds) {
  OpenCall ranks = Elastic();
  ranks.ranks = 8;
  const std::unique_ptr<JobShares> first = Lend(ranks);
  EXPECT_EQ((*first)[Tier::kHost].guaranteed(), 4u * 8);
  EXPECT_EQ(ledger_.NeededToOpen(ranks, Tier::kHost), kChunk * 32);
  ranks.ranks = 9;
  const absl::Status status =
      ledger_.Lend(JobId(2), Owner{kUid}, ranks, MemoryKind::kSharedMemory).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("at least 40 chunks"), status.message().npos) << status;
}

// Contents that the sessions have in common need the rest.
TEST_F(ShareLedgerTest, SessionsThatTrainAlikeAreGuaranteedLess) {
  OpenCall alike = Elastic();
  alike.alike = 4;
  const std::unique_ptr<JobShares> first = Lend(alike);
  EXPECT_EQ((*first)[Tier::kHost].guaranteed(), 12u) << "what one step part may need";
}

TEST_F(ShareLedgerTest, SlotsThatWereNeverUsedAreFreeAtOnce) {
  const std::unique_ptr<JobShares> job = Lend(Elastic());
  EXPECT_EQ(ledger_.NeededToOpen(Elastic(), Tier::kHost), kChunk * 16);
  const ShareLedger::Changes changes = Reclaim(Tier::kHost, 16);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].slots, 48u);
  EXPECT_EQ(changes[0].reclaimed, kChunk * 16);
  EXPECT_EQ(FreeChunks(Tier::kHost), 16u);
  EXPECT_TRUE(ledger_.pools().TakeFreed());
  EXPECT_EQ(
      ledger_.Lend(JobId(2), Owner{kUid}, Elastic(), MemoryKind::kSharedMemory).status().code(),
      absl::StatusCode::kResourceExhausted)
      << "the SSD is full";
  Reclaim(Tier::kSsd, 4);
  EXPECT_NE(Lend(Elastic()), nullptr);
}

TEST_F(ShareLedgerTest, UsedSlotsAreFreeWhenTheirPagesAre) {
  const std::unique_ptr<JobShares> job = Lend(Elastic());
  Share& host = (*job)[Tier::kHost];
  Make(host);
  Reclaim(Tier::kHost, 16);
  ledger_.CheckInvariants();
  EXPECT_EQ(host.target(), 48u);
  EXPECT_EQ(FreeChunks(Tier::kHost), 0u);
  EXPECT_TRUE(Reclaim(Tier::kHost, 16).empty()) << "it comes already";
  ReleaseSurplus(host);
  EXPECT_EQ(FreeChunks(Tier::kHost), 16u);
}

TEST_F(ShareLedgerTest, NoReclaimTakesWhatCallsNeed) {
  const std::unique_ptr<JobShares> job = Lend(Elastic());
  Share& host = (*job)[Tier::kHost];
  Make(host);
  const ShareLedger::Reclaim reclaim{{Tier::kHost}, kChunk * 60, Bytes(0), nullptr};
  ledger_.elastic().ReclaimFromOthers(reclaim, {{JobId(1), {50, 0}}});
  EXPECT_EQ(host.target(), 54u) << "pinned chunks, and a few for page faults";
  ledger_.elastic().ReclaimFromOthers(reclaim, {{JobId(1), {0, 30}}});
  EXPECT_EQ(host.target(), 34u);
  ledger_.elastic().ReclaimFromOthers(reclaim, {});
  EXPECT_EQ(host.target(), 16u) << "the guaranteed share";
}

TEST_F(ShareLedgerTest, AJobWithoutSessionsGivesBeforeOneThatRuns) {
  const std::unique_ptr<JobShares> runs = Lend(Elastic());
  Reclaim(Tier::kHost, 32);
  Reclaim(Tier::kSsd, 4);
  const std::unique_ptr<JobShares> lingers = Lend(Elastic());
  Make((*runs)[Tier::kHost]);
  Make((*lingers)[Tier::kHost]);
  ledger_.SetState(*lingers, JobState::kLingering);
  const uint32_t before = (*runs)[Tier::kHost].target();
  const ShareLedger::Changes changes = Reclaim(Tier::kHost, 10);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].job, JobId(2));
  EXPECT_EQ((*runs)[Tier::kHost].target(), before);
}

class TwoElasticJobs : public ShareLedgerTest {
 protected:
  TwoElasticJobs() : first_(Lend(Elastic())) {
    Reclaim(Tier::kHost, 16);
    Reclaim(Tier::kSsd, 16);
    second_ = Lend(Elastic());
    EXPECT_EQ(second().target(), 12u);
  }
  Share& first() { return (*first_)[Tier::kHost]; }
  Share& second() { return (*second_)[Tier::kHost]; }

  std::unique_ptr<JobShares> first_, second_;
};

TEST_F(TwoElasticJobs, ContentsHaveAFairShareForEachSessionThatHasThem) {
  const auto contents = ledger_.LendForContents(JobId(9), Owner{kUid}, kChunk);
  ASSERT_TRUE(contents.ok()) << contents.status();
  Share& host = (**contents)[Tier::kHost];
  EXPECT_FALSE(ledger_.elastic().PlanGrowth(host, 32, {})->is_entitled) << "of 21 slots";
  (*contents)->set_fair_shares(2);
  EXPECT_TRUE(ledger_.elastic().PlanGrowth(host, 32, {})->is_entitled) << "of 2 times 16 slots";
  EXPECT_FALSE(ledger_.elastic().PlanGrowth(first(), 40, {})->is_entitled);
}

TEST_F(TwoElasticJobs, AShareGrowsUpToTheFairShareAtTheCostOfOthers) {
  const absl::optional<ShareLedger::Growth> growth = ledger_.elastic().PlanGrowth(second(), 10, {});
  ASSERT_TRUE(growth.has_value() && growth->reclaim.has_value());
  EXPECT_EQ(growth->target, 24u) << "whole segments";
  EXPECT_EQ(growth->reclaim->fair_share, kChunk * 32);
  EXPECT_TRUE(second().starved());
  const ShareLedger::Changes changes = ledger_.elastic().ReclaimFromOthers(*growth->reclaim, {});
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].slots, 40u);
  ASSERT_TRUE(ledger_.elastic().Grow(second(), *growth, {}).has_value());
  EXPECT_EQ(second().target(), 24u);
  EXPECT_FALSE(second().starved());
  ledger_.CheckInvariants();
}

TEST_F(TwoElasticJobs, BeyondTheFairShareAJobGetsOnlyFreeMemory) {
  const absl::optional<ShareLedger::Growth> growth = ledger_.elastic().PlanGrowth(second(), 30, {});
  ASSERT_TRUE(growth.has_value());
  EXPECT_FALSE(growth->reclaim.has_value());
  EXPECT_FALSE(ledger_.elastic().Grow(second(), *growth, {}).has_value())
      << "less than a segment is free";
  ledger_.elastic().ReclaimFromOthers({{Tier::kHost}, kChunk * 8, Bytes(0), &second()}, {});
  EXPECT_EQ(first().target(), 40u);
  EXPECT_FALSE(ledger_.elastic().Grow(second(), *growth, {true, 0, Bytes(0)}).has_value())
      << "an Open that waits comes first";
  ASSERT_TRUE(ledger_.elastic().Grow(second(), *growth, {}).has_value());
  EXPECT_EQ(second().target(), 24u);
}

TEST_F(TwoElasticJobs, AShareForWhichTheMachineHasNoMemoryDoesNotGrowUntilItIsTriedAgain) {
  ledger_.SetState(*second_, JobState::kRunning);
  ledger_.MakeSegment(second(), 1);
  ledger_.SegmentFailed(*second_, second(), 1);
  ASSERT_TRUE(second().make_later());
  EXPECT_FALSE(ledger_.elastic().PlanGrowth(second(), 10, {}).has_value());
  EXPECT_FALSE(second().starved()) << "it would hold back the growth of other jobs";
  ledger_.CheckInvariants();
  ledger_.RetrySegments(*second_);
  EXPECT_TRUE(ledger_.elastic().PlanGrowth(second(), 10, {}).has_value());
}

TEST_F(TwoElasticJobs, NobodyIsPushedBelowItsFairShareForMore) {
  Make(first());
  const ShareLedger::Reclaim reclaim{{Tier::kHost}, kChunk * 40, kChunk * 32, &second()};
  ledger_.elastic().ReclaimFromOthers(reclaim, {});
  EXPECT_EQ(first().target(), 32u);
}

TEST_F(TwoElasticJobs, OnSsdNoUsedSlotIsReclaimed) {
  Share& ssd = (*first_)[Tier::kSsd];
  Make(ssd);
  const ShareLedger::Reclaim reclaim{{Tier::kSsd}, kChunk * 200, Bytes(0), &(*second_)[Tier::kSsd]};
  EXPECT_TRUE(ledger_.elastic().ReclaimFromOthers(reclaim, {}).empty());
}

TEST_F(ShareLedgerTest, ARegionThatLeavesIsScrubbedUntilNobodyMapsIt) {
  const std::unique_ptr<JobShares> job = Lend(Fixed(8, 10, 20), MemoryKind::kCudaDescriptor);
  Share& device = (*job)[Tier::kDevice];
  Make(device);
  EXPECT_EQ(device.segments().size(), 8u) << "a region for each slot";
  ledger_.Resize(device, 6);
  EXPECT_EQ(device.bytes(), kChunk * 8) << "what exists is charged";
  EXPECT_EQ(device.surplus_regions(), 2u);
  const uint32_t region = ledger_.GiveUpRegion(device);
  EXPECT_FALSE(ledger_.Leave(device, region, {SessionId(1), SessionId(2)}));
  ledger_.CheckInvariants();
  EXPECT_EQ(ledger_.pools().Usage({Tier::kDevice}).scrubbing, kChunk);
  EXPECT_EQ(FreeChunks(Tier::kDevice), 8u) << "no byte is free yet";
  EXPECT_FALSE(ledger_.Return(device, region, SessionId(2)));
  EXPECT_FALSE(ledger_.Return(device, region, SessionId(2))) << "it returned its mapping before";
  EXPECT_EQ(job->pending(), 0u);
  EXPECT_TRUE(ledger_.Return(device, region, SessionId(1)));
  ledger_.CheckInvariants();
  EXPECT_EQ(job->pending(), 1u);
  EXPECT_TRUE(ledger_.SegmentDropped(*job, region));
  EXPECT_EQ(FreeChunks(Tier::kDevice), 9u);
  EXPECT_TRUE(ledger_.Leave(device, ledger_.GiveUpRegion(device), {})) << "nobody maps it";
}

TEST_F(ShareLedgerTest, ARegionThatCameTooLateIsNotUsed) {
  const std::unique_ptr<JobShares> job = Lend(Fixed(5, 10, 20), MemoryKind::kCudaDescriptor);
  Share& device = (*job)[Tier::kDevice];
  for (uint32_t region = 1; region <= 4; ++region) {
    ledger_.MakeSegment(device, region);
    ASSERT_TRUE(ledger_.SegmentMade(device, region));
  }
  ledger_.MakeSegment(device, 5);
  ledger_.Resize(device, 4);
  EXPECT_EQ(device.bytes(), kChunk * 5);
  EXPECT_FALSE(ledger_.SegmentMade(device, 5));
  EXPECT_EQ(device.bytes(), kChunk * 4);
}

TEST_F(ShareLedgerTest, BalloonsShareWhatTheReserveLacks) {
  const std::unique_ptr<JobShares> a = Lend(Fixed(4, 32, 20)), b = Lend(Fixed(4, 32, 20));
  Make((*a)[Tier::kHost]);
  Make((*b)[Tier::kHost]);
  ledger_.SetState(*a, JobState::kRunning);
  ledger_.SetState(*b, JobState::kRunning);
  ShareLedger::Changes changes = ledger_.balloons().BalanceBalloons(MiB(84), MiB(100), {});
  ledger_.CheckInvariants();
  ASSERT_EQ(changes.size(), 2u);
  for (const ShareLedger::Change& change : changes) {
    EXPECT_EQ(change.slots, 28u);
    EXPECT_EQ(change.most_slots, 32u);
  }
  EXPECT_TRUE(ledger_.balloons().BalanceBalloons(MiB(84), MiB(100), {}).empty())
      << "pages that are to be released count";
  ReleaseSurplus((*a)[Tier::kHost]);
  ReleaseSurplus((*b)[Tier::kHost]);
  EXPECT_EQ(ledger_.pools().Usage({Tier::kHost}).balloon, kChunk * 8);
  EXPECT_TRUE(ledger_.balloons().BalanceBalloons(MiB(150), MiB(100), {}).empty())
      << "it has little more than enough";
  changes = ledger_.balloons().BalanceBalloons(MiB(160), MiB(100), {});
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ((*a)[Tier::kHost].balloon(), 0u);
  EXPECT_EQ((*b)[Tier::kHost].balloon(), 3u);
}

TEST_F(ShareLedgerTest, WhatOneJobGivesForItsRiseIsThereForTheNext) {
  const std::unique_ptr<JobShares> a = Lend(Fixed(4, 32, 20)), b = Lend(Fixed(4, 32, 20));
  Make((*a)[Tier::kHost]);
  Make((*b)[Tier::kHost]);
  ledger_.SetState(*a, JobState::kRunning);
  ledger_.SetState(*b, JobState::kRunning);
  const ShareLedger::Rises rises = {{JobId(1), kChunk * 2}, {JobId(2), kChunk}};
  const auto changes = ledger_.balloons().BalanceBalloons(MiB(100), MiB(100), rises);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].slots, 30u);
}

TEST_F(ShareLedgerTest, TheBalloonDeflatesForChunksThatWait) {
  const std::unique_ptr<JobShares> job = Lend(Fixed(4, 32, 20));
  Share& host = (*job)[Tier::kHost];
  Make(host);
  ledger_.SetState(*job, JobState::kRunning);
  ledger_.balloons().BalanceBalloons(MiB(80), MiB(100), {});
  EXPECT_EQ(host.balloon(), 10u);
  ReleaseSurplus(host);
  EXPECT_FALSE(ledger_.balloons().DeflateFor(host, 22, 0).has_value()) << "there are slots";
  const absl::optional<ShareLedger::Change> change = ledger_.balloons().DeflateFor(host, 25, 1);
  ASSERT_TRUE(change.has_value());
  EXPECT_EQ(change->slots, 24u);
  const absl::optional<SlotNumber> slot = ledger_.balloons().PopulateSlot(host);
  ASSERT_TRUE(slot.has_value());
  EXPECT_FALSE(ledger_.balloons().PopulateSlot(host).has_value()) << "one at a time";
  EXPECT_EQ(job->pending(), 1u);
  ledger_.balloons().PopulateFailed(host, *slot);
  ledger_.CheckInvariants();
  EXPECT_EQ(job->pending(), 0u);
  EXPECT_EQ(host.slots().size(), 22u);
  EXPECT_EQ(host.balloon(), 10u);
}

TEST_F(ShareLedgerTest, SharesThatOutliveTheLedgerAreABrokenInvariant) {
  EXPECT_DEATH(
      {
        std::unique_ptr<JobShares> job;
        ShareLedger ledger({{kChunk * 16}, kChunk * 64, kChunk * 256}, limits_);
        job = *ledger.Lend(JobId(1), Owner{kUid}, Fixed(4, 10, 20), MemoryKind::kSharedMemory);
      },
      "the shares of a job outlive the ledger that lent them");
}

}  // namespace
}  // namespace memtide
