#include "client/job_trace.h"

#include <gtest/gtest.h>

#include "memtide/v1/trace.pb.h"

namespace memtide::client {
namespace {

TEST(JobTraceTest, IsReadWithEveryFieldNamed) {
  v1::Trace trace;
  trace.set_job_id(7);
  trace.add_moments()->set_phase(v1::PHASE_BACKWARD);
  const absl::StatusOr<std::string> json = JobTraceAsJson(trace.SerializeAsString());
  ASSERT_TRUE(json.ok()) << json.status();
  for (const char* part : {R"("job_id":"7")", R"("phase":"PHASE_BACKWARD")",
                           R"("own_host_bytes":"0")", R"("moves":[])"}) {
    EXPECT_NE(json->find(part), std::string::npos) << part << " is not in " << *json;
  }
}

TEST(JobTraceTest, OfOtherBytesIsRefused) {
  EXPECT_EQ(JobTraceAsJson("no trace at all").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(JobTraceTest, OfNoDaemonSaysWhereItWasSought) {
  const absl::Status status = GetJobTrace({"/nonexistent", 0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("/nonexistent/grpc.sock"), std::string::npos);
}

}  // namespace
}  // namespace memtide::client
