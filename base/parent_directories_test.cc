#include "base/parent_directories.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kStranger = 12345;

class ParentDirectoriesTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/memtide-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    top_ = name;
    std::filesystem::create_directories(top_ + "/above/own");
  }
  void TearDown() override { std::filesystem::remove_all(top_); }

  void SetMode(const std::string& name, mode_t mode) const {
    ASSERT_EQ(chmod((top_ + name).c_str(), mode), 0);
  }
  std::string Refusal(const std::string& path) const {
    const absl::Status status = CheckParents(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    return std::string(status.message());
  }

  std::string top_;
};

TEST_F(ParentDirectoriesTest, OnesThatOnlyThisUserWritesAreTrusted) {
  SetMode("/above", 0755);
  EXPECT_TRUE(CheckParents(top_ + "/above/own").ok()) << CheckParents(top_ + "/above/own");
  SetMode("/above/own", 0777);
  EXPECT_TRUE(CheckParents(top_ + "/above/own").ok()) << "the last one is the caller's to check";
}

TEST_F(ParentDirectoriesTest, OneThatOthersWriteIsNamed) {
  for (const mode_t mode : {0777, 0757, 0702}) {
    SetMode("/above", mode);
    EXPECT_THAT(Refusal(top_ + "/above/own"), HasSubstr("write to \"" + top_ + "/above\""));
    EXPECT_THAT(Refusal(top_ + "/above/own"), HasSubstr("chmod go-w"));
  }
}

TEST_F(ParentDirectoriesTest, TheGroupOfAnotherUserCountsAsOthers) {
  SetMode("/above", 0770);
  EXPECT_TRUE(CheckParents(top_ + "/above/own").ok());
  if (chown((top_ + "/above").c_str(), geteuid(), kStranger) != 0) {
    GTEST_SKIP() << "only root can give a directory to another group";
  }
  SetMode("/above", 0770);
  EXPECT_THAT(Refusal(top_ + "/above/own"), HasSubstr("/above\" (mode 0770)"));
}

TEST_F(ParentDirectoriesTest, UnderTheStickyBitTheOwnerOfTheNextOneCounts) {
  SetMode("/above", 01777);
  EXPECT_TRUE(CheckParents(top_ + "/above/own").ok());
  if (chown((top_ + "/above/own").c_str(), kStranger, 0) != 0) {
    GTEST_SKIP() << "only root can give a directory away";
  }
  EXPECT_THAT(Refusal(top_ + "/above/own"), HasSubstr("/above\" (mode 1777)"));
}

TEST_F(ParentDirectoriesTest, DirectoriesOfLinksAreChecked) {
  std::filesystem::create_directories(top_ + "/links");
  // The last component is a link that another user could change, and then one that leads through
  // such a directory.
  std::filesystem::create_symlink("../above", top_ + "/links/relative");
  std::filesystem::create_symlink(top_ + "/links/relative", top_ + "/absolute");
  EXPECT_TRUE(CheckParents(top_ + "/absolute/own").ok());
  SetMode("/links", 0777);
  EXPECT_THAT(Refusal(top_ + "/absolute/own"), HasSubstr("/links\" (mode 0777)"));
  SetMode("/links", 0755);
  SetMode("/above", 0777);
  EXPECT_THAT(Refusal(top_ + "/absolute/own"), HasSubstr("/above\" (mode 0777)"));
}

TEST_F(ParentDirectoriesTest, LinksThatLeadNowhereAreAnError) {
  std::filesystem::create_symlink("loop", top_ + "/loop");
  EXPECT_EQ(CheckParents(top_ + "/loop/own").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CheckParents(top_ + "/none/own").code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace memtide
