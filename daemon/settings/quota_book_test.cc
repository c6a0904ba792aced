#include "daemon/settings/quota_book.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace memtide {
namespace {

using absl::StatusCode;

constexpr int kHost = 1;

Accounts TestAccounts() {
  Accounts accounts;
  accounts.uid_of = [](const std::string& name) {
    return name == "alice" ? absl::make_optional(1000u) : absl::nullopt;
  };
  accounts.gid_of = [](const std::string& name) {
    return name == "students" ? absl::make_optional(50u) : absl::nullopt;
  };
  return accounts;
}

v1::SetQuotaRequest HostOf(const std::string& subject, uint64_t bytes) {
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_subject(subject);
  request.mutable_quota()->set_host_bytes(bytes);
  return request;
}

class QuotaBookTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/memtide-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    ASSERT_EQ(Restart().code(), StatusCode::kNotFound) << "nothing was set";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // As a daemon begins.
  absl::Status Restart() {
    Quota configured;
    configured.name = "default";
    configured.most.bytes[kHost] = Bytes(100);
    configured.most.jobs = 7;
    book_ = std::make_unique<QuotaBook>(std::vector<Quota>{configured}, directory_, TestAccounts(),
                                        /*most=*/3);
    return book_->Load();
  }
  std::string File() const { return directory_ + "/quotas.textproto"; }
  std::string Kept() const {
    std::ifstream file(File());
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  StatusCode CodeOf(const v1::SetQuotaRequest& request) {
    return book_->Set(request).status().code();
  }

  std::string directory_;
  std::unique_ptr<QuotaBook> book_;
};

TEST_F(QuotaBookTest, WhatIsSetHoldsBesideTheConfigurationAndOutlivesTheDaemon) {
  const auto change = book_->Set(HostOf("user:alice", 5));
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_TRUE(change->outlives_daemon);
  EXPECT_EQ(change->quota.id, 1000u);
  EXPECT_EQ(change->quota.name, "user:alice");
  EXPECT_EQ(change->quotas.size(), 2u);
  ASSERT_TRUE(Restart().ok());
  const std::vector<Quota> all = book_->All();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, 1000u);
  EXPECT_EQ(all[0].most.bytes[kHost], Bytes(5));
  EXPECT_EQ(all[0].name, "user:1000") << "names may be given to others";
  struct stat status;
  ASSERT_EQ(stat(File().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(QuotaBookTest, ASetKeepsTheOtherLimitsAndRemovesThoseThatItNames) {
  const auto set = book_->Set(HostOf("default", 200));
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->quota.most.bytes[kHost], Bytes(200));
  EXPECT_EQ(set->quota.most.jobs, 7u) << "as the configuration has it";
  v1::SetQuotaRequest request;
  request.mutable_quota()->set_subject("default");
  request.add_unlimited("host_bytes");
  const auto removed = book_->Set(request);
  ASSERT_TRUE(removed.ok());
  EXPECT_FALSE(removed->quota.most.bytes[kHost].has_value());
  EXPECT_EQ(removed->quota.most.jobs, 7u);
  EXPECT_GT(removed->number, set->number);
}

TEST_F(QuotaBookTest, AClearGivesTheConfigurationBack) {
  EXPECT_EQ(book_->Clear("default").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(book_->Set(HostOf("default", 200)).ok());
  ASSERT_TRUE(book_->Set(HostOf("group:students", 9)).ok());
  const auto cleared = book_->Clear("default");
  ASSERT_TRUE(cleared.ok()) << cleared.status();
  EXPECT_EQ(cleared->quota.most.bytes[kHost], Bytes(100));
  ASSERT_TRUE(book_->Clear("group:50").ok()) << "a number is the same subject";
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(book_->All().size(), 1u);
}

TEST_F(QuotaBookTest, SubjectsThatAreNoneAreRefusedAndNothingChanges) {
  for (const std::string subject :
       {"", "alice", "user:", "group:", "everyone", "USER:alice", "user:4294967295", "default:"}) {
    EXPECT_NE(CodeOf(HostOf(subject, 1)), StatusCode::kOk) << subject;
  }
  EXPECT_EQ(CodeOf(HostOf("user:bob", 1)), StatusCode::kNotFound);
  EXPECT_EQ(CodeOf(HostOf(std::string("user:ali\0ce", 11), 1)), StatusCode::kInvalidArgument);
  v1::SetQuotaRequest unknown = HostOf("user:alice", 1);
  unknown.add_unlimited("hots_bytes");
  EXPECT_EQ(CodeOf(unknown), StatusCode::kInvalidArgument);
  EXPECT_EQ(book_->All().size(), 1u);
  EXPECT_EQ(Kept(), "");
}

TEST_F(QuotaBookTest, ThereAreNoMoreThanTheLimit) {
  EXPECT_EQ(CodeOf(HostOf("user:1", 1)), StatusCode::kOk);
  EXPECT_EQ(CodeOf(HostOf("user:2", 1)), StatusCode::kOk);
  EXPECT_EQ(CodeOf(HostOf("user:3", 1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(HostOf("user:2", 5)), StatusCode::kOk);
}

TEST_F(QuotaBookTest, AChangeThatCannotBeKeptIsNone) {
  ASSERT_TRUE(book_->Set(HostOf("user:alice", 5)).ok());
  const std::string before = Kept();
  // A directory in the place of the next file, which unlink does not remove.
  std::filesystem::create_directory(File() + ".next");
  const auto change = book_->Set(HostOf("user:alice", 6));
  EXPECT_EQ(change.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(change.status().message().find(File()), absl::string_view::npos);
  EXPECT_EQ(Kept(), before);
  EXPECT_EQ(book_->All()[0].most.bytes[kHost], Bytes(5));
}

TEST_F(QuotaBookTest, WhatAKilledDaemonHasLeftIsReplaced) {
  std::ofstream(File() + ".next") << "quotas { subj";
  ASSERT_TRUE(book_->Set(HostOf("user:alice", 5)).ok());
  EXPECT_FALSE(std::filesystem::exists(File() + ".next"));
  EXPECT_TRUE(Restart().ok());
}

TEST_F(QuotaBookTest, ADamagedFileIsSaidAndReplaced) {
  std::ofstream(File()) << "quotas { subj";
  const absl::Status loaded = Restart();
  EXPECT_EQ(loaded.code(), StatusCode::kDataLoss);
  EXPECT_NE(loaded.message().find(File()), absl::string_view::npos);
  EXPECT_EQ(book_->All().size(), 1u);
  ASSERT_TRUE(book_->Set(HostOf("user:alice", 5)).ok());
  EXPECT_TRUE(Restart().ok());
}

TEST_F(QuotaBookTest, WithoutADirectoryNothingIsKept) {
  QuotaBook book({}, "", TestAccounts(), 3);
  EXPECT_EQ(book.Load().code(), StatusCode::kNotFound);
  const auto change = book.Set(HostOf("user:alice", 5));
  ASSERT_TRUE(change.ok());
  EXPECT_FALSE(change->outlives_daemon);
  EXPECT_EQ(book.All().size(), 1u);
}

}  // namespace
}  // namespace memtide
