#include "client/rpc/job_trace.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <memory>

#include "memtide/v1/admin.grpc.pb.h"
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

TEST(JobTraceTest, RefusesOtherBytes) {
  EXPECT_EQ(JobTraceAsJson("no trace at all").status().code(), absl::StatusCode::kInvalidArgument);
}

// A daemon with one job, number 7.
class OneJob final : public v1::AdminService::Service {
  grpc::Status GetTrace(grpc::ServerContext*, const v1::GetTraceRequest* request,
                        v1::Trace* trace) override {
    if (request->job_id() != 0 && request->job_id() != 7) {
      return {grpc::StatusCode::NOT_FOUND, "no job 8"};
    }
    trace->set_job_id(7);
    trace->add_moments()->set_name("Linear");
    return grpc::Status::OK;
  }
};

TEST(JobTraceTest, IsTheDaemonsOwnBytes) {
  std::string directory = "/tmp/mtXXXXXX";  // Short, because it holds a socket.
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  OneJob service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + directory + "/grpc.sock", grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  const absl::StatusOr<std::string> bytes = GetJobTrace({directory, 0});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  v1::Trace trace;
  ASSERT_TRUE(trace.ParseFromString(*bytes));
  EXPECT_EQ(trace.job_id(), 7u);
  EXPECT_EQ(trace.moments(0).name(), "Linear");

  const absl::Status other = GetJobTrace({directory, 8}).status();
  EXPECT_EQ(other, absl::NotFoundError("no job 8"));
  server->Shutdown();
  EXPECT_EQ(rmdir(directory.c_str()), 0);
}

TEST(JobTraceTest, WithoutADaemonTheErrorNamesTheSocket) {
  const absl::Status status = GetJobTrace({"/nonexistent", 0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("/nonexistent/grpc.sock"), std::string::npos);
}

}  // namespace
}  // namespace memtide::client
