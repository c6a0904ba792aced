#include "daemon/service/status_table.h"

#include <gtest/gtest.h>

#include <string>

#include "proto/protocol.h"

namespace memtide {
namespace {

TEST(StatusTableTest, KeepsEveryCodeAndTheMessage) {
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status =
        ToGrpc(absl::Status(static_cast<absl::StatusCode>(code), "chunk 7"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "chunk 7");
  }
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
}

TEST(StatusTableTest, SaysWhenTheCallIsToBeMadeAgain) {
  absl::Status status = absl::UnavailableError("wait on");
  EXPECT_EQ(ToGrpc(status).error_details(), "");
  status.SetPayload(kCallAgain, absl::Cord());
  EXPECT_EQ(ToGrpc(status).error_details(), kCallAgain);
}

TEST(StatusTableTest, CutsMessagesThatWouldNotFitAHeader) {
  const std::string long_message(3 * kMaxMessageBytes, 'x');
  EXPECT_EQ(ToGrpc(absl::InternalError(long_message)).error_message().size(), kMaxMessageBytes);
}

}  // namespace
}  // namespace memtide
