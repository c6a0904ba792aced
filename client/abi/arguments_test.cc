// Calls of the C interface that are refused before anything is done: the message names the argument
// that is wrong.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "client/memtide.h"
#include "client/testing/client_fixture.h"

namespace memtide::client {
namespace {

std::string Refusal(int code) {
  EXPECT_EQ(code, MEMTIDE_INVALID_ARGUMENT);
  return memtide_last_error();
}

TEST(ArgumentsTest, ANullOfACallToTheNodeIsNamed) {
  char* text = nullptr;
  EXPECT_EQ(Refusal(memtide_call_admin("/", nullptr, "", &text)), "method is NULL");
  EXPECT_EQ(Refusal(memtide_call_admin("/", "Drain", nullptr, &text)), "request is NULL");
  EXPECT_EQ(Refusal(memtide_call_admin("/", "Drain", "", nullptr)), "reply is NULL");
  EXPECT_EQ(Refusal(memtide_get_metrics("/", nullptr)), "text is NULL");
  size_t bytes = 0;
  EXPECT_EQ(Refusal(memtide_get_trace("/", 1, nullptr, &bytes)), "trace is NULL");
  EXPECT_EQ(Refusal(memtide_get_trace("/", 1, &text, nullptr)), "bytes is NULL");
}

TEST(ArgumentsTest, AnInspectionAsksTheDaemonOfTheDirectory) {
  char* json = nullptr;
  EXPECT_EQ(memtide_inspect_node("/nonexistent", 1, 0, &json), MEMTIDE_UNAVAILABLE);
  EXPECT_NE(std::string(memtide_last_error()).find("/nonexistent/grpc.sock"), std::string::npos);
  EXPECT_EQ(json, nullptr);
  EXPECT_EQ(memtide_call_admin("/nonexistent", "Drain", "{}", &json), MEMTIDE_UNAVAILABLE);
}

TEST(ArgumentsTest, ANullOfACallForATraceIsNamed) {
  char* text = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(Refusal(memtide_read_trace(nullptr, 1, &text)), "trace is NULL");
  EXPECT_EQ(Refusal(memtide_read_trace("", 0, nullptr)), "json is NULL");
  EXPECT_EQ(Refusal(memtide_add_to_trace(nullptr, 1, "{}", 2, &text, &bytes)), "trace is NULL");
  EXPECT_EQ(Refusal(memtide_add_to_trace("", 0, nullptr, 2, &text, &bytes)), "json is NULL");
  EXPECT_EQ(Refusal(memtide_add_to_trace("", 0, "{}", 2, nullptr, &bytes)), "extended is NULL");
  EXPECT_EQ(Refusal(memtide_add_to_trace("", 0, "{}", 2, &text, nullptr)),
            "extended_bytes is NULL");
  // An empty trace has no bytes, and needs no address.
  ASSERT_EQ(memtide_add_to_trace(nullptr, 0, "{}", 2, &text, &bytes), MEMTIDE_OK)
      << memtide_last_error();
  EXPECT_EQ(bytes, 0u) << "nothing was added to nothing";
  memtide_free_text(text);
}

using ClientArgumentsTest = ClientTest;

TEST_F(ClientArgumentsTest, APhaseIsOneOfThose) {
  Open(4, 3);
  auto* const client = reinterpret_cast<memtide_client*>(client_.get());
  for (const int phase : {-1, MEMTIDE_STEP + 1}) {
    EXPECT_NE(Refusal(memtide_moment(client, phase, "a", 0, 0)).find("phase"), std::string::npos);
  }
  EXPECT_EQ(memtide_moment(client, MEMTIDE_STEP, "a", 0, 0), MEMTIDE_OK) << memtide_last_error();
}

TEST_F(ClientArgumentsTest, DuplicatesNeedAPlaceForTheirFirstOne) {
  Open(4, 3);
  const uint32_t place = Allocate(1).first.value();
  auto* const client = reinterpret_cast<memtide_client*>(client_.get());
  EXPECT_EQ(Refusal(memtide_duplicate(client, &place, 1, 1, nullptr)), "first_place is NULL");
  uint32_t first = place;
  EXPECT_EQ(memtide_duplicate(client, &place, 1, 1, &first), MEMTIDE_OK) << memtide_last_error();
  EXPECT_NE(first, place);
}

TEST_F(ClientArgumentsTest, StatisticsHaveTheTimeForWhichFetchesWaited) {
  Open(4, 3);
  auto* const client = reinterpret_cast<memtide_client*>(client_.get());
  const uint32_t place = Allocate(1).first.value();
  session_->DelayFetches(std::chrono::milliseconds(5));
  ASSERT_EQ(memtide_acquire(client, &place, 1, MEMTIDE_READ, -1), MEMTIDE_OK);
  memtide_stats stats = {};
  stats.struct_bytes = sizeof(stats);
  ASSERT_EQ(memtide_get_stats(client, &stats), MEMTIDE_OK) << memtide_last_error();
  EXPECT_GE(stats.wait_nanoseconds, 5'000'000u);
  EXPECT_EQ(stats.leases_in_use, 1u);
}

TEST_F(ClientArgumentsTest, LimitsAreTheDaemons) {
  Open(4, 3);
  auto* const client = reinterpret_cast<memtide_client*>(client_.get());
  EXPECT_EQ(Refusal(memtide_get_limits(client, nullptr)), "limits is NULL");
  memtide_limits limits = {};
  limits.struct_bytes = sizeof(limits);
  ASSERT_EQ(memtide_get_limits(client, &limits), MEMTIDE_OK) << memtide_last_error();
  const DaemonLimits sent = FakeDaemonSession::Options().limits;
  EXPECT_EQ(limits.chunks_per_call, sent.chunks_per_call);
  EXPECT_EQ(limits.max_wait_s, 60u);
}

TEST_F(ClientArgumentsTest, AnArrayOfNothingMayBeNull) {
  Open(4, 3);
  auto* const client = reinterpret_cast<memtide_client*>(client_.get());
  const uint32_t place = Allocate(1).first.value();
  EXPECT_EQ(Refusal(memtide_versions(client, nullptr, 1, nullptr, nullptr)), "places is NULL");
  EXPECT_EQ(Refusal(memtide_versions(client, &place, 1, nullptr, nullptr)), "ids is NULL");
  EXPECT_EQ(memtide_versions(client, nullptr, 0, nullptr, nullptr), MEMTIDE_OK);
  EXPECT_EQ(memtide_chunk_ids(client, place, 0, nullptr), MEMTIDE_OK) << memtide_last_error();
}

TEST_F(ClientArgumentsTest, AForkedChildIsRefused) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  auto* const client = reinterpret_cast<memtide_client*>(client_.get());
  const uint32_t first = range.first.value();
  Words(range.first)[0] = 5;
  const pid_t child = fork();
  if (child == 0) {
    // A destructor that frees what its parent has does no harm.
    const bool refused =
        memtide_acquire(client, &first, 1, MEMTIDE_READ, -1) == MEMTIDE_FAILED_PRECONDITION &&
        memtide_free(client, first, 2) == MEMTIDE_OK &&
        memtide_discard(client, &first, 1) == MEMTIDE_OK;
    memtide_close(client);
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(Words(range.first)[0], 5u);
}

}  // namespace
}  // namespace memtide::client
