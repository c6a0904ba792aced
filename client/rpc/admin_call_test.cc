#include "client/rpc/admin_call.h"

#include <gtest/gtest.h>

#include <string>

namespace memtide::client {
namespace {

TEST(AdminCallTest, EachCallOfAnAdministratorAsksTheDaemon) {
  for (const std::string call : {"InspectNode", "Drain", "EndJob", "SetQuota", "ClearQuota"}) {
    const absl::Status status = CallAdminByName("/nonexistent", call, "{}").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << call << ": " << status;
  }
}

TEST(AdminCallTest, OtherCallsAndFieldsAreNamedBeforeTheDaemonIsAsked) {
  const absl::Status call = CallAdminByName("/nonexistent", "Allocate", "{}").status();
  EXPECT_EQ(call, absl::UnimplementedError("\"Allocate\" is no call of an administrator"));
  const absl::Status field = CallAdminByName("/nonexistent", "EndJob", "{\"jobs\": 1}").status();
  EXPECT_EQ(field.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(field.message().find("jobs"), std::string::npos) << field;
}

}  // namespace
}  // namespace memtide::client
