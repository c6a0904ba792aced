// Evictions to SSD within daily budgets, over days of virtual time.
#include <algorithm>
#include <deque>
#include <utility>

#include "daemon/engine/testing/engine_harness.h"

namespace memtide {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr uint32_t kChunksPerDay = 200;  // Two at once.

EngineOptions HostAndSsd() {
  EngineOptions options;
  options.host_capacity = kChunk * 4;
  options.ssd_capacity = kChunk * 64;
  options.ssd_drives.emplace_back();
  options.limits.session_lease = std::chrono::hours(1000);  // Nothing renews it here.
  return options;
}

EngineOptions WithBudget() {
  EngineOptions options = HostAndSsd();
  options.ssd_drives[0].per_day = kChunk * kChunksPerDay;
  return options;
}

// A session that writes one chunk after the other, each as soon as the fetch of it is granted.
class PacingTest : public testing::Test {
 protected:
  explicit PacingTest(EngineOptions options = WithBudget()) : engine_(std::move(options)) {}

  void Begin() {
    session_ = engine_.Open();
    chunks_ = engine_.Allocate(session_, 16);
    fetch_ = engine_.Fetch(session_, {chunks_[0]}, Access::kWrite, Tier::kHost);
  }
  // Lets time pass, in steps, and writes as many chunks as are granted meanwhile.
  void Train(Duration time, Duration step) {
    for (const Instant end = engine_.now() + time; engine_.now() < end;) {
      engine_.Wait(step);
      MoveAll();
      while (engine_.Answered(fetch_) && !HasFatalFailure()) NextFetch();
    }
  }
  void NextFetch() {
    const absl::Status status = engine_.ReplyTo(fetch_).status;
    if (status.ok()) {
      engine_.Release(session_, {chunks_[next_ % chunks_.size()]});
      ++next_;
    } else {
      // The client makes the call again.
      ASSERT_TRUE(status.GetPayload(kCallAgain).has_value()) << status;
      ++called_again_;
    }
    fetch_ =
        engine_.Fetch(session_, {chunks_[next_ % chunks_.size()]}, Access::kWrite, Tier::kHost);
    MoveAll();
  }
  void MoveAll() {
    while (!engine_.transfers_.empty()) {
      if (engine_.transfers_.front().kind == StartTransfer::Kind::kHostToSsd) {
        written_.push_back(engine_.now());
      }
      engine_.FinishOne();
    }
  }
  // The most chunks that were written in any 24 hours.
  size_t MostInADay() const {
    size_t most = 0, first = 0;
    for (size_t i = 0; i < written_.size(); ++i) {
      while (written_[first] <= written_[i] - std::chrono::hours(24)) ++first;
      most = std::max(most, i - first + 1);
    }
    return most;
  }

  EngineHarness engine_;
  SessionId session_;
  std::vector<ChunkId> chunks_;
  CallId fetch_;
  size_t next_ = 0, called_again_ = 0;
  std::vector<Instant> written_;
  uint64_t quotas_set_ = 0;
};

TEST_F(PacingTest, DemandAboveTheBudgetIsServedByItOverDaysAndNeverAboveIt) {
  Begin();
  const int days = 5;
  Train(std::chrono::hours(24 * days), seconds(20));
  EXPECT_LE(MostInADay(), kChunksPerDay);
  EXPECT_NEAR(static_cast<double>(written_.size()) / days, kChunksPerDay, kChunksPerDay * 0.01);
  const InspectReply seen = engine_.Inspect();
  EXPECT_EQ(seen.counters.ssd_written, kChunk * written_.size());
  EXPECT_LE(seen.drives[0].last_day, kChunk * (kChunksPerDay + 2));
  EXPECT_EQ(seen.drives[0].written, kChunk * written_.size());
}

TEST_F(PacingTest, WhatNeedsNoWriteLeavesFirstWhereTheBudgetIsUsedUp) {
  session_ = engine_.Open();
  chunks_ = engine_.Allocate(session_, 16);
  const auto use = [this](size_t n, Access access) {
    const CallId fetch = engine_.Fetch(session_, {chunks_[n]}, access, Tier::kHost);
    MoveAll();
    engine_.Release(session_, {chunks_[n]});
    return engine_.Answered(fetch);
  };
  for (size_t n = 0; n < 5; ++n) ASSERT_TRUE(use(n, Access::kWrite)) << n;
  ASSERT_TRUE(use(0, Access::kRead));
  ASSERT_EQ(written_.size(), 2u) << "as many as may be at once";
  EXPECT_TRUE(use(5, Access::kWrite)) << "the copy of chunk 0 leaves, which is newer";
  EXPECT_EQ(written_.size(), 2u);
  EXPECT_FALSE(use(6, Access::kWrite)) << "there is no other";
}

TEST_F(PacingTest, AWriteThatFailsTakesNothingOfTheBudget) {
  Begin();
  MoveAll();
  for (int i = 0; i < 3; ++i) NextFetch();
  engine_.Release(session_, {chunks_[3]});
  engine_.Fetch(session_, {chunks_[4]}, Access::kWrite, Tier::kHost);
  size_t failed = 0;
  while (!engine_.transfers_.empty()) {
    const bool to_ssd = engine_.transfers_.front().kind == StartTransfer::Kind::kHostToSsd;
    failed += to_ssd;
    engine_.FinishOne(to_ssd ? absl::InternalError("EIO") : absl::OkStatus());
  }
  ASSERT_GT(failed, 0u);
  const InspectReply seen = engine_.Inspect();
  EXPECT_EQ(seen.counters.transfers_failed, failed);
  EXPECT_EQ(seen.drives[0].last_day, Bytes(0));
  EXPECT_EQ(seen.drives[0].written, Bytes(0));
}

TEST_F(PacingTest, CallsThatWaitForABudgetDoNotExpireAndSaySo) {
  Begin();
  // Nothing is written at once any more, and each write takes 7 minutes.
  Train(std::chrono::hours(2), seconds(1));
  const size_t done = next_;
  ASSERT_FALSE(engine_.Answered(fetch_));
  InspectReply seen = engine_.Inspect();
  EXPECT_EQ(seen.counters.deadlines_exceeded, 0u);
  EXPECT_EQ(seen.counters.calls_refused, 0u);
  EXPECT_TRUE(seen.drives[0].is_awaited);
  EXPECT_EQ(seen.users[0].waiting_chunks, 1u);
  EXPECT_GT(seen.counters.stalled_on_budget, minutes(90));
  ASSERT_EQ(engine_.writes_wait_.size(), 2u) << "once an hour";
  EXPECT_EQ(engine_.writes_wait_[0].budget.drive, absl::optional<uint32_t>(0));
  EXPECT_EQ(engine_.writes_wait_[0].budget.per_day, kChunk * kChunksPerDay);
  Train(minutes(15), seconds(1));
  EXPECT_GT(next_, done);
}

TEST_F(PacingTest, ALateCallIsToldToComeAgain) {
  Begin();
  Train(minutes(1), seconds(1));
  FetchCall fetch;
  fetch.call = engine_.Call();
  fetch.session = session_;
  fetch.tier = Tier::kHost;
  fetch.chunks = {chunks_[15]};
  fetch.deadline = seconds(1);
  engine_.Post(fetch);
  engine_.Wait(seconds(2));
  EXPECT_EQ(engine_.CodeOf(fetch.call), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine_.ReplyTo(fetch.call).status.GetPayload(kCallAgain).has_value());
}

TEST_F(PacingTest, WhatIsReadAgainIsEvictedWithoutABudget) {
  Begin();
  Train(minutes(1), seconds(1));
  const size_t written = written_.size();
  // The chunk that waits to be written is freed: nothing waits any more, and clean ones go.
  const CallId free = engine_.Call();
  engine_.Post(CloseCall{free, session_});
  EXPECT_EQ(engine_.Inspect().users[0].waiting_chunks, 0u);
  EXPECT_EQ(written_.size(), written);
}

class UserPacingTest : public PacingTest {
 protected:
  static EngineOptions WithUserBudget() {
    EngineOptions options = HostAndSsd();
    options.user_ssd_per_day = kChunk * kChunksPerDay;
    return options;
  }
  UserPacingTest() : PacingTest(WithUserBudget()) {}
};

TEST_F(UserPacingTest, AUsersBudgetIsKeptOverDays) {
  Begin();
  const int days = 3;
  Train(std::chrono::hours(24 * days), seconds(20));
  EXPECT_LE(MostInADay(), kChunksPerDay);
  EXPECT_NEAR(static_cast<double>(written_.size()) / days, kChunksPerDay, kChunksPerDay * 0.01);
  EXPECT_EQ(engine_.Inspect().users_at_budget, 1u);
}

TEST_F(UserPacingTest, AQuotaThatIsSetWhileEvictionsWaitHoldsAtOnce) {
  Begin();
  Train(std::chrono::hours(1), seconds(20));
  ASSERT_EQ(engine_.Inspect().users[0].waiting_chunks, 1u);
  const auto written_in_an_hour = [this](uint32_t chunks_per_day) {
    Quota quota;
    quota.kind = Quota::Kind::kUser;
    quota.id = engine_.Inspect().users[0].uid;
    quota.name = "user:alice";
    quota.most.written_per_day = kChunk * chunks_per_day;
    engine_.Post(SetQuotasCall{engine_.Call(), ++quotas_set_, {quota}});
    const size_t before = written_.size();
    Train(std::chrono::hours(1), seconds(20));
    return static_cast<double>(written_.size() - before);
  };
  EXPECT_NEAR(written_in_an_hour(kChunksPerDay * 12), kChunksPerDay / 2, 2);
  EXPECT_EQ(engine_.writes_wait_.back().budget.quota, "user:alice");
  EXPECT_NEAR(written_in_an_hour(kChunksPerDay * 3), kChunksPerDay / 8, 2);
}

TEST(PacingOfDrivesTest, EachDriveCountsWhatItsStripesGet) {
  EngineOptions options = HostAndSsd();
  options.ssd_drives.resize(2);
  EngineHarness engine(options);
  engine.stripes_ = {3, 1};
  const SessionId session = engine.Open();
  const std::vector<ChunkId> chunks = engine.Allocate(session, 32);
  for (const ChunkId chunk : chunks) {
    const CallId fetch = engine.Fetch(session, {chunk}, Access::kWrite, Tier::kHost);
    engine.FinishTransfers();
    EXPECT_TRUE(engine.ReplyTo(fetch).status.ok());
    engine.Release(session, {chunk});
  }
  engine.FinishTransfers();
  const InspectReply seen = engine.Inspect();
  EXPECT_EQ(seen.drives[0].written + seen.drives[1].written, seen.counters.ssd_written);
  EXPECT_GE(seen.drives[1].written, MiB(8));
  EXPECT_GE(seen.drives[0].written, seen.drives[1].written * 2);
}

}  // namespace
}  // namespace memtide
