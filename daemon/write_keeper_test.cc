#include "daemon/write_keeper.h"

#include <gtest/gtest.h>

#include <fstream>

#include "daemon/io/testing/scratch_directory.h"
#include "daemon/io/write_counts.h"

namespace memtide {
namespace {

using std::chrono::hours;

class WriteKeeperTest : public testing::Test {
 protected:
  std::vector<std::string> Directories() const { return {scratch_.path()}; }
  std::vector<SsdDrive> Load() const { return LoadDrives(Directories(), {GiB(7)}); }
  const ScratchDirectory scratch_;
};

TEST_F(WriteKeeperTest, TheNextDaemonKnowsWhatWasWrittenAndWhen) {
  const std::vector<SsdDrive> first = Load();
  EXPECT_FALSE(first[0].was_used);
  EXPECT_EQ(first[0].per_day, GiB(7));
  InspectReply reply;
  reply.drives = {{Bytes(), GiB(9), GiB(2), false}};
  reply.past_writes = {{{Now() - hours(3), 1000, GiB(2)}}};
  {
    const WriteKeeper keeper(Directories(), first, [&] { return reply; });
  }
  const std::vector<SsdDrive> next = Load();
  EXPECT_TRUE(next[0].was_used);
  EXPECT_EQ(next[0].written, GiB(9));
  ASSERT_EQ(next[0].last_day.size(), 1u);
  EXPECT_EQ(next[0].last_day[0].uid, 1000u);
  EXPECT_EQ(next[0].last_day[0].bytes, GiB(2));
  EXPECT_NEAR(std::chrono::duration<double>(Now() - next[0].last_day[0].at).count(), 3 * 3600, 60);
}

TEST_F(WriteKeeperTest, ADaemonThatIsKilledAtOnceIsKnown) {
  const WriteKeeper keeper(Directories(), Load(), [] { return absl::UnavailableError("busy"); });
  EXPECT_TRUE(Load()[0].was_used);
}

TEST_F(WriteKeeperTest, CountsOfAnotherClockDoNoHarm) {
  WriteCounts counts;
  counts.written = GiB(10);
  counts.last_day = {{INT64_MAX, 1, GiB(1)}, {INT64_MIN, 2, GiB(1)}, {1, 3, GiB(1)}};
  ASSERT_TRUE(SaveWriteCounts(scratch_.path(), counts).ok());
  const std::vector<SsdDrive> loaded = Load();
  ASSERT_EQ(loaded[0].last_day.size(), 1u) << "only what may be of the last day";
  EXPECT_EQ(loaded[0].last_day[0].uid, 1u);
}

TEST_F(WriteKeeperTest, DamagedCountsBeginAnewAndABudgetIsKept) {
  std::ofstream(scratch_.path() + "/.memtide-writes") << "7\n";
  const std::vector<SsdDrive> loaded = Load();
  EXPECT_TRUE(loaded[0].was_used);
  EXPECT_EQ(loaded[0].written, Bytes(0));
}

}  // namespace
}  // namespace memtide
