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

TEST(JobTraceTest, HasWhatIsAddedBesideWhatItHad) {
  v1::Trace trace;
  trace.set_job_id(7);
  // A field that a newer daemon may know.
  trace.GetReflection()->MutableUnknownFields(&trace)->AddVarint(1000, 5);
  const absl::StatusOr<std::string> bytes =
      AddToJobTrace(trace.SerializeAsString(),
                    R"({"activation_profile": {"blocks": [{"name": "layers.0", "forward_ns": 12}]},
          "activation_plan": {"blocks": [{"rest": "ACTIVATION_CHOICE_RECOMPUTE"}],
                              "forced": [{"name": "all kept", "predicted": null}]}})");
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  v1::Trace extended;
  ASSERT_TRUE(extended.ParseFromString(*bytes));
  EXPECT_EQ(extended.job_id(), 7u);
  EXPECT_EQ(extended.GetReflection()->GetUnknownFields(extended).field_count(), 1);
  EXPECT_EQ(extended.activation_profile().blocks(0).forward_ns(), 12);
  EXPECT_EQ(extended.activation_plan().blocks(0).rest(), v1::ACTIVATION_CHOICE_RECOMPUTE);
  EXPECT_FALSE(extended.activation_plan().forced(0).has_predicted());
}

TEST(JobTraceTest, RefusesToAddWhatIsNotATrace) {
  const std::string deep(100000, '[');
  for (const std::string& json :
       {std::string(), std::string("{"), std::string("[]"), std::string(R"({"cats": 1})"),
        std::string(R"({"job_id": -1})"), R"({"activation_plan": )" + deep}) {
    const absl::Status status = AddToJobTrace("", json).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json.substr(0, 40);
  }
  EXPECT_EQ(AddToJobTrace("no trace at all", "{}").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(JobTraceTest, RefusesToAddMoreThanItsLimit) {
  std::string json = "{}";
  json.resize(kMostAddedJson, ' ');
  EXPECT_TRUE(AddToJobTrace("", json).ok());
  json += ' ';
  EXPECT_EQ(AddToJobTrace("", json).status().code(), absl::StatusCode::kInvalidArgument);
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
