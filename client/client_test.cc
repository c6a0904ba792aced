// The calls and page faults of a client, in one thread.
#include "client/client.h"

#include <gtest/gtest.h>
#include <string.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "client/lease/lease_client.h"
#include "client/testing/client_fixture.h"

namespace memtide::client {
namespace {

TEST_F(ClientTest, NewChunksReadAsZeros) {
  Open(4, 3);
  const PlaceRange range = Allocate(8);
  for (uint32_t i = 0; i < range.count; ++i) {
    for (size_t word = 0; word < kChunkBytes / 8; word += 512) {
      ASSERT_EQ(Words(Nth(range, i))[word], 0u);
    }
  }
  EXPECT_EQ(stats().faults, 8u);
}

TEST_F(ClientTest, UndefinedChunksKeepWhatIsWrittenFirst) {
  Open(2, 1);
  const PlaceRange range = Allocate(3, InitialContent::kUndefined);
  EXPECT_NE(Words(PlaceId(range.first.value() + 2))[1], 0u)
      << "the fake session scrambles undefined chunks";
  for (uint32_t i = 0; i < 3; ++i) Words(PlaceId(range.first.value() + i))[1] = 100 + i;
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(Words(PlaceId(range.first.value() + i))[1], 100 + i);
}

TEST_F(ClientTest, ADiscardEndsIdleLeasesAndKeepsTheChunks) {
  Open(4, 3);
  const PlaceRange range = Allocate(4);
  const auto ids = client_->leases()->ChunkIds(range);
  Words(Nth(range, 0))[0] = Words(Nth(range, 1))[0] = 5;
  EXPECT_EQ(session_->counts().leases, 2u);
  const std::vector<PlaceId> places = range.places();
  ASSERT_TRUE(client_->leases()->Discard(places).ok());
  EXPECT_EQ(session_->counts().leases, 0u);
  EXPECT_EQ(session_->counts().discards, 1u);
  EXPECT_EQ(stats().leases_held, 0u);
  EXPECT_EQ(*client_->leases()->ChunkIds(range), *ids);
  EXPECT_NE(Words(Nth(range, 0))[0], 5u) << "the fake session scrambles what is discarded";
  Words(Nth(range, 0))[0] = 6;
  ASSERT_TRUE(client_->leases()->Flush().ok());
  EXPECT_EQ(Words(Nth(range, 0))[0], 6u);
}

TEST_F(ClientTest, AnOfferEndsIdleLeasesThatAreInItsWayAndNoOthers) {
  Open(4, 3);
  const PlaceRange range = Allocate(3);
  Words(Nth(range, 0))[0] = 5;
  ASSERT_TRUE(client_->leases()->Acquire({Nth(range, 1)}, Access::kRead).ok());
  EXPECT_EQ(session_->counts().leases, 2u);
  absl::StatusOr<std::vector<size_t>> shared = client_->leases()->Offer(range.places());
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(*shared, (std::vector<size_t>{2, 0})) << "one is in use";
  EXPECT_EQ(session_->counts().leases, 1u);
  EXPECT_EQ(Words(Nth(range, 0))[0], 5u);
  ASSERT_TRUE(client_->leases()->EndUse({Nth(range, 1)}).ok());
  EXPECT_EQ(client_->leases()->Offer(range.places())->size(), 3u);
  EXPECT_TRUE(client_->leases()->Offer({})->empty());
  EXPECT_TRUE(absl::IsNotFound(client_->leases()->Offer({PlaceId(9)}).status()));
}

TEST_F(ClientTest, DuplicatesAreBoundInOrderAndIdleLeasesEndFirst) {
  Open(8, 6);
  const PlaceRange range = Allocate(2);
  Words(Nth(range, 0))[0] = 5;
  Words(Nth(range, 1))[0] = 6;
  const absl::StatusOr<PlaceRange> made = client_->leases()->Duplicate(range.places(), 2);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->count, 4u);
  for (const uint32_t i : {0, 1, 2, 3}) EXPECT_EQ(Words(Nth(*made, i))[0], 5u + i % 2);
  Words(Nth(*made, 1))[0] = 7;
  EXPECT_EQ(Words(Nth(range, 1))[0], 6u);
  EXPECT_TRUE(absl::IsInvalidArgument(client_->leases()->Duplicate(range.places(), 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->leases()->Duplicate({}, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(client_->leases()->Duplicate({PlaceId(19)}, 1).status()));
  const uint64_t calls = stats().calls;
  EXPECT_TRUE(
      absl::IsResourceExhausted(client_->leases()->Duplicate(range.places(), 1 << 20).status()));
  EXPECT_LE(stats().calls, calls + 2) << "only chunks in use are tried again";
}

// The daemon gives a chunk that leaves what it has in common another place.
TEST_F(ClientTest, AWriteToADuplicateThatIsReadGoesWhereItsLeaseIs) {
  Open(8, 6);
  const PlaceRange range = Allocate(1);
  Words(range.first)[0] = 5;
  const absl::StatusOr<PlaceRange> made = client_->leases()->Duplicate(range.places(), 1);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE(client_->leases()->Acquire({made->first}, Access::kRead).ok());
  EXPECT_EQ(Words(made->first)[0], 5u);
  ASSERT_TRUE(client_->leases()->Acquire({made->first}, Access::kWrite).ok());
  EXPECT_EQ(Words(made->first)[0], 5u);
  Words(made->first)[0] = 6;
  ASSERT_TRUE(client_->leases()->EndUse({made->first}).ok());
  ASSERT_TRUE(client_->leases()->EndUse({made->first}).ok());
  ASSERT_TRUE(client_->leases()->Flush().ok());
  EXPECT_EQ(Words(made->first)[0], 6u);
  EXPECT_EQ(Words(range.first)[0], 5u);
}

TEST_F(ClientTest, AnOfferThatRepeatsEndsIdleLeasesOnce) {
  Open(4, 3);
  const PlaceRange range = Allocate(3);
  Words(Nth(range, 0))[0] = 5;
  ASSERT_TRUE(client_->leases()->Acquire({Nth(range, 1)}, Access::kRead).ok());
  ASSERT_TRUE(client_->leases()->OfferWhenWritten(range.places()).ok());
  EXPECT_EQ(session_->counts().leases, 1u) << "one is in use";
  EXPECT_EQ(Words(Nth(range, 0))[0], 5u);
  EXPECT_TRUE(client_->leases()->OfferWhenWritten({}).ok());
  EXPECT_TRUE(absl::IsNotFound(client_->leases()->OfferWhenWritten({PlaceId(9)})));
  ASSERT_TRUE(client_->leases()->EndUse({Nth(range, 1)}).ok());
}

TEST_F(ClientTest, ADiscardOfChunksInUseOrOfNoneIsRefusedAsAWhole) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  ASSERT_TRUE(client_->leases()->Acquire({Nth(range, 1)}, Access::kWrite).ok());
  Words(Nth(range, 1))[0] = 5;
  EXPECT_TRUE(absl::IsFailedPrecondition(client_->leases()->Discard(range.places())));
  EXPECT_TRUE(absl::IsNotFound(client_->leases()->Discard({PlaceId(9)})));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->leases()->Discard({range.first, range.first})));
  EXPECT_EQ(session_->counts().discards, 0u);
  ASSERT_TRUE(client_->leases()->EndUse({Nth(range, 1)}).ok());
  EXPECT_EQ(Words(Nth(range, 1))[0], 5u);
}

TEST_F(ClientTest, FaultedChunksKeepTheirBytesThroughEviction) {
  Open(4, 3);
  const PlaceRange range = Allocate(16);
  for (uint32_t i = 0; i < 16; ++i) memset(Words(Nth(range, i)), int(i + 1), kChunkBytes);
  for (uint32_t i = 0; i < 16; ++i) {
    const char* bytes = client_->address(Nth(range, i));
    for (size_t at = 0; at < kChunkBytes; at += 4096) ASSERT_EQ(bytes[at], char(i + 1)) << i;
    ASSERT_EQ(bytes[kChunkBytes - 1], char(i + 1));
  }
  EXPECT_GE(session_->counts().evictions, 12u);
  EXPECT_LE(stats().leases_held, 3u);
}

TEST_F(ClientTest, AFaultedChunkStaysMappedAsLongAsItsFetchTook) {
  constexpr Duration kDelay = std::chrono::milliseconds(80);
  static_assert(kDelay < LeaseMonitor::kMaxMinResidency);
  Open(4, 3);
  const PlaceRange range = Allocate(4);
  session_->DelayFetches(kDelay);
  const Instant start = Now();
  Words(Nth(range, 0))[0] = 1;
  session_->DelayFetches(Duration(0));
  Words(Nth(range, 1))[0] = 1;
  Words(Nth(range, 2))[0] = 1;
  session_->WaitForLeases(2);  // The budget is used up, so the oldest lease is reclaimed.
  EXPECT_GE(Now() - start, 2 * kDelay);
}

// A fetch that may wait sends the oldest lease back only then; one that may not gives it up at
// once.
TEST_F(ClientTest, ACallWaitsForAMappedChunkUnlessItMayNot) {
  constexpr Duration kDelay = std::chrono::milliseconds(80);
  for (const bool waits : {true, false}) {
    Open(4, 3);
    const PlaceRange range = Allocate(4);
    session_->DelayFetches(kDelay);
    const Instant start = Now();
    Words(Nth(range, 0))[0] = 1;
    session_->DelayFetches(Duration(0));
    const std::vector<PlaceId> others = {Nth(range, 1), Nth(range, 2), Nth(range, 3)};
    const absl::optional<Duration> deadline =
        waits ? absl::nullopt : absl::optional<Duration>(Duration::zero());
    ASSERT_TRUE(client_->leases()->Acquire(others, Access::kRead, deadline).ok());
    EXPECT_EQ(Now() - start >= 2 * kDelay, waits);
  }
}

TEST_F(ClientTest, AWriteToAReadLeaseUpgradesIt) {
  Open(4, 3);
  const PlaceRange range = Allocate(4);
  ASSERT_TRUE(client_->leases()->Acquire({range.first}, Access::kRead).ok());
  Words(range.first)[7] = 42;
  EXPECT_EQ(stats().upgrades, 1u);
  ASSERT_TRUE(client_->leases()->EndUse({range.first}).ok());
  ASSERT_TRUE(client_->leases()->Flush().ok());
  EXPECT_EQ(Words(range.first)[7], 42u);
}

TEST_F(ClientTest, AcquiringHeldLeasesMakesNoCall) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  ASSERT_TRUE(client_->leases()->Acquire({range.first}, Access::kWrite).ok());
  ASSERT_TRUE(client_->leases()->EndUse({range.first}).ok());
  const uint64_t calls = stats().calls;
  ASSERT_TRUE(client_->leases()->Acquire({range.first}, Access::kRead).ok());
  EXPECT_EQ(stats().calls, calls);
  EXPECT_EQ(stats().acquire_hits, 1u);
  ASSERT_TRUE(client_->leases()->EndUse({range.first}).ok());
}

TEST_F(ClientTest, UsesTravelWithTheNextFetchHitsIncluded) {
  Open(4, 3);
  const PlaceRange range = Allocate(3);
  const auto use = [&](uint32_t n, Access access) {
    ASSERT_TRUE(client_->Use({Nth(range, n)}, access).ok());
  };
  const auto begin = [&](const std::string& name) {
    Moment moment;
    moment.name = name;
    client_->leases()->BeginMoment(moment);
  };
  use(0, Access::kRead);  // Before the first moment: not recorded.
  begin("one");
  use(0, Access::kRead);
  begin("two");
  use(0, Access::kRead);
  EXPECT_TRUE(session_->moments().empty());
  use(1, Access::kWrite);
  client_->leases()->monitor().EndIteration();
  ASSERT_EQ(session_->moments().size(), 2u);
  EXPECT_EQ(session_->moments()[0].name, "one");
  EXPECT_EQ(session_->moments()[1].uses.size(), 2u);
  EXPECT_EQ(session_->moments()[1].uses[1].access, Access::kWrite);
  use(2, Access::kRead);
  ASSERT_EQ(session_->moments().size(), 4u);
  EXPECT_TRUE(session_->moments()[2].ends_iteration);
}

TEST_F(ClientTest, ManyMomentsWithoutAFetchAreReported) {
  Open(4, 3);
  const PlaceRange range = Allocate(1);
  for (size_t i = 0; i <= AccessLog::kReportAfter + 1; ++i) {
    client_->leases()->BeginMoment(Moment());
    ASSERT_TRUE(client_->Use({range.first}, Access::kRead).ok());
  }
  session_->AwaitMoments(AccessLog::kReportAfter + 1);
  session_->EndSession(absl::UnavailableError("the memtide daemon ended"));
  const uint64_t calls = stats().calls;
  for (size_t i = 0; i <= AccessLog::kReportAfter; ++i) client_->leases()->BeginMoment(Moment());
  EXPECT_EQ(stats().calls, calls) << "a moment was reported to a daemon that ended";
}

TEST_F(ClientTest, MoreThanTheBudgetIsRefusedWithAdvice) {
  Open(4, 3);
  const PlaceRange range = Allocate(4);
  const absl::Status status = client_->leases()->Acquire(
      {Nth(range, 0), Nth(range, 1), Nth(range, 2), Nth(range, 3)}, Access::kRead);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(std::string(status.message()).find("lease_budget"), std::string::npos);
}

TEST_F(ClientTest, FreeingAChunkInUseIsRefused) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  {
    auto use = client_->Use({range.first}, Access::kWrite);
    ASSERT_TRUE(use.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(client_->leases()->Free(range)));
  }
  EXPECT_TRUE(client_->leases()->Free(range).ok());
  EXPECT_EQ(session_->counts().leases, 0u);
  EXPECT_EQ(stats().chunks, 0u);
}

TEST_F(ClientTest, FreedPlacesAreUsedAgainAndReadAsZeros) {
  Open(4, 3);
  const PlaceRange first = Allocate(3);
  memset(Words(first.first), 0xFF, kChunkBytes);
  ASSERT_TRUE(client_->leases()->Free(first).ok());
  const PlaceRange second = Allocate(3);
  EXPECT_EQ(second.first, first.first);
  EXPECT_EQ(Words(second.first)[100], 0u);
}

TEST_F(ClientTest, ARefusedFetchLeavesNothingLeased) {
  Open(4, 2);
  const PlaceRange range = Allocate(4);
  ASSERT_TRUE(client_->leases()->Acquire({Nth(range, 0), Nth(range, 1)}, Access::kWrite).ok());
  ASSERT_TRUE(client_->leases()->EndUse({Nth(range, 0), Nth(range, 1)}).ok());
  session_->FailNextFetch(absl::DataLossError("the disk is gone"));
  EXPECT_TRUE(
      absl::IsDataLoss(client_->leases()->Acquire({Nth(range, 2), Nth(range, 3)}, Access::kRead)));
  EXPECT_EQ(session_->counts().leases, stats().leases_held);
  EXPECT_TRUE(client_->leases()->Acquire({Nth(range, 2), Nth(range, 3)}, Access::kRead).ok());
}

TEST_F(ClientTest, RevokedLeasesAreGivenBackAsUsesEnd) {
  Open(6, 5);
  const PlaceRange range = Allocate(4);
  const std::vector<PlaceId> all = {Nth(range, 0), Nth(range, 1), Nth(range, 2), Nth(range, 3)};
  ASSERT_TRUE(client_->leases()->Acquire(all, Access::kWrite).ok());
  ASSERT_TRUE(client_->leases()->EndUse({all[0], all[1]}).ok());
  session_->Revoke({{}, 3});
  session_->WaitForLeases(2);
  ASSERT_TRUE(client_->leases()->EndUse({all[2], all[3]}).ok());
  session_->WaitForLeases(1);
}

TEST_F(ClientTest, EvictSkipsWhatIsInUse) {
  Open(6, 5);
  const PlaceRange range = Allocate(2);
  Words(Nth(range, 0))[0] = 1;
  ASSERT_TRUE(client_->leases()->Acquire({Nth(range, 1)}, Access::kWrite).ok());
  ASSERT_TRUE(client_->leases()->Evict({Nth(range, 0), Nth(range, 1)}).ok());
  EXPECT_EQ(session_->counts().leases, 1u);
  EXPECT_EQ(session_->counts().evictions, 1u);
  EXPECT_EQ(Words(Nth(range, 0))[0], 1u);
}

TEST_F(ClientTest, NoWaitIsRefusedWhenAllSlotsAreLeased) {
  Open(4, 3);
  const PlaceRange range = Allocate(6);
  ASSERT_TRUE(client_->leases()->Acquire({Nth(range, 0), Nth(range, 1)}, Access::kRead).ok());
  ASSERT_TRUE(client_->leases()->Acquire({Nth(range, 2), Nth(range, 3)}, Access::kRead).ok());
  EXPECT_TRUE(absl::IsUnavailable(
      client_->leases()->Acquire({Nth(range, 4)}, Access::kRead, Duration::zero())));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      client_->leases()->Acquire({Nth(range, 4)}, Access::kRead, std::chrono::milliseconds(10))));
}

TEST_F(ClientTest, CallsFailAfterTheSessionIsLostAndMappedBytesStay) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  Words(range.first)[0] = 77;
  session_->EndSession(absl::UnavailableError("the memtide daemon ended"));
  EXPECT_TRUE(absl::IsUnavailable(client_->leases()->Acquire({Nth(range, 1)}, Access::kRead)));
  EXPECT_TRUE(absl::IsUnavailable(client_->leases()->Allocate(1, ChunkKind::kOther).status()));
  EXPECT_EQ(Words(range.first)[0], 77u);
}

TEST_F(ClientTest, ARegionThatIsGoneIsReturnedAndTheBudgetShrinks) {
  Open(8, 6);
  session_->LendRegion(RegionId(7));
  const PlaceRange range = Allocate(6);
  for (uint32_t i = 0; i < 6; ++i) Words(Nth(range, i))[0] = i;
  session_->EndRegion(RegionId(7), {4, 2});
  session_->WaitForReturn(RegionId(7));
  EXPECT_EQ(stats().slots, 4u);
  const auto three = {Nth(range, 0), Nth(range, 1), Nth(range, 2)};
  EXPECT_EQ(client_->leases()->Acquire(three, Access::kRead).code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(client_->leases()->Acquire({Nth(range, 0), Nth(range, 1)}, Access::kRead).ok());
  EXPECT_EQ(Words(Nth(range, 1))[0], 1u);
}

TEST_F(ClientTest, ASmallerBudgetSendsIdleLeasesBackAndRefusesNothing) {
  Open(8, 6);
  EXPECT_EQ(stats().slots, 8u);
  const PlaceRange range = Allocate(8);
  for (uint32_t i = 0; i < 8; ++i) Words(Nth(range, i))[0] = i;
  session_->ChangeLeaseBudget({4, 3});
  EXPECT_EQ(stats().lease_budget, 3u);
  EXPECT_EQ(stats().slots, 4u);
  while (session_->counts().leases > 3) std::this_thread::yield();
  std::vector<PlaceId> six;
  for (uint32_t i = 0; i < 6; ++i) six.push_back(Nth(range, i));
  ASSERT_TRUE(client_->leases()->Acquire(six, Access::kRead).ok());
  EXPECT_EQ(session_->counts().leases, 6u);
  EXPECT_EQ(Words(Nth(range, 5))[0], 5u);
  ASSERT_TRUE(client_->leases()->EndUse(six).ok());
  while (session_->counts().leases > 3) std::this_thread::yield();
  session_->ChangeLeaseBudget({101, 100});
  EXPECT_EQ(stats().lease_budget, 6u) << "the soft budget does not exceed that of Open";
}

TEST_F(ClientTest, StepsAndCommitsReleaseIdleLeases) {
  Open(4, 3);
  const PlaceRange range = Allocate(3);
  *Words(Nth(range, 0)) = 5;
  *Words(Nth(range, 1)) = 6;
  OwnPart part;
  part.places = {Nth(range, 0), Nth(range, 2)};
  part.reads = 1;
  const absl::StatusOr<StartedPart> started = client_->leases()->StartPart(&part);
  ASSERT_TRUE(started.ok()) << started.status();
  memcpy(started->addresses[1], started->addresses[0], sizeof(uint64_t));
  ASSERT_TRUE(client_->leases()->EndPart(part.id, {/*computed=*/true}).ok());
  EXPECT_EQ(stats().leases_held, 1u);
  CommitRequest commit;
  commit.committed = {1, "one"};
  ASSERT_TRUE(client_->leases()->Commit(commit, {Nth(range, 1)}, {Nth(range, 2)}).ok());
  EXPECT_EQ(client_->leases()->committed().step, 1u);
  EXPECT_EQ(client_->leases()->committed().manifest, "one");
  EXPECT_EQ(*Words(Nth(range, 1)), 5u);
  EXPECT_EQ(*Words(Nth(range, 0)), 5u);
}

TEST_F(ClientTest, CommitWaitsForChunksInUse) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  ASSERT_TRUE(client_->leases()->Acquire({range.first}, Access::kRead).ok());
  std::thread user([this, &range] {
    session_->WaitForAbortedCommit();
    ASSERT_TRUE(client_->leases()->EndUse({range.first}).ok());
  });
  EXPECT_TRUE(client_->leases()->Commit({}, {Nth(range, 0)}, {Nth(range, 1)}).ok());
  user.join();
}

TEST_F(ClientTest, VersionsCountWriteLeases) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  const std::vector<PlaceId> places = {Nth(range, 1), Nth(range, 0)};
  const auto before = client_->leases()->Versions(places);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ((*before)[1].chunk, client_->leases()->ChunkIds(range)->front());
  ASSERT_TRUE(client_->leases()->Acquire({places[0]}, Access::kRead).ok());
  ASSERT_TRUE(client_->leases()->Acquire({places[1]}, Access::kWrite).ok());
  const auto after = client_->leases()->Versions(places);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ((*after)[0].version, (*before)[0].version);
  EXPECT_GT((*after)[1].version, (*before)[1].version);
  EXPECT_EQ(client_->leases()->Versions({PlaceId(50)}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ClientTest, ACommitSeesAWriteSinceItsVersionsWereRead) {
  Open(4, 3);
  const PlaceRange range = Allocate(4);
  CommitRequest commit;
  const auto read_versions = [&](uint32_t place) {
    commit.unwritten = client_->leases()->Versions({Nth(range, place)}).value();
  };
  const auto commit_one = [&](uint32_t place, uint64_t step) {
    commit.committed.step = step;
    return client_->leases()->Commit(commit, {Nth(range, place)}, {Nth(range, 3)});
  };
  const auto use = [&](uint32_t place, Access access) {
    ASSERT_TRUE(client_->leases()->Acquire({Nth(range, place)}, access).ok());
    ASSERT_TRUE(client_->leases()->EndUse({Nth(range, place)}).ok());
  };
  read_versions(0);
  use(0, Access::kRead);
  use(2, Access::kWrite);  // It is no part of the commit.
  EXPECT_TRUE(commit_one(0, 1).ok());
  EXPECT_EQ(commit_one(1, 2).code(), absl::StatusCode::kAborted) << "the version of another chunk";
  read_versions(1);
  use(1, Access::kWrite);
  EXPECT_EQ(commit_one(1, 2).code(), absl::StatusCode::kAborted);
  read_versions(1);
  use(1, Access::kRead);
  use(1, Access::kWrite);  // The lease for reading becomes one for writing.
  EXPECT_EQ(commit_one(1, 2).code(), absl::StatusCode::kAborted);
  commit.unwritten.clear();
  EXPECT_TRUE(commit_one(1, 2).ok());
}

TEST_F(ClientTest, ChunksAreAttachedByName) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  const auto ids = client_->leases()->ChunkIds(range);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(client_->leases()->ChunkIds({PlaceId(50), 1}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(client_->leases()->ChunkIds({PlaceId(UINT32_MAX), 2}).ok());
  EXPECT_FALSE(client_->leases()->Attach({}).ok());
  EXPECT_FALSE(client_->leases()->Attach({(*ids)[1]}).ok()) << "the chunk is bound";
  // As if by another session.
  const auto others =
      session_->Allocate(2, ChunkKind::kOther, InitialContent::kZeros, HomeTier::kLowest);
  ASSERT_TRUE(others.ok());
  EXPECT_FALSE(client_->leases()->Attach({(*others)[0], (*others)[0]}).ok());
  const auto attached = client_->leases()->Attach(*others);
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(*client_->leases()->ChunkIds(*attached), *others);
  *Words(Nth(*attached, 1)) = 7;
  ASSERT_TRUE(client_->leases()->Flush().ok());
  EXPECT_EQ(*Words(Nth(*attached, 1)), 7u);
}

TEST_F(ClientTest, OnlySpansOfItsOwnRangeAreWrapped) {
  Open(4, 3);
  const auto base = reinterpret_cast<uint64_t>(client_->properties().base);
  const uint64_t size = client_->properties().places * kChunkBytes;
  for (const uint64_t bytes : {size, size / 2}) {
    void* const wrapped = client_->Wrap({base, bytes}).value();
    // The deleter is DLManagedTensor's last field.
    reinterpret_cast<void (**)(void*)>(wrapped)[7](wrapped);
  }
  // Spans for which the caller has no room come with the next call.
  std::array<Span, 2> returned = {};
  EXPECT_EQ(client_->TakeReturned(returned.data(), 1), 1u);
  EXPECT_EQ(returned[0].size_bytes, size);
  EXPECT_EQ(client_->TakeReturned(returned.data(), 2), 1u);
  EXPECT_EQ(returned[0].size_bytes, size / 2);
  for (const Span& span : {Span{base - 1, 1}, Span{base, size + 1}, Span{base + size, 1},
                           Span{base + 8, UINT64_MAX}, Span{0, 8}}) {
    EXPECT_EQ(client_->Wrap(span).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace memtide::client
