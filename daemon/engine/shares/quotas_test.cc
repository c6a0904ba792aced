// Quotas at the ledger: what is lent, what shrinks, and what is said of it.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/shares/share_ledger.h"
#include "daemon/engine/shares/testing/open_calls.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr uint32_t kAlice = 1000, kBob = 1001, kStudents = 50;
constexpr int kDevice = 0, kHost = 1, kSsd = 2;

Quota QuotaOf(Quota::Kind kind, uint32_t id, std::string name) {
  Quota quota;
  quota.kind = kind;
  quota.id = id;
  quota.name = std::move(name);
  return quota;
}
Quota OfAlice() { return QuotaOf(Quota::Kind::kUser, kAlice, "user:alice"); }
Quota OfEach() { return QuotaOf(Quota::Kind::kDefault, 0, "default"); }
Quota OfStudents() { return QuotaOf(Quota::Kind::kGroup, kStudents, "group:students"); }

OpenCall Named(OpenCall open) {
  open.job_name = "job";
  open.time_to_live = std::chrono::hours(2);
  return open;
}

// A node of two devices of 16 chunks, 160 host chunks and 512 SSD chunks.
class ShareQuotasTest : public testing::Test {
 protected:
  using Lent = absl::StatusOr<std::unique_ptr<JobShares>>;

  Lent Lend(const OpenCall& open, Owner owner = {kAlice},
            MemoryKind device_memory = MemoryKind::kSharedMemory) {
    Lent shares = ledger_.Lend(JobId(next_job_++), owner, open, device_memory);
    ledger_.CheckInvariants();
    if (shares.ok()) ledger_.SetState(**shares, JobState::kRunning);
    return shares;
  }
  void Make(Share& share) {
    while (share.can_grow()) {
      ledger_.MakeSegment(share, next_segment_);
      EXPECT_TRUE(ledger_.SegmentMade(share, next_segment_++));
    }
  }
  // The pages of slots beyond the size of the pool go.
  void ReleaseSurplus(Share& share) {
    while (share.slots().surplus_slots() > 0) {
      ledger_.balloons().SlotReleased(share, ledger_.balloons().ReleaseSlot(share));
    }
  }
  uint64_t UsedBy(uint32_t uid, int tier) {
    return ledger_.quotas().QuotaUses(Owner{uid}).at(0).bytes[tier] / kChunk;
  }
  std::string Refusal(const Lent& lent) {
    EXPECT_EQ(lent.status().code(), absl::StatusCode::kResourceExhausted) << lent.status();
    EXPECT_TRUE(IsByQuota(lent.status())) << lent.status();
    may_be_lent_later_ = MayBeLentLater(lent.status());
    return std::string(lent.status().message());
  }

  ShareLedger ledger_{{{kChunk * 16, kChunk * 16}, kChunk * 160, kChunk * 512}, Limits()};
  uint64_t next_job_ = 1;
  uint32_t next_segment_ = 1;
  bool may_be_lent_later_ = false;
};

TEST_F(ShareQuotasTest, AFixedShareBeyondTheQuotaIsRefusedAndTheErrorSaysAll) {
  Quota quota = OfAlice();
  quota.most.bytes[kHost] = kChunk * 30;
  ledger_.quotas().SetQuotas({quota});
  const Lent first = Lend(Fixed(4, 20, 20));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Refusal(Lend(Fixed(4, 11, 20))),
            "the quota of user:alice is 60 MiB of host memory; used: 40 MiB; requested: 22 MiB. "
            "End a job, ask for less, or have an administrator raise it: it is set by "
            "`memtide admin quota set user:alice host=...`");
  EXPECT_TRUE(may_be_lent_later_);
  EXPECT_EQ(ledger_.pools().Free({Tier::kDevice, 1}), kChunk * 16) << "lent whole or not at all";
  EXPECT_TRUE(Lend(Fixed(4, 10, 20)).ok());
  EXPECT_TRUE(Lend(Fixed(4, 50, 20), {kBob}).ok()) << "others have no quota";
}

TEST_F(ShareQuotasTest, TheDevicesOfANodeCountTogether) {
  Quota quota = OfAlice();
  quota.most.bytes[kDevice] = kChunk * 20;
  ledger_.quotas().SetQuotas({quota});
  const Lent first = Lend(Fixed(12, 10, 20));
  ASSERT_TRUE(first.ok());
  EXPECT_NE(Refusal(Lend(Fixed(12, 10, 20))).find("device memory"), std::string::npos);
  const Lent second = Lend(Fixed(8, 10, 20));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE((**first)[Tier::kDevice].pool(), (**second)[Tier::kDevice].pool());
}

TEST_F(ShareQuotasTest, AShareOfAllThatIsFreeIsWhatTheQuotaLeaves) {
  Quota quota = OfEach();
  quota.most.bytes[kHost] = kChunk * 40;
  quota.most.bytes[kSsd] = kChunk * 99;
  ledger_.quotas().SetQuotas({quota});
  const Lent job = Lend(Fixed(4, 0, 0));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ((**job)[Tier::kHost].target(), 40u);
  EXPECT_EQ((**job)[Tier::kSsd].target(), 99u);
  const Lent elastic = Lend(Elastic(), {kBob});
  ASSERT_TRUE(elastic.ok()) << elastic.status();
  EXPECT_EQ((**elastic)[Tier::kHost].limit(), 40u) << "each user has a default quota";
  EXPECT_LE(UsedBy(kBob, kHost), 40u);
  EXPECT_LE(UsedBy(kBob, kSsd), 99u);
}

TEST_F(ShareQuotasTest, AllQuotasOfAJobHoldAndAGroupIsOne) {
  Quota alice = OfAlice(), students = OfStudents();
  alice.most.bytes[kHost] = kChunk * 50;
  students.most.bytes[kHost] = kChunk * 60;
  ledger_.quotas().SetQuotas({alice, students});
  const Lent of_alice = Lend(Fixed(4, 40, 20), {kAlice, {7, kStudents, kStudents}});
  ASSERT_TRUE(of_alice.ok());
  EXPECT_NE(Refusal(Lend(Fixed(4, 30, 20), {kBob, {kStudents}})).find("group:students"),
            std::string::npos);
  EXPECT_NE(Refusal(Lend(Fixed(4, 15, 20), {kAlice})).find("user:alice"), std::string::npos);
  EXPECT_TRUE(Lend(Fixed(4, 20, 20), {kBob, {kStudents}}).ok());
  EXPECT_EQ(ledger_.quotas().QuotaUses(Owner{kAlice, {kStudents}}).size(), 2u);
}

TEST_F(ShareQuotasTest, GrowthEndsAtTheQuotaAndReclaimsOnlyWithinIt) {
  Quota quota = OfAlice();
  quota.most.bytes[kHost] = kChunk * 80;
  ledger_.quotas().SetQuotas({quota});
  const Lent of_bob = Lend(Fixed(4, 60, 20), {kBob});
  const Lent first = Lend(Elastic());
  ASSERT_TRUE(of_bob.ok() && first.ok());
  Share& large = (**first)[Tier::kHost];
  EXPECT_EQ(large.target(), 80u) << "20 more are free";
  EXPECT_FALSE(ledger_.elastic().PlanGrowth(large, 1, {}).has_value()) << "it is at its limit";

  EXPECT_NE(Refusal(Lend(Elastic())).find("at least"), std::string::npos);
  const auto within = ledger_.quotas().WithinQuotas({kAlice}, {Tier::kHost}, kChunk * 20);
  ASSERT_TRUE(within.has_value());
  ASSERT_EQ(within->size(), 1u);
  ledger_.elastic().ReclaimFromOthers(within->at(0), {});
  EXPECT_EQ(large.target(), 60u);
  ledger_.elastic().ReclaimFromOthers({{Tier::kSsd}, kChunk * 128, Bytes(0), nullptr}, {});
  const Lent second = Lend(Elastic());
  ASSERT_TRUE(second.ok()) << second.status();
  Share& small = (**second)[Tier::kHost];
  EXPECT_EQ(small.target(), 14u) << "two segments";
  EXPECT_EQ(UsedBy(kAlice, kHost), 74u);

  // Beyond its guaranteed share it has half of the quota, which the other job gives.
  const auto growth = ledger_.elastic().PlanGrowth(small, 20, {});
  ASSERT_TRUE(growth.has_value());
  EXPECT_FALSE(growth->reclaim.has_value()) << "the pool has free memory";
  ASSERT_EQ(growth->within_quotas.size(), 1u);
  EXPECT_TRUE(small.starved());
  EXPECT_FALSE(ledger_.elastic().Grow(small, *growth, {}).has_value());
  EXPECT_EQ(ledger_.elastic().ReclaimFromOthers(growth->within_quotas[0], {}).size(), 1u);
  ASSERT_TRUE(ledger_.elastic().Grow(small, *growth, {}).has_value());
  EXPECT_EQ(small.target(), 35u) << "five segments";
  EXPECT_EQ(large.target(), 40u);
  EXPECT_EQ(UsedBy(kAlice, kHost), 75u);
  const auto beyond = ledger_.elastic().PlanGrowth(small, 20, {});
  ASSERT_TRUE(beyond.has_value());
  EXPECT_TRUE(beyond->within_quotas.empty()) << "more than the fair share is free memory only";
  EXPECT_FALSE(ledger_.elastic().Grow(small, *beyond, {}).has_value());
}

TEST_F(ShareQuotasTest, AQuotaBelowWhatIsUsedShrinksElasticSharesOnly) {
  const Lent fixed = Lend(Fixed(4, 30, 20)), elastic = Lend(Elastic());
  ASSERT_TRUE(fixed.ok() && elastic.ok());
  Share& share = (**elastic)[Tier::kHost];
  Make(share);
  EXPECT_EQ(share.target(), 130u);
  Quota quota = OfAlice();
  quota.most.bytes[kHost] = kChunk * 90;
  ledger_.quotas().SetQuotas({quota});
  std::vector<ShareLedger::Reclaim> over = ledger_.quotas().OverQuota();
  ASSERT_EQ(over.size(), 1u);
  ledger_.elastic().ReclaimFromOthers(over[0], {{share.job(), {70, 0}}});
  EXPECT_EQ(share.target(), 74u) << "leases are not ended";
  ReleaseSurplus(share);
  EXPECT_EQ(UsedBy(kAlice, kHost), 104u) << "it is over its quota";
  over = ledger_.quotas().OverQuota();
  ASSERT_EQ(over.size(), 1u);
  ledger_.elastic().ReclaimFromOthers(over[0], {});
  EXPECT_EQ(share.target(), 60u);
  EXPECT_TRUE(ledger_.quotas().OverQuota().empty());
  ReleaseSurplus(share);
  EXPECT_EQ(UsedBy(kAlice, kHost), 90u);

  quota.most.bytes[kHost] = kChunk * 1;
  ledger_.quotas().SetQuotas({quota});
  ledger_.elastic().ReclaimFromOthers(ledger_.quotas().OverQuota().at(0), {});
  EXPECT_EQ(share.target(), share.guaranteed()) << "what was promised stays";
  EXPECT_EQ((**fixed)[Tier::kHost].target(), 30u);
  ledger_.CheckInvariants();
  EXPECT_NE(Refusal(Lend(Fixed(4, 4, 20))).find("2 MiB of host memory; used: "), std::string::npos);
}

TEST_F(ShareQuotasTest, AShareThatLacksItsQuotaAloneDoesNotKeepFreeMemoryFromOthers) {
  Quota quota = OfAlice();
  quota.most.bytes[kHost] = kChunk * 40;
  const Lent first = Lend(Elastic());
  ASSERT_TRUE(first.ok());
  ledger_.elastic().ReclaimFromOthers({{Tier::kHost}, kChunk * 60, Bytes(0), nullptr}, {});
  ledger_.elastic().ReclaimFromOthers({{Tier::kSsd}, kChunk * 60, Bytes(0), nullptr}, {});
  ledger_.quotas().SetQuotas({quota});
  const Lent of_bob = Lend(Elastic(), {kBob});
  ASSERT_TRUE(of_bob.ok()) << of_bob.status();
  Share& bob = (**of_bob)[Tier::kHost];
  Share& alice = (**first)[Tier::kHost];
  ledger_.elastic().ReclaimFromOthers(ledger_.quotas().OverQuota().at(0), {});
  ASSERT_EQ(alice.target(), 40u);
  ASSERT_GE(ledger_.pools().Free({Tier::kHost}), kChunk * 40);
  EXPECT_FALSE(ledger_.elastic().PlanGrowth(alice, 8, {})->is_entitled);
  EXPECT_FALSE(
      ledger_.elastic().Grow(alice, *ledger_.elastic().PlanGrowth(alice, 8, {}), {}).has_value());
  const uint32_t before = bob.target();
  const auto growth = ledger_.elastic().PlanGrowth(bob, 60, {});
  ASSERT_TRUE(growth.has_value());
  ASSERT_TRUE(ledger_.elastic().Grow(bob, *growth, {}).has_value());
  EXPECT_GT(bob.target(), before);
}

TEST_F(ShareQuotasTest, JobsCountUntilTheyEnd) {
  Quota quota = OfAlice();
  quota.most.jobs = 2;
  ledger_.quotas().SetQuotas({quota});
  const Lent first = Lend(Fixed(4, 10, 20)), second = Lend(Fixed(4, 10, 20));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(Refusal(Lend(Fixed(4, 10, 20))).find("2 of jobs; used: 2; requested: 1 more"),
            std::string::npos);
  EXPECT_FALSE(may_be_lent_later_) << "no memory of others would help";
  ASSERT_TRUE(ledger_.LendForContents(JobId(90), {kAlice}, kChunk).ok()) << "it is no job";
  ledger_.SetState(**first, JobState::kLingering);
  EXPECT_FALSE(Lend(Fixed(4, 10, 20)).ok());
  ledger_.SetState(**first, JobState::kEnding);
  EXPECT_TRUE(Lend(Fixed(4, 10, 20)).ok());
}

TEST_F(ShareQuotasTest, WhatLingersIsBoundedInTimeAndBytesFromTheOpenOn) {
  Quota quota = OfAlice();
  quota.most.time_to_live = std::chrono::hours(1);
  ledger_.quotas().SetQuotas({quota});
  EXPECT_NE(Refusal(Lend(Named(Fixed(4, 10, 20)))).find("lingering-hours=..."), std::string::npos);
  EXPECT_TRUE(Lend(Fixed(4, 10, 20)).ok()) << "it does not linger";

  quota.most.time_to_live = std::chrono::hours(2);
  quota.most.lingering = kChunk * 50;
  ledger_.quotas().SetQuotas({quota});
  const Lent first = Lend(Named(Fixed(4, 10, 20)));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ledger_.quotas().QuotaUses(Owner{kAlice}).at(0).lingering, kChunk * 34);
  EXPECT_NE(Refusal(Lend(Named(Fixed(4, 10, 20)))).find("lingering=..."), std::string::npos)
      << "nobody can refuse it when it begins to linger";
  EXPECT_TRUE(Lend(Fixed(4, 10, 20)).ok());
}

TEST_F(ShareQuotasTest, AnElasticJobLingersWithItsGuaranteedShareAndWhatIsOnSsd) {
  Quota quota = OfAlice();
  quota.most.lingering = kChunk * 300;
  ledger_.quotas().SetQuotas({quota});
  const Lent job = Lend(Named(Elastic()));
  ASSERT_TRUE(job.ok()) << job.status();
  Share& ssd = (**job)[Tier::kSsd];
  const auto lingering = [&] {
    return ledger_.quotas().QuotaUses(Owner{kAlice}).at(0).lingering / kChunk;
  };
  const uint64_t host = (**job)[Tier::kHost].guaranteed(), device = 4;
  EXPECT_EQ(lingering(), host + device + ssd.guaranteed());
  ledger_.MakeSegment(ssd, next_segment_);
  ledger_.SegmentMade(ssd, next_segment_++);
  ledger_.MakeSegment(ssd, next_segment_);
  ledger_.SegmentMade(ssd, next_segment_++);
  EXPECT_EQ(lingering(), host + device + ssd.made_slots());
}

TEST_F(ShareQuotasTest, MemoryOfEndingJobsCountsUntilItIsGone) {
  Quota quota = OfAlice();
  quota.most.bytes[kHost] = kChunk * 30;
  ledger_.quotas().SetQuotas({quota});
  Lent first = Lend(Fixed(4, 25, 20));
  ASSERT_TRUE(first.ok());
  ledger_.SetState(**first, JobState::kEnding);
  EXPECT_FALSE(Lend(Fixed(4, 10, 20)).ok());
  first->reset();
  EXPECT_TRUE(Lend(Fixed(4, 10, 20)).ok());
}

TEST_F(ShareQuotasTest, AResizeGrowsUpToTheQuota) {
  Quota quota = OfAlice();
  quota.most.bytes[kDevice] = kChunk * 10;
  ledger_.quotas().SetQuotas({quota});
  const Lent fixed = Lend(Fixed(8, 30, 40), {kAlice}, MemoryKind::kCudaDescriptor);
  ASSERT_TRUE(fixed.ok());
  EXPECT_TRUE(ledger_.quotas().CheckQuota((**fixed)[Tier::kDevice], 10).ok());
  EXPECT_TRUE(IsByQuota(ledger_.quotas().CheckQuota((**fixed)[Tier::kDevice], 11)));
}

TEST_F(ShareQuotasTest, AnotherUserOfTheDefaultHasAQuotaOfItsOwn) {
  Quota each = OfEach();
  each.most.bytes[kHost] = kChunk * 30;
  ledger_.quotas().SetQuotas({each, OfAlice()});
  const Lent of_bob = Lend(Fixed(4, 30, 20), {kBob});
  ASSERT_TRUE(of_bob.ok());
  EXPECT_TRUE(Lend(Fixed(4, 30, 20), {kBob + 1}).ok());
  EXPECT_TRUE(Lend(Fixed(4, 60, 20), {kAlice}).ok()) << "a quota of its own replaces it";
  const std::vector<QuotaUse> all = ledger_.quotas().QuotaUses(absl::nullopt);
  ASSERT_EQ(all.size(), 3u) << "the default, alice, and bob by default";
  EXPECT_FALSE(all[0].uid.has_value());
  EXPECT_EQ(all[2].uid, kBob);
  EXPECT_EQ(all[2].bytes[kHost], kChunk * 30);
  EXPECT_EQ(ledger_.quotas().QuotaUses(Owner{kBob}).at(0).uid, kBob);
  EXPECT_FALSE(ledger_.quotas().QuotaUses(Owner{kAlice}).at(0).uid.has_value());
}

}  // namespace
}  // namespace memtide
