#include "daemon/service/open_calls.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <vector>

namespace memtide {
namespace {

constexpr size_t kMax = size_t{8} << 20;

// Two ends of a connection.
class Connection {
 public:
  explicit Connection(uint32_t uid) : uid_(uid) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds_), 0);
  }
  ~Connection() {
    close(fds_[0]);
    close(fds_[1]);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  OpenCalls::Caller caller() const { return {uid_, fds_[0]}; }
  bool is_closed() const {
    pollfd watched = {fds_[1], POLLIN, 0};
    char byte;
    return poll(&watched, 1, 0) == 1 && recv(fds_[1], &byte, 1, 0) == 0;
  }

 private:
  const uint32_t uid_;
  int fds_[2];
};

class OpenCallsTest : public testing::Test {
 protected:
  // A call that stays open.
  absl::Status Call(const Connection& connection, size_t reply_bytes = 0) {
    open_.push_back(std::make_unique<OpenCalls::Charge>());
    return calls_.Begin(connection.caller(), reply_bytes, open_.back().get());
  }

  OpenCalls calls_{kMax};
  std::vector<std::unique_ptr<OpenCalls::Charge>> open_;
};

TEST_F(OpenCallsTest, OneUserHasHalfAndLeavesOthersSomething) {
  const Connection connection(1000), other(1001);
  size_t taken = 0;
  while (Call(connection).ok()) ++taken;
  EXPECT_EQ(taken, kMax / 2 / OpenCalls::kCallBytes);
  EXPECT_EQ(Call(connection).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(connection.is_closed());
  size_t taken_of_other = 0;
  while (Call(other).ok()) ++taken_of_other;
  EXPECT_GE(taken_of_other * OpenCalls::kCallBytes, kMax / 5);
  open_.clear();
  EXPECT_TRUE(Call(connection).ok()) << "what has ended is not charged";
}

TEST_F(OpenCallsTest, AReplyIsChargedUntilItsCallEnds) {
  const Connection connection(1000);
  ASSERT_TRUE(Call(connection).ok());
  open_.back()->SetReply(kMax / 2);
  const absl::Status status = Call(connection);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("uid 1000 has 4210688 bytes"), std::string::npos) << status;
  open_.clear();
  EXPECT_TRUE(Call(connection).ok());
}

TEST_F(OpenCallsTest, WhatIsReservedForAReplyCountsUntilItIsKnown) {
  const Connection connection(1000);
  constexpr size_t kReply = 1 << 20;
  size_t taken = 0;
  while (Call(connection, kReply).ok()) ++taken;
  EXPECT_EQ(taken, 3u) << "with its reply, a fourth would have more than half";
  EXPECT_TRUE(Call(connection).ok()) << "nothing is reserved for what is refused";
  for (size_t i = 0; i < taken; ++i) open_[i]->SetReply(1);
  EXPECT_TRUE(Call(connection, kReply).ok());
}

TEST_F(OpenCallsTest, WhoGoesOnIsDisconnected) {
  const Connection connection(1000), other(1001);
  ASSERT_TRUE(Call(other).ok());
  const size_t most = kMax / OpenCalls::kCallBytes;
  size_t calls = 0;
  for (; calls < most && !connection.is_closed(); ++calls) Call(connection).IgnoreError();
  EXPECT_LT(calls, most * 3 / 4) << "all memory";
  EXPECT_GT(calls, most / 2) << "refused before it is disconnected";
  EXPECT_FALSE(other.is_closed());
}

TEST_F(OpenCallsTest, AUserWithFewCallsIsServedWhateverOthersHave) {
  std::vector<std::unique_ptr<Connection>> others;
  for (uint32_t uid = 0; uid < 3; ++uid) {
    others.push_back(std::make_unique<Connection>(uid));
    ASSERT_TRUE(Call(*others.back()).ok());
  }
  // Replies to calls that have waited.
  for (const auto& charge : open_) charge->SetReply(kMax);
  const Connection connection(1000);
  for (size_t i = 0; i < OpenCalls::kAlwaysLeft / OpenCalls::kCallBytes; ++i) {
    EXPECT_TRUE(Call(connection).ok()) << i;
  }
  EXPECT_FALSE(Call(connection).ok());
  EXPECT_FALSE(connection.is_closed());
  EXPECT_TRUE(Call(Connection(1001), /*reply_bytes=*/1 << 20).ok()) << "a listing";
}

TEST_F(OpenCallsTest, ATraceThatIsNotReadMakesRoomForAnother) {
  const Connection slow(1000), next(1001);
  const Instant start{};
  for (size_t i = 0; i < OpenCalls::kMaxTraces; ++i) {
    ASSERT_TRUE(Call(slow).ok());
    ASSERT_TRUE(calls_.BeginTrace(*open_.back(), start).ok());
  }
  ASSERT_TRUE(Call(next).ok());
  const absl::Status full = calls_.BeginTrace(*open_.back(), start + std::chrono::seconds(9));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "max_traces: the node sends 2 traces already; try again soon");
  EXPECT_FALSE(slow.is_closed());
  const Instant later = start + OpenCalls::kTracePatience;
  EXPECT_FALSE(calls_.BeginTrace(*open_.back(), later).ok());
  EXPECT_TRUE(slow.is_closed());
  EXPECT_FALSE(next.is_closed());
  open_.erase(open_.begin(), open_.begin() + OpenCalls::kMaxTraces);
  EXPECT_TRUE(calls_.BeginTrace(*open_.back(), later).ok());
}

}  // namespace
}  // namespace memtide
