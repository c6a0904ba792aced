#include "daemon/io/write_counts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "daemon/io/testing/scratch_directory.h"

namespace memtide {
namespace {

class WriteCountsTest : public testing::Test {
 protected:
  std::string Path() const { return scratch_.path() + "/.memtide-writes"; }
  absl::StatusCode CodeOf(const std::string& text) const {
    std::ofstream(Path()) << text;
    return LoadWriteCounts(scratch_.path()).status().code();
  }
  const ScratchDirectory scratch_;
};

TEST_F(WriteCountsTest, WhatIsSavedIsLoaded) {
  EXPECT_EQ(LoadWriteCounts(scratch_.path()).status().code(), absl::StatusCode::kNotFound);
  WriteCounts counts;
  ASSERT_TRUE(SaveWriteCounts(scratch_.path(), counts).ok());
  EXPECT_EQ(LoadWriteCounts(scratch_.path())->written, Bytes(0));
  counts.written = Bytes(uint64_t{1} << 60);
  counts.last_day = {{1'800'000'000, 1000, GiB(3)}, {1'800'000'600, 4'000'000'000, Bytes(1)}};
  ASSERT_TRUE(SaveWriteCounts(scratch_.path(), counts).ok());
  const absl::StatusOr<WriteCounts> loaded = LoadWriteCounts(scratch_.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->written, counts.written);
  ASSERT_EQ(loaded->last_day.size(), 2u);
  EXPECT_EQ(loaded->last_day[1].unix_seconds, 1'800'000'600);
  EXPECT_EQ(loaded->last_day[1].uid, 4'000'000'000);
  EXPECT_EQ(loaded->last_day[0].bytes, GiB(3));
  struct stat status;
  ASSERT_EQ(stat(Path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
}

TEST_F(WriteCountsTest, WhatIsNoFileOfCountsIsRefused) {
  constexpr auto kLoss = absl::StatusCode::kDataLoss;
  EXPECT_EQ(CodeOf("memtide-writes 1\nwritten 7\npast 5 0 7\n"), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOf(""), kLoss);
  EXPECT_EQ(CodeOf("memtide-writes 2\nwritten 7\n"), kLoss);
  EXPECT_EQ(CodeOf("memtide-writes 1\n"), kLoss);
  EXPECT_EQ(CodeOf("memtide-writes 1\nwritten 7"), kLoss) << "cut";
  EXPECT_EQ(CodeOf("memtide-writes 1\nwritten 7\npast 5 0"), kLoss) << "cut";
  EXPECT_EQ(CodeOf("memtide-writes 1\nwritten -7\n"), kLoss);
  EXPECT_EQ(CodeOf("memtide-writes 1\nwritten 7\nwritten 8\n"), kLoss);
  EXPECT_EQ(CodeOf("memtide-writes 1\nwritten 7\npast 5 4294967296 1\n"), kLoss);
  EXPECT_EQ(CodeOf("memtide-writes 1\nwritten 7\npast 5 0 8\n"), kLoss) << "more than in all";
  EXPECT_EQ(CodeOf("memtide-writes 1\nwritten 18446744073709551615\n"
                   "past 5 0 18446744073709551615\npast 5 0 18446744073709551615\n"),
            kLoss);
}

TEST_F(WriteCountsTest, AnErrorSaysWhere) {
  const absl::Status status = SaveWriteCounts("/nowhere/at/all", WriteCounts());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("making /nowhere/at/all/.memtide-writes.next: "),
            absl::string_view::npos)
      << status;
}

}  // namespace
}  // namespace memtide
