// Tests that a real daemon keeps a daily budget of writes to SSD, says so, and counts across its
// restart.
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "proto/protocol.h"
#include "tests/integration/daemon_process.h"

namespace memtide {
namespace {

constexpr uint64_t kChunkBytes = 2 << 20;

class DaemonBudgetTest : public testing::Test {
 protected:
  void Start() {
    daemon_.reset();
    const std::string& directory = scratch_.path();
    // This budget lets 20 MiB be written at once, and then a chunk in 84 s.
    daemon_ = std::make_unique<DaemonProcess>(std::vector<std::string>{
        "--socket-dir=" + directory + "/s", "--device=emulated", "--device-pool=16MiB",
        "--host-pool=16MiB", "--ssd-dir=" + directory + "/d", "--ssd-pool=128MiB",
        "--ssd-written-per-day=2GiB", "--ssd-endurance=600TB",
        "--user-ssd-written-per-day=100GiB"});
    ASSERT_TRUE(daemon_->WaitUntilReady()) << daemon_->log();
  }
  v1::InspectNodeResponse Inspect() const {
    Session session(scratch_.path() + "/s");
    v1::InspectNodeResponse response;
    EXPECT_TRUE(session.admin().InspectNode(session.Context().get(), {}, &response).ok());
    return response;
  }
  // Writes the chunks in turn, until a call fails, whose status it returns.
  static grpc::Status WriteAll(Session* session, const std::vector<uint64_t>& chunks) {
    grpc::Status status;
    for (size_t i = 0; i < 10 * chunks.size() && status.ok(); ++i) {
      v1::FetchRequest request;
      request.add_chunk_ids(chunks[i % chunks.size()]);
      if (i > 0) request.add_release_chunk_ids(chunks[(i - 1) % chunks.size()]);
      request.set_access(v1::ACCESS_WRITE);
      request.mutable_deadline()->set_seconds(1);
      v1::FetchResponse response;
      status = session->chunks().Fetch(session->Context().get(), request, &response);
    }
    return status;
  }

  const ScratchDirectory scratch_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(DaemonBudgetTest, EvictionsWaitForTheBudgetOfADriveAndTheCountsOutliveTheDaemon) {
  Start();
  uint64_t written = 0;
  {
    Session session(scratch_.path() + "/s");
    session.Open();
    const grpc::Status status = WriteAll(&session, session.Allocate(16));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    EXPECT_EQ(status.error_details(), kCallAgain) << status.error_message();
    const v1::InspectNodeResponse seen = Inspect();
    ASSERT_EQ(seen.ssd_directories_size(), 1);
    const v1::SsdDirectory& directory = seen.ssd_directories(0);
    EXPECT_TRUE(directory.is_awaited());
    EXPECT_EQ(directory.written_per_day_bytes(), uint64_t{2} << 30);
    EXPECT_GT(directory.life_years(), 100);
    ASSERT_EQ(seen.ssd_users_size(), 1);
    EXPECT_GE(seen.ssd_users(0).waiting_chunks(), 1u);
    EXPECT_FALSE(seen.ssd_users(0).is_awaited()) << "the user's budget is not used up";
    EXPECT_EQ(seen.ssd_users(0).written_last_day_bytes(), directory.written_last_day_bytes());
    written = directory.written_bytes();
    EXPECT_LE(written, 11 * kChunkBytes);
    EXPECT_GE(written, 10 * kChunkBytes);
    EXPECT_EQ(seen.counters().deadlines_exceeded(), 0u);
  }
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->Wait(), 0);
  EXPECT_NE(daemon_->log().find("is used up"), std::string::npos) << daemon_->log();
  Start();
  const v1::InspectNodeResponse seen = Inspect();
  ASSERT_EQ(seen.ssd_directories_size(), 1);
  EXPECT_GE(seen.ssd_directories(0).written_bytes(), written);
  EXPECT_EQ(seen.ssd_directories(0).written_last_day_bytes(),
            seen.ssd_directories(0).written_bytes());
  ASSERT_EQ(seen.ssd_users_size(), 1);
  EXPECT_GE(seen.ssd_users(0).written_last_day_bytes(), written);
}

}  // namespace
}  // namespace memtide
