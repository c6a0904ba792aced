#include "daemon/engine/writes/ssd_writes.h"

#include <gtest/gtest.h>

#include <map>

namespace memtide {
namespace {

using std::chrono::hours;
using std::chrono::minutes;

constexpr Bytes kBudget = MiB(6400);  // A burst of 64 MiB.

SsdDrive Drive(Bytes per_day) {
  SsdDrive drive;
  drive.per_day = per_day;
  return drive;
}

Quota QuotaOf(Quota::Kind kind, uint32_t id, Bytes per_day) {
  Quota quota;
  quota.kind = kind;
  quota.id = id;
  quota.name = "quota " + std::to_string(id);
  quota.most.written_per_day = per_day;
  return quota;
}

class SsdWritesTest : public testing::Test {
 protected:
  SsdWrite Write(uint32_t chunk, uint32_t uid, Bytes size) const {
    return {ChunkIndex(chunk), JobId(uid), uid, {size}};
  }
  // Begins what is granted, and returns how many bytes that were by user.
  std::map<uint32_t, Bytes> Serve(SsdWrites* writes, const std::map<uint32_t, SsdWrite>& waiting) {
    std::map<uint32_t, Bytes> served;
    for (const ChunkIndex chunk : writes->Serve(now_)) {
      const SsdWrite& write = waiting.at(chunk.value());
      EXPECT_TRUE(writes->Begin(now_, write));
      for (const Bytes part : write.parts) served[write.uid] += part;
    }
    writes->CheckInvariants();
    return served;
  }
  std::map<uint32_t, Bytes> ServeForAQuarterOfADay(SsdWrites* writes,
                                                   const std::map<uint32_t, SsdWrite>& waiting) {
    std::map<uint32_t, Bytes> served;
    for (const Instant end = now_ + hours(6); now_ < end; now_ += minutes(1)) {
      for (const auto& [uid, bytes] : Serve(writes, waiting)) served[uid] += bytes;
    }
    return served;
  }
  // Users 1 and 2 have a quarter of a day's budget together, and as much each.
  static void ExpectEqualPartsOfTheBudget(std::map<uint32_t, Bytes>& served) {
    EXPECT_NEAR(static_cast<double>(served[1].count()) / static_cast<double>(served[2].count()), 1,
                0.1);
    EXPECT_NEAR(static_cast<double>((served[1] + served[2]).count()),
                static_cast<double>(kBudget.count()) * 0.99 / 4, 1e8);
  }
  Instant now_{hours(100)};
};

TEST_F(SsdWritesTest, AfterARestartNoUserBeginsWithABurst) {
  SsdDrive used = Drive(Bytes());
  used.was_used = true;
  const SsdWrite write{ChunkIndex(1), JobId(1), 7, {MiB(1), MiB(1)}};
  EXPECT_FALSE(SsdWrites({used, Drive(Bytes())}, kBudget).MayBegin(now_, write));
  EXPECT_FALSE(SsdWrites({Drive(Bytes()), used}, kBudget).MayBegin(now_, write));
  EXPECT_TRUE(SsdWrites({Drive(Bytes()), Drive(Bytes())}, kBudget).MayBegin(now_, write));
}

TEST_F(SsdWritesTest, CountsByUserAndDriveOverADay) {
  SsdWrites writes({Drive(Bytes()), Drive(Bytes())}, Bytes());
  const SsdWrite both{ChunkIndex(1), JobId(1), 7, {MiB(3), MiB(5)}};
  const SsdWrite one{ChunkIndex(2), JobId(2), 8, {MiB(0), MiB(2)}};
  EXPECT_TRUE(writes.Begin(now_, both));
  EXPECT_TRUE(writes.Begin(now_ + hours(2), both));
  EXPECT_TRUE(writes.Begin(now_ + hours(2), one));
  const Instant later = now_ + hours(3);
  EXPECT_EQ(writes.DriveUse(later)[0].last_day, MiB(6));
  EXPECT_EQ(writes.DriveUse(later)[1].last_day, MiB(12));
  EXPECT_EQ(writes.UserUse(later)[0].last_day, MiB(16));
  EXPECT_EQ(writes.UserUse(later)[1].last_day, MiB(2));
  EXPECT_EQ(writes.DriveUse(now_ + hours(25))[1].last_day, MiB(7));
  EXPECT_EQ(writes.DriveUse(now_ + hours(50))[1].last_day, MiB(0));
  EXPECT_EQ(writes.DriveUse(now_ + hours(50))[1].written, MiB(0)) << "no write has ended";
  writes.End(now_, both, true);
  writes.End(now_ + hours(2), both, true);
  writes.End(now_ + hours(2), one, true);
  EXPECT_EQ(writes.DriveUse(now_ + hours(50))[1].written, MiB(12));
}

// A drive that refuses all writes uses up no budget, and is not worn.
TEST_F(SsdWritesTest, AWriteThatFailsIsNotCounted) {
  SsdWrites writes({Drive(kBudget)}, kBudget);
  const SsdWrite write{ChunkIndex(1), JobId(1), 7, {MiB(64)}};
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(writes.Begin(now_, write)) << i;
    writes.End(now_, write, false);
  }
  EXPECT_EQ(writes.DriveUse(now_)[0].written, MiB(0));
  EXPECT_EQ(writes.DriveUse(now_)[0].last_day, MiB(0));
  EXPECT_EQ(writes.UserUse(now_)[0].last_day, MiB(0));
  // A write that began in a day before is not in the sums any more.
  ASSERT_TRUE(writes.Begin(now_, write));
  ASSERT_TRUE(writes.Begin(now_ + hours(30), write));
  EXPECT_EQ(writes.DriveUse(now_ + hours(30))[0].last_day, MiB(64));
  writes.End(now_, write, false);
  EXPECT_EQ(writes.DriveUse(now_ + hours(30))[0].last_day, MiB(64));
}

TEST_F(SsdWritesTest, UsersHaveTurnsByBytes) {
  SsdWrites writes({Drive(kBudget)}, Bytes());
  std::map<uint32_t, SsdWrite> waiting;
  EXPECT_TRUE(writes.Begin(now_, Write(1000, 1, MiB(64))));  // The burst.
  // One user has more and larger chunks, and was first.
  for (uint32_t i = 0; i < 400; ++i) waiting[i] = Write(i, 1, MiB(32));
  for (uint32_t i = 400; i < 900; ++i) waiting[i] = Write(i, 2, MiB(4));
  for (const auto& [chunk, write] : waiting) EXPECT_FALSE(writes.Begin(now_, write)) << chunk;
  std::map<uint32_t, Bytes> served = ServeForAQuarterOfADay(&writes, waiting);
  ExpectEqualPartsOfTheBudget(served);
}

TEST_F(SsdWritesTest, AUsersOwnBudgetHoldsUpNobodyElse) {
  SsdWrites writes({Drive(Bytes())}, Bytes());
  writes.SetQuotas({QuotaOf(Quota::Kind::kUser, 1, kBudget)});
  EXPECT_TRUE(writes.Begin(now_, Write(1, 1, MiB(64))));
  EXPECT_FALSE(writes.Begin(now_, Write(2, 1, MiB(64))));
  EXPECT_TRUE(writes.Begin(now_, Write(3, 2, GiB(10))));
  EXPECT_TRUE(writes.UserUse(now_)[0].is_awaited);
  EXPECT_EQ(writes.UserUse(now_)[0].waiting_chunks, 1u);
  EXPECT_FALSE(writes.AwaitedDrive().has_value());
}

TEST_F(SsdWritesTest, AGroupsBudgetIsThatOfItsUsersTogetherInTurns) {
  SsdWrites writes({Drive(Bytes())}, Bytes());
  writes.SetQuotas({QuotaOf(Quota::Kind::kGroup, 50, kBudget)});
  EXPECT_EQ(writes.WithBudget({40, 50}), std::vector<uint32_t>{50});
  std::map<uint32_t, SsdWrite> waiting;
  for (uint32_t i = 0; i < 400; ++i) {
    waiting[i] = Write(i, 1 + i % 2, MiB(32));
    waiting[i].groups = {50};
  }
  SsdWrite burst = Write(1000, 1, MiB(64));
  burst.groups = {50};
  EXPECT_TRUE(writes.Begin(now_, burst));
  for (const auto& [chunk, write] : waiting) EXPECT_FALSE(writes.Begin(now_, write)) << chunk;
  EXPECT_EQ(writes.AwaitedBudget(now_, 2).quota, "quota 50");
  EXPECT_TRUE(writes.UserUse(now_)[1].is_awaited);
  EXPECT_TRUE(writes.Begin(now_, Write(1001, 3, GiB(10)))) << "it is in no such group";
  std::map<uint32_t, Bytes> served = ServeForAQuarterOfADay(&writes, waiting);
  ExpectEqualPartsOfTheBudget(served);
  QuotaUse use{QuotaOf(Quota::Kind::kGroup, 50, kBudget)};
  EXPECT_EQ(writes.LastDayOf(now_, use), served[1] + served[2] + MiB(64));
}

// Chunks of 1 MiB of another user of the group would else take each token.
TEST_F(SsdWritesTest, SmallWritesDoNotPassOneThatWaitsForTheirGroup) {
  SsdWrites writes({Drive(Bytes())}, Bytes());
  writes.SetQuotas({QuotaOf(Quota::Kind::kGroup, 50, kBudget)});
  std::map<uint32_t, SsdWrite> waiting = {
      {1, Write(1, 1, MiB(60))}, {2, Write(2, 1, MiB(32))}, {3, Write(3, 2, MiB(1))}};
  for (auto& [chunk, write] : waiting) write.groups = {50};
  EXPECT_TRUE(writes.Begin(now_, waiting[1]));
  EXPECT_FALSE(writes.Begin(now_, waiting[2]));
  EXPECT_FALSE(writes.Begin(now_, waiting[3]));
  EXPECT_TRUE(Serve(&writes, waiting).empty());
  writes.Withdraw(ChunkIndex(2));
  EXPECT_EQ(Serve(&writes, waiting).size(), 1u);
}

TEST_F(SsdWritesTest, QuotasReplaceTheBudgetOfEachUser) {
  SsdWrites writes({Drive(Bytes())}, kBudget);
  Quota of_2 = QuotaOf(Quota::Kind::kUser, 2, kBudget);
  of_2.most.written_per_day.reset();
  writes.SetQuotas({QuotaOf(Quota::Kind::kUser, 1, kBudget * 3), of_2,
                    QuotaOf(Quota::Kind::kDefault, 0, kBudget * 2)});
  for (const uint32_t uid : {1, 2, 3}) writes.MayBegin(now_, Write(uid, uid, MiB(1)));
  const std::vector<UserWrites> users = writes.UserUse(now_);
  ASSERT_EQ(users.size(), 3u);
  EXPECT_EQ(users[0].per_day, kBudget * 3);
  EXPECT_EQ(users[1].per_day, kBudget);
  EXPECT_EQ(users[2].per_day, kBudget * 2);
  // No 24 hours have more than a budget, whatever was written under the one before.
  EXPECT_TRUE(writes.Begin(now_, Write(3, 3, MiB(64))));
  writes.SetQuotas({QuotaOf(Quota::Kind::kUser, 3, kBudget)});
  EXPECT_FALSE(writes.Begin(now_, Write(4, 3, MiB(1))));
}

TEST_F(SsdWritesTest, SmallWritesDoNotPassOneThatWaitsForTheDrive) {
  SsdWrites writes({Drive(kBudget)}, Bytes());
  EXPECT_TRUE(writes.Begin(now_, Write(1, 1, MiB(60))));
  std::map<uint32_t, SsdWrite> waiting = {{2, Write(2, 1, MiB(32))}, {3, Write(3, 2, MiB(1))}};
  EXPECT_FALSE(writes.Begin(now_, waiting[2]));
  EXPECT_FALSE(writes.MayBegin(now_, waiting[3]));
  EXPECT_FALSE(writes.Begin(now_, waiting[3]));
  EXPECT_EQ(writes.AwaitedDrive(), absl::optional<uint32_t>(0));
  EXPECT_TRUE(Serve(&writes, waiting).empty());
  now_ += minutes(10);
  EXPECT_EQ(Serve(&writes, waiting).size(), 2u);
  EXPECT_EQ(writes.waiting(), 0u);
}

TEST_F(SsdWritesTest, EachDriveOfAWriteMustHaveItsPart) {
  SsdWrites writes({Drive(kBudget * 10), Drive(kBudget)}, Bytes());
  SsdWrite write = Write(1, 1, MiB(8));
  write.parts = {MiB(8), MiB(64)};
  EXPECT_TRUE(writes.Begin(now_, write));
  write.chunk = ChunkIndex(2);
  EXPECT_FALSE(writes.Begin(now_, write));
  EXPECT_EQ(writes.AwaitedDrive(), absl::optional<uint32_t>(1));
}

TEST_F(SsdWritesTest, WhatIsWithdrawnGivesItsTokensBack) {
  SsdWrites writes({Drive(kBudget)}, Bytes());
  EXPECT_TRUE(writes.Begin(now_, Write(1, 1, MiB(64))));
  EXPECT_FALSE(writes.Begin(now_, Write(2, 1, MiB(64))));
  EXPECT_FALSE(writes.Begin(now_, Write(3, 1, MiB(64))));
  writes.Withdraw(ChunkIndex(3));  // It was not granted yet.
  now_ += hours(1);
  EXPECT_EQ(writes.Serve(now_).size(), 1u);
  writes.Withdraw(ChunkIndex(2));  // It was.
  writes.CheckInvariants();
  EXPECT_TRUE(writes.Begin(now_, Write(4, 1, MiB(64))));
  EXPECT_EQ(writes.DriveUse(now_)[0].last_day, MiB(128));
}

TEST_F(SsdWritesTest, WhatEarlierDaemonsWroteCountsAndABudgetBeginsEmpty) {
  SsdDrive drive = Drive(kBudget);
  drive.was_used = true;
  drive.written = GiB(5);
  drive.last_day = {{now_ - hours(30), 7, MiB(1)}, {now_ - hours(2), 7, MiB(10)}};
  SsdWrites writes({drive}, kBudget);
  EXPECT_EQ(writes.DriveUse(now_)[0].last_day, MiB(10));
  EXPECT_EQ(writes.DriveUse(now_)[0].written, GiB(5));
  EXPECT_EQ(writes.UserUse(now_)[0].last_day, MiB(10));
  EXPECT_FALSE(writes.Begin(now_, Write(1, 7, MiB(1))));
  EXPECT_FALSE(writes.Begin(now_, Write(2, 8, MiB(1))));
  const std::vector<std::vector<PastWrites>> past = writes.Past(now_);
  ASSERT_EQ(past.size(), 1u);
  ASSERT_EQ(past[0].size(), 1u);
  EXPECT_EQ(past[0][0].bytes, MiB(10));
  EXPECT_EQ(past[0][0].uid, 7u);
}

TEST_F(SsdWritesTest, UsersThatWroteNothingForADayAreForgotten) {
  SsdWrites writes({Drive(Bytes())}, Bytes());
  EXPECT_TRUE(writes.Begin(now_, Write(1, 7, MiB(1))));
  now_ += hours(23);
  writes.Serve(now_);
  EXPECT_EQ(writes.UserUse(now_).size(), 1u);
  now_ += hours(2);
  writes.Serve(now_);
  EXPECT_EQ(writes.UserUse(now_).size(), 0u);
}

}  // namespace
}  // namespace memtide
