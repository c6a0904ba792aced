// Tests a daemon whose GPU is lost, under a service manager like systemd: what has a copy in host
// memory or on SSD stays, and this daemon and the next one serve the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "base/cuda/fake/importer_process.h"
#include "tests/integration/gpu_node.h"
#include "tests/integration/service_manager.h"

namespace memtide::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const SharedFakeCuda shared("memory=64MiB,delay_us=50,mends=no");

class GpuLossTest : public testing::TestWithParam<int> {
 protected:
  void Start(const std::string& faults) {
    MeetGpus();
    daemon_ = manager_.Start(
        {"--socket-dir=" + options_.daemon.socket_dir, "--ssd-dir=" + directory_.path() + "/d",
         "--device=cuda", "--device-pool=" + std::to_string((kGpuChunk * kGpuSlots).count()),
         "--host-pool=16MiB", "--ssd-pool=256MiB", "--metrics-address=off"},
        {"MEMTIDE_FAKE_CUDA_FAULTS=" + faults});
    ASSERT_TRUE(daemon_->WaitUntilReady()) << daemon_->log();
  }
  std::string End() {
    daemon_->Signal(SIGTERM);
    EXPECT_EQ(daemon_->Wait(), 0) << daemon_->log();
    return daemon_->log();
  }

  ScratchDirectory directory_;
  Client::Options options_ = [this] {
    Client::Options options;
    options.daemon = {directory_.path() + "/s", "gpu_test"};
    options.job.set_job_name("kept");
    options.job.mutable_time_to_live()->set_seconds(600);
    options.job.set_chunk_size_bytes(kGpuChunk.count());
    return options;
  }();
  ServiceManager manager_{directory_.path()};
  std::unique_ptr<DaemonProcess> daemon_;
};

// The errors of a GPU that falls off the bus, and of a context that a reset does not mend.
INSTANTIATE_TEST_SUITE_P(Errors, GpuLossTest, testing::Values(46, 700, 719, 999));

TEST_P(GpuLossTest, WhatHasACopyBelowIsReadByThisDaemonAndTheNext) {
  Start("cuMemcpyDtoHAsync:4=" + std::to_string(GetParam()));
  std::vector<ChunkId> ids;
  PlaceRange range;
  {
    const auto client = OpenClient(options_);
    ASSERT_NE(client, nullptr);
    const auto allocated = client->leases()->Allocate(2 * kGpuSlots, ChunkKind::kParameter);
    ASSERT_TRUE(allocated.ok()) << allocated.status();
    range = *allocated;
    ids = *client->leases()->ChunkIds(range);
    // Three chunks leave the GPU, two of them are a step, and then the GPU is lost.
    FillEach(client.get(), Places(range, 0, 3), 1);
    ASSERT_TRUE(client->leases()->Evict(Places(range, 0, 3)).ok());
    CommitRequest commit;
    commit.committed.step = 1;
    ASSERT_TRUE(client->leases()->Commit(commit, Places(range, 1, 1), Places(range, 2, 1)).ok());
    FillEach(client.get(), Places(range, 3, 1), 1);
    const absl::Status lost = client->leases()->Evict(Places(range, 3, 1));
    EXPECT_FALSE(lost.ok());
    EXPECT_THAT(std::string(lost.message()),
                AllOf(HasSubstr("was lost"), HasSubstr("could not be restarted")));
  }
  ASSERT_TRUE(daemon_->WaitForLog("is used again")) << daemon_->log();
  {
    const auto client = OpenClient(options_);
    ASSERT_NE(client, nullptr);
    const auto again = client->leases()->Attach(ids);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(client->leases()->committed().step, 1u);
    EXPECT_EQ(CountWrongEach(client.get(), Places(*again, 0, 1), 1), 0u);
    EXPECT_TRUE(absl::IsDataLoss(client->leases()->Acquire(Places(*again, 3, 1), Access::kRead)));
  }
  End();
  Start("");
  const auto client = OpenClient(options_);
  ASSERT_NE(client, nullptr);
  const auto again = client->leases()->Attach(ids);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->first, range.first) << "Fill's values depend on the place";
  EXPECT_EQ(client->leases()->committed().step, 1u);
  EXPECT_EQ(CountWrongEach(client.get(), Places(*again, 0, 1), 1), 0u);
  const absl::Status committed = client->leases()->Acquire(Places(*again, 1, 1), Access::kRead);
  EXPECT_TRUE(committed.ok()) << committed;
  EXPECT_TRUE(client->leases()->EndUse(Places(*again, 1, 1)).ok());
  EXPECT_TRUE(absl::IsDataLoss(client->leases()->Acquire(Places(*again, 3, 1), Access::kRead)));
  FillEach(client.get(), Places(*again, 0, 2 * kGpuSlots), 2);
  EXPECT_EQ(CountWrongEach(client.get(), Places(*again, 0, 2 * kGpuSlots), 2), 0u);
}

}  // namespace
}  // namespace memtide::client
