#include "daemon/engine/tables/session_table.h"

#include <chrono>
#include <vector>

#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr size_t kAllocate = 5, kFree = 10;

Instant At(int64_t seconds) { return Instant() + std::chrono::seconds(seconds); }

Limits SmallLimits() {
  Limits limits;
  limits.sessions = 3;
  limits.sessions_per_uid = 2;
  limits.remembered_replies_per_session = 2;
  limits.remembered_chunks_per_session = 5;
  limits.session_lease = std::chrono::seconds(60);
  return limits;
}

Reply ReplyWithId(uint64_t call) {
  Reply reply;
  reply.call = CallId(call);
  return reply;
}

class SessionTableTest : public testing::Test {
 protected:
  absl::Status Connect(uint64_t id, uint32_t uid, int64_t seconds = 1) {
    const absl::Status status = table_.Connect({SessionId(id), uid, 7}, At(seconds));
    table_.CheckInvariants();
    return status;
  }

  SessionTable table_{SmallLimits()};
};

// A budget of writes would be taken twice.
TEST_F(SessionTableTest, AGroupOfASessionIsThereOnce) {
  ClientConnected client{SessionId(1), 1000, 7};
  client.groups = {20, 10, 20};
  ASSERT_TRUE(table_.Connect(client, At(1)).ok());
  EXPECT_EQ(table_.Find(SessionId(1))->groups, std::vector<uint32_t>({10, 20}));
}

TEST_F(SessionTableTest, AUserHasItsLimitOfSessionsAndTheNodeToo) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  ASSERT_TRUE(Connect(2, 1000).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Connect(3, 1000)));
  ASSERT_TRUE(Connect(4, 1001).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Connect(5, 1002)));
  table_.Erase(SessionId(2));
  EXPECT_TRUE(Connect(6, 1000).ok()) << "the session that ended made room";
  EXPECT_EQ(table_.size(), 3u);
}

TEST_F(SessionTableTest, AnEndedSessionIsNotFoundAndMayNotCall) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  ASSERT_NE(table_.Find(SessionId(1)), nullptr);
  EXPECT_EQ(table_.Find(SessionId(1))->pid, 7);
  table_.Erase(SessionId(1));
  EXPECT_EQ(table_.Find(SessionId(1)), nullptr);
  EXPECT_TRUE(absl::IsUnauthenticated(table_.Calling(SessionId(1), At(2)).status()));
}

TEST_F(SessionTableTest, OnlyASessionWithAnOpenJobMayCall) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(table_.Calling(SessionId(1), At(2)).status()));
  Session* session = table_.Find(SessionId(1));
  int job = 0;
  session->job = reinterpret_cast<Job*>(&job);  // The table only compares it with nullptr.
  session->opening = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(table_.Calling(SessionId(1), At(2)).status()));
  session->opening = false;
  ASSERT_TRUE(table_.Calling(SessionId(1), At(2)).ok());
  EXPECT_EQ(*table_.Calling(SessionId(1), At(2)), session);
}

TEST_F(SessionTableTest, ASessionExpiresWhenItHasNotRenewedForItsLease) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  ASSERT_TRUE(Connect(2, 1000).ok());
  for (int64_t second = 1; second <= 61; ++second) {
    EXPECT_TRUE(table_.Tick(At(second)).empty()) << second;
    if (second == 30) table_.Renew(*table_.Find(SessionId(2)), At(second));
  }
  EXPECT_EQ(table_.Tick(At(62)), std::vector<SessionId>{SessionId(1)});
}

TEST_F(SessionTableTest, EvenARefusedCallRenewsTheSession) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  EXPECT_FALSE(table_.Calling(SessionId(1), At(50)).ok());
  for (int64_t second = 51; second <= 110; ++second) {
    EXPECT_TRUE(table_.Tick(At(second)).empty()) << second;
  }
}

TEST_F(SessionTableTest, ASessionThatWaitsForItsOpenDoesNotExpire) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  table_.Find(SessionId(1))->opening = true;
  EXPECT_TRUE(table_.Tick(At(1000)).empty());
}

TEST_F(SessionTableTest, TimeInWhichTheDaemonDidNotRunDoesNotCount) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  EXPECT_TRUE(table_.Tick(At(2)).empty());
  EXPECT_TRUE(table_.Tick(At(3600)).empty()) << "the daemon was stopped for an hour";
  for (int64_t second = 3601; second <= 3659; ++second) {
    EXPECT_TRUE(table_.Tick(At(second)).empty()) << second;
  }
  EXPECT_EQ(table_.Tick(At(3660)).size(), 1u);
}

TEST_F(SessionTableTest, ARepeatedCallGetsItsReplyAndAnotherKindOfCallAnError) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  Session& session = *table_.Find(SessionId(1));
  EXPECT_EQ(table_.Replayed(session, 5, kAllocate).value(), nullptr);
  table_.Remember(session, 5, kAllocate, ReplyWithId(77));
  const Reply* again = table_.Replayed(session, 5, kAllocate).value();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->call, CallId(77));
  EXPECT_TRUE(absl::IsInvalidArgument(table_.Replayed(session, 5, kFree).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(table_.Replayed(session, 0, kFree).status()));
}

TEST_F(SessionTableTest, TheOldestReplyIsForgottenBeyondTheLimit) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  Session& session = *table_.Find(SessionId(1));
  for (uint64_t id = 1; id <= 3; ++id) {
    table_.Remember(session, id, kFree, ReplyWithId(id));
    table_.CheckInvariants();
  }
  EXPECT_EQ(table_.Replayed(session, 1, kFree).value(), nullptr);
  EXPECT_NE(table_.Replayed(session, 2, kFree).value(), nullptr);
  EXPECT_NE(table_.Replayed(session, 3, kFree).value(), nullptr);
}

TEST_F(SessionTableTest, RepliesAreForgottenWhoseChunksAreTooManyAndAllAreCounted) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  ASSERT_TRUE(Connect(2, 1000).ok());
  Session& session = *table_.Find(SessionId(1));
  const auto allocated = [](size_t chunks) {
    Reply reply;
    reply.value = AllocateReply{std::vector<ChunkId>(chunks)};
    return reply;
  };
  table_.Remember(session, 1, kAllocate, allocated(3));
  table_.Remember(session, 2, kAllocate, allocated(2));
  table_.Remember(*table_.Find(SessionId(2)), 1, kAllocate, allocated(4));
  table_.CheckInvariants();
  EXPECT_EQ(table_.remembered_chunks(), 9u);
  EXPECT_NE(table_.Replayed(session, 1, kAllocate).value(), nullptr);
  table_.Remember(session, 3, kAllocate, allocated(1));
  EXPECT_EQ(table_.Replayed(session, 1, kAllocate).value(), nullptr);
  EXPECT_NE(table_.Replayed(session, 2, kAllocate).value(), nullptr);
  // The last reply is kept whatever its size.
  table_.Remember(session, 4, kAllocate, allocated(6));
  EXPECT_EQ(table_.Replayed(session, 3, kAllocate).value(), nullptr);
  EXPECT_NE(table_.Replayed(session, 4, kAllocate).value(), nullptr);
  table_.CheckInvariants();
  EXPECT_EQ(table_.remembered_chunks(), 10u);
  table_.Erase(SessionId(1));
  table_.CheckInvariants();
  EXPECT_EQ(table_.remembered_chunks(), 4u);
}

TEST_F(SessionTableTest, AReplyIsFoundThoughALaterCallHadASmallerId) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  Session& session = *table_.Find(SessionId(1));
  table_.Remember(session, 9, kFree, ReplyWithId(1));
  table_.Remember(session, 4, kFree, ReplyWithId(2));
  table_.CheckInvariants();
  EXPECT_NE(table_.Replayed(session, 9, kFree).value(), nullptr);
  EXPECT_NE(table_.Replayed(session, 4, kFree).value(), nullptr);
  EXPECT_EQ(table_.Replayed(session, 10, kFree).value(), nullptr);
}

TEST_F(SessionTableTest, SessionsRememberTheirOwnRepliesOnly) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  ASSERT_TRUE(Connect(2, 1000).ok());
  table_.Remember(*table_.Find(SessionId(1)), 5, kFree, ReplyWithId(1));
  EXPECT_EQ(table_.Replayed(*table_.Find(SessionId(2)), 5, kFree).value(), nullptr);
}

TEST(LeftBehindTest, AnEntryIsFoundByItsIdsAndAnIdHasOne) {
  LeftBehind left;
  left.Add(ChunkId(1), ChunkIndex(7));
  left.Add(ChunkId(2), ChunkIndex(7));
  left.Add(ChunkId(3), ChunkIndex(8));
  EXPECT_EQ(left.IdOf(ChunkIndex(7)), ChunkId(1));
  left.Remove(ChunkId(1));
  EXPECT_EQ(left.IdOf(ChunkIndex(7)), ChunkId(2)) << "another lease is on the entry";
  left.Add(ChunkId(2), ChunkIndex(9));
  EXPECT_EQ(left.EntryOf(ChunkId(2)), ChunkIndex(9));
  EXPECT_EQ(left.IdOf(ChunkIndex(7)), absl::nullopt) << "the id has left it";
  left.Remove(ChunkId(4));
  EXPECT_FALSE(left.Has(ChunkId(1)));
  EXPECT_EQ(left.EntryOf(ChunkId(1)), absl::nullopt);
}

using SessionTableDeathTest = SessionTableTest;

TEST_F(SessionTableDeathTest, WhatOnlyTheEngineCanGetWrongEndsTheProcess) {
  ASSERT_TRUE(Connect(1, 1000).ok());
  EXPECT_DEATH(Connect(1, 1000).IgnoreError(), "connected twice");
  EXPECT_DEATH(table_.Erase(SessionId(2)), "no session 2");
  const Count::Token lease = table_.Find(SessionId(1))->leases.Take();
  EXPECT_DEATH(table_.Erase(SessionId(1)), "still uses its job");
  EXPECT_DEATH(table_.CheckInvariants(), "leases of no job");
  EXPECT_DEATH(table_.Remember(*table_.Find(SessionId(1)), 0, kFree, Reply()), "request_id");
}

}  // namespace
}  // namespace memtide
