#include "daemon/io/snapshot_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "daemon/io/snapshot_set.h"
#include "daemon/io/testing/scratch_directory.h"
#include "daemon/io/whole_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class SnapshotFilesTest : public testing::Test {
 protected:
  std::vector<std::string> NamesIn(const std::string& directory) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  // A file without a name that holds `text`, as those of stores.
  OwnedFd Unnamed(const std::string& directory, const std::string& text) const {
    OwnedFd file(open(directory.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
    EXPECT_TRUE(file.valid());
    EXPECT_EQ(pwrite(file.get(), text.data(), text.size(), 0), ssize_t(text.size()));
    return file;
  }
  std::string TextOf(int file) const {
    char text[100];
    const ssize_t size = pread(file, text, sizeof(text), 0);
    return std::string(text, size > 0 ? size : 0);
  }

  const ScratchDirectory a_, b_;
  const std::vector<std::string> both_ = {a_.path(), b_.path()};
};

TEST_F(SnapshotFilesTest, WhatIsSavedIsThereForTheNextProcess) {
  {
    const OwnedFd in_a = Unnamed(a_.path(), "left"), in_b = Unnamed(b_.path(), "right");
    ASSERT_TRUE(
        SaveSnapshotFile(both_, JobId(5), {{StoreId(7), {in_a.get(), in_b.get()}}}, "one").ok());
    ASSERT_TRUE(
        SaveSnapshotFile(both_, JobId(5), {{StoreId(7), {in_a.get(), in_b.get()}}}, "two").ok());
  }
  const std::vector<SnapshotFile> saved = LoadSnapshotFiles(both_).value();
  ASSERT_EQ(saved.size(), 1u);
  EXPECT_EQ(saved[0].job, JobId(5));
  EXPECT_EQ(*saved[0].text, "two");
  EXPECT_THAT(NamedStores(both_).value(), ElementsAre(StoreId(7)));
  const absl::StatusOr<std::vector<OwnedFd>> files =
      OpenNamedStore(both_, {false, false}, StoreId(7));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(TextOf((*files)[0].get()) + TextOf((*files)[1].get()), "leftright");
  EXPECT_FALSE(BlocksOfNamedStore(both_, StoreId(7)).begin()->second.IsZero());
  EXPECT_THAT(NamesIn(b_.path()), UnorderedElementsAre(".memtide-set", ".memtide-store-7"));
}

// The numbers of stores that have names are not given again, so that the file is of a job that this
// process does not know.
TEST_F(SnapshotFilesTest, AStoreWithTheSameNumberIsNotReplaced) {
  {
    ASSERT_TRUE(SaveSnapshotFile({a_.path()}, JobId(1),
                                 {{StoreId(7), {Unnamed(a_.path(), "old").get()}}}, "")
                    .ok());
  }
  const OwnedFd file = Unnamed(a_.path(), "new");
  EXPECT_EQ(SaveSnapshotFile({a_.path()}, JobId(2), {{StoreId(7), {file.get()}}}, "").code(),
            absl::StatusCode::kFailedPrecondition);
  const auto files = OpenNamedStore({a_.path()}, {false}, StoreId(7));
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(TextOf((*files)[0].get()), "old");
  EXPECT_EQ(LoadSnapshotFiles({a_.path()})->size(), 1u);
}

TEST_F(SnapshotFilesTest, NothingStaysOfAJobThatEnds) {
  const OwnedFd in_a = Unnamed(a_.path(), "left"), in_b = Unnamed(b_.path(), "right");
  ASSERT_TRUE(
      SaveSnapshotFile(both_, JobId(5), {{StoreId(7), {in_a.get(), in_b.get()}}}, "one").ok());
  ASSERT_TRUE(SaveSnapshotFile(both_, JobId(6), {}, "another").ok());
  EXPECT_TRUE(RemoveSnapshotFile(both_, JobId(5), {StoreId(7)}).ok());
  EXPECT_THAT(NamesIn(a_.path()), UnorderedElementsAre(".memtide-set", ".memtide-snapshot-6"));
  EXPECT_THAT(NamesIn(b_.path()), ElementsAre(".memtide-set"));
  EXPECT_TRUE(RemoveSnapshotFile(both_, JobId(5), {StoreId(7)}).ok()) << "again";
}

// A crash leaves stores with a name that no snapshot names yet, and a new one that is not whole.
TEST_F(SnapshotFilesTest, WhatACrashHasLeftIsRemoved) {
  const OwnedFd saved = Unnamed(a_.path(), "saved"), left = Unnamed(a_.path(), "left");
  ASSERT_TRUE(SaveSnapshotFile({a_.path()}, JobId(5),
                               {{StoreId(7), {saved.get()}}, {StoreId(8), {left.get()}}}, "one")
                  .ok());
  std::ofstream(a_.path() + "/.memtide-snapshot-9.next") << "half";
  std::ofstream(a_.path() + "/.memtide-writes") << "of others";
  EXPECT_EQ(LoadSnapshotFiles({a_.path()})->size(), 1u);
  EXPECT_THAT(RemoveLeftSnapshotFiles({a_.path()}, {StoreId(7)}).value(), ElementsAre(StoreId(8)));
  EXPECT_THAT(NamesIn(a_.path()), UnorderedElementsAre(".memtide-set", ".memtide-snapshot-5",
                                                       ".memtide-store-7", ".memtide-writes"));
}

TEST_F(SnapshotFilesTest, AMissingFileIsSaid) {
  const absl::Status status = OpenNamedStore(both_, {false, false}, StoreId(7)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(".memtide-store-7 cannot be opened"));
  EXPECT_EQ(LoadSnapshotFiles({"/nowhere"}).status().code(), absl::StatusCode::kNotFound);
}

// A file that had a name once can get none. So it is where there is no O_TMPFILE.
TEST_F(SnapshotFilesTest, AFileSystemWithoutUnnamedFilesIsSaid) {
  const std::string path = a_.path() + "/file";
  const OwnedFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(unlink(path.c_str()), 0);
  const absl::Status status =
      SaveSnapshotFile({a_.path()}, JobId(5), {{StoreId(7), {file.get()}}}, "one");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no job can be durable there"));
  EXPECT_TRUE(LoadSnapshotFiles({a_.path()})->empty());
}

// The old snapshot stays where the new one cannot be written: here a directory is in its way.
TEST_F(SnapshotFilesTest, AFailureLeavesTheLastSnapshot) {
  ASSERT_TRUE(SaveSnapshotFile({a_.path()}, JobId(5), {}, "one").ok());
  ASSERT_EQ(mkdir((a_.path() + "/.memtide-snapshot-5.next").c_str(), 0700), 0);
  EXPECT_FALSE(SaveSnapshotFile({a_.path()}, JobId(5), {}, "two").ok());
  EXPECT_EQ(*LoadSnapshotFiles({a_.path()}).value()[0].text, "one");
}

TEST_F(SnapshotFilesTest, WhatCannotBeListedIsNotEmpty) {
  const std::string file = a_.path() + "/file";
  std::ofstream(file) << "no directory";
  EXPECT_EQ(LoadSnapshotFiles({file}).status().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(NamedStores({b_.path(), file}).ok());
  EXPECT_FALSE(CheckSet({b_.path(), file}).ok());
  EXPECT_FALSE(RemoveLeftSnapshotFiles({b_.path(), file}, {}).ok());
}

class SnapshotSetTest : public SnapshotFilesTest {
 protected:
  SnapshotSetTest() {
    const OwnedFd in_a = Unnamed(a_.path(), "left"), in_b = Unnamed(b_.path(), "right");
    EXPECT_TRUE(
        SaveSnapshotFile(both_, JobId(5), {{StoreId(7), {in_a.get(), in_b.get()}}}, "one").ok());
  }
  // The directories are refused, and nothing in them is removed or written.
  absl::Status Refused(const std::vector<std::string>& directories) const {
    absl::Status status = CheckSet(directories);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(RemoveLeftSnapshotFiles(directories, {}).status(), status);
    EXPECT_EQ(SaveSnapshotFile(directories, JobId(6), {}, "two"), status);
    EXPECT_TRUE(OpenNamedStore(both_, {false, false}, StoreId(7)).ok());
    EXPECT_EQ(LoadSnapshotFiles(both_)->size(), 1u);
    EXPECT_TRUE(CheckSet(both_).ok());
    return status;
  }

  const ScratchDirectory c_;
  const std::string right_ = "Start with --ssd-dir=" + a_.path() + " --ssd-dir=" + b_.path() + ".";
};

TEST_F(SnapshotSetTest, AnotherOrderIsRefusedWithTheRightOne) {
  const absl::Status status = Refused({b_.path(), a_.path()});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(right_));
}

TEST_F(SnapshotSetTest, ADirectoryMoreIsRefusedWhereverItStands) {
  EXPECT_THAT(std::string(Refused({c_.path(), a_.path(), b_.path()}).message()),
              HasSubstr(c_.path() + " is of no set, " + a_.path() + " is number 1 of 2 of set "));
  EXPECT_THAT(std::string(Refused({a_.path(), c_.path(), b_.path()}).message()), HasSubstr(right_));
  EXPECT_THAT(std::string(Refused({a_.path(), b_.path(), c_.path()}).message()), HasSubstr(right_));
}

TEST_F(SnapshotSetTest, AMissingDirectoryIsNamed) {
  for (const std::string& alone : both_) {
    const absl::Status status = Refused({alone});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(right_));
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr("rm -f " + alone + "/.memtide-snapshot-* " + alone + "/.memtide-store-*"));
  }
}

TEST_F(SnapshotSetTest, AnEmptyDirectoryInPlaceOfAMemberMayBeMountedLate) {
  EXPECT_EQ(Refused({c_.path(), b_.path()}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Refused({a_.path(), c_.path()}).code(), absl::StatusCode::kUnavailable);
  // No mount mends the order.
  EXPECT_EQ(Refused({b_.path(), c_.path()}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SnapshotSetTest, TwoSetsAreNotOne) {
  const ScratchDirectory d;
  const OwnedFd in_c = Unnamed(c_.path(), "left"), in_d = Unnamed(d.path(), "right");
  ASSERT_TRUE(SaveSnapshotFile({c_.path(), d.path()}, JobId(5),
                               {{StoreId(7), {in_c.get(), in_d.get()}}}, "one")
                  .ok());
  EXPECT_EQ(Refused({a_.path(), d.path()}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Refused({a_.path(), b_.path(), c_.path(), d.path()}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SnapshotSetTest, ADamagedMemberIsInNoSet) {
  const std::string path = b_.path() + "/.memtide-set";
  const std::string text = *ReadWholeFile(path, MiB(1));
  for (const std::string& damaged : {std::string(), text.substr(0, text.size() - 1), "x" + text,
                                     std::string(text).replace(14, 1, "x")}) {
    std::ofstream(path) << damaged;
    EXPECT_EQ(CheckSet(both_).code(), absl::StatusCode::kInvalidArgument) << damaged;
  }
  std::ofstream(path) << text;
  EXPECT_TRUE(CheckSet(both_).ok());
}

TEST_F(SnapshotSetTest, DirectoriesWithoutJobsMayBecomeMembersOfAnySet) {
  ASSERT_TRUE(RemoveSnapshotFile(both_, JobId(5), {StoreId(7)}).ok());
  const std::vector<std::string> others = {c_.path(), b_.path(), a_.path()};
  ASSERT_TRUE(CheckSet(others).ok());
  ASSERT_TRUE(SaveSnapshotFile(others, JobId(1), {}, "one").ok());
  EXPECT_TRUE(CheckSet(others).ok());
  EXPECT_FALSE(CheckSet({c_.path(), a_.path(), b_.path()}).ok());
}

}  // namespace
}  // namespace memtide
