// Leases that a thread of the client's takes before the program asks.
#include <gtest/gtest.h>

#include <chrono>

#include "client/lease/lease_client.h"
#include "client/testing/client_fixture.h"

namespace memtide::client {
namespace {

TEST_F(ClientTest, WhatIsThereIsLeasedBeforeTheProgramAsks) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  const auto chunks = client_->leases()->ChunkIds(range);
  ASSERT_TRUE(chunks.ok());
  session_->SetAhead({{}, {(*chunks)[1]}});
  ASSERT_TRUE(client_->Use({Nth(range, 0)}, Access::kRead).ok());
  while (stats().leases_held < 2)
    client_->leases()->monitor().AwaitChange(std::chrono::milliseconds(10));
  const uint64_t blocking = stats().blocking_calls;
  ASSERT_TRUE(client_->Use({Nth(range, 1)}, Access::kWrite).ok());
  EXPECT_EQ(stats().blocking_calls, blocking);
  EXPECT_GT(stats().calls, blocking);
}

TEST_F(ClientTest, AFlushEndsTheLeaseThatIsBeingTakenAhead) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  const auto chunks = client_->leases()->ChunkIds(range);
  ASSERT_TRUE(chunks.ok());
  session_->SetAhead({{}, {(*chunks)[1]}});
  session_->DelayFetches(std::chrono::milliseconds(50));
  ASSERT_TRUE(client_->Use({Nth(range, 0)}, Access::kRead).ok());
  client_->leases()->monitor().AwaitChange(std::chrono::milliseconds(20));
  ASSERT_TRUE(client_->leases()->Flush().ok());
  EXPECT_EQ(stats().leases_held, 0u);
  client_->leases()->monitor().AwaitChange(std::chrono::milliseconds(100));
  EXPECT_EQ(stats().leases_held, 0u);
}

}  // namespace
}  // namespace memtide::client
