// Tests the example program as a user runs it, and its errors if the GPU cannot be used.
#include <string>
#include <vector>

#include "base/cuda/fake/importer_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/child_process.h"
#include "tests/integration/gpu_node.h"

namespace memtide::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const SharedFakeCuda shared("memory=64MiB,devices=2");

// The same GPUs with another driver.
std::string With(const std::string& setting) {
  return std::string("MEMTIDE_FAKE_CUDA=") + std::getenv("MEMTIDE_FAKE_CUDA") + "," + setting;
}

// Runs the program, and returns its output.
std::string Output(std::vector<std::string> arguments, int status, const GpuNode& node,
                   const std::vector<std::string>& environment = {}) {
  arguments.push_back(node.socket_dir());
  ChildProcess program("GPU_CHUNK", arguments, environment);
  std::string output;
  EXPECT_EQ(program.Wait(&output), status) << output;
  return output;
}

TEST(GpuExampleTest, KeepsItsBytesByDescriptors) {
  GpuNode node;
  EXPECT_THAT(Output({}, 0, node), HasSubstr("by a descriptor: all equal"));
}

TEST(GpuExampleTest, KeepsItsBytesByLegacyHandles) {
  GpuNode node;
  EXPECT_THAT(Output({"--ipc"}, 0, node), HasSubstr("by a legacy handle: all equal"));
}

TEST(GpuExampleTest, RunsOnTheSecondGpu) {
  GpuNode node("cuda:1");
  EXPECT_THAT(Output({}, 0, node), HasSubstr("all equal"));
  // CUDA_VISIBLE_DEVICES makes the second GPU the program's first.
  EXPECT_THAT(Output({}, 0, node, {"CUDA_VISIBLE_DEVICES=1"}), HasSubstr("all equal"));
  EXPECT_THAT(node.End(), HasSubstr("of GPU 1"));
}

TEST(GpuExampleTest, ReportsThatTheGpuIsHidden) {
  GpuNode node;
  for (const std::string hidden : {"1", ""}) {
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{}, {"--ipc"}}) {
      EXPECT_THAT(Output(arguments, 1, node, {"CUDA_VISIBLE_DEVICES=" + hidden}),
                  AllOf(HasSubstr("GPU-fa616b65"), HasSubstr("CUDA_VISIBLE_DEVICES")))
          << "\"" << hidden << "\"";
    }
  }
  EXPECT_THAT(Output({}, 0, node), HasSubstr("all equal"));
}

TEST(GpuExampleTest, AHiddenGpuIsAFailedPrecondition) {
  GpuNode node;
  for (const std::string hidden : {"1", ""}) {
    ChildProcess puppet("GPU_PUPPET", {node.socket_dir(), ""}, {"CUDA_VISIBLE_DEVICES=" + hidden});
    EXPECT_THAT(puppet.ReadLine(), HasSubstr("FAILED_PRECONDITION"));
  }
}

TEST(GpuExampleTest, ADriverWithoutDescriptorsLendsByLegacyHandlesAndSaysSo) {
  const std::string without = With("descriptors=no");
  GpuNode node("cuda", {without});
  EXPECT_THAT(Output({"--ipc"}, 0, node, {without}), HasSubstr("by a legacy handle: all equal"));
  EXPECT_THAT(Output({}, 1, node, {without}),
              AllOf(HasSubstr("cannot lend its memory as CUDA_DESCRIPTOR"), HasSubstr("CUDA_IPC")));
  EXPECT_THAT(node.End(), HasSubstr("memtided uses legacy CUDA IPC"));
}

TEST(GpuExampleTest, ReportsADriverThatCannotImportDescriptors) {
  GpuNode node;
  EXPECT_THAT(Output({}, 1, node, {With("descriptors=no")}), HasSubstr("driver"));
}

TEST(GpuExampleTest, TheOldestDriverLendsBothWays) {
  const std::string oldest = With("driver=no-context-events");
  GpuNode node("cuda", {oldest});
  EXPECT_THAT(Output({}, 0, node, {oldest}), HasSubstr("by a descriptor: all equal"));
  EXPECT_THAT(Output({"--ipc"}, 0, node, {oldest}), HasSubstr("by a legacy handle: all equal"));
}

TEST(GpuExampleTest, AnOlderDriverIsRefusedWithTheNumbers) {
  GpuNode node;
  EXPECT_THAT(Output({}, 1, node, {With("driver=too-old")}),
              AllOf(HasSubstr("CUDA 11.8"), HasSubstr("525")));
}

TEST(GpuExampleTest, AMigInstanceIsNamedAndUsed) {
  const std::string mig = With("mig=yes");
  GpuNode node("MIG-fb", {mig});
  EXPECT_THAT(Output({}, 0, node, {mig, "CUDA_VISIBLE_DEVICES=MIG-fb"}), HasSubstr("all equal"));
  EXPECT_THAT(node.End(), HasSubstr("MIG-fb616b65"));
}

TEST(GpuExampleTest, AGpuForOneProcessIsSharedUnderMps) {
  const std::string mps = With("compute_mode=exclusive,mps=yes");
  GpuNode node("cuda", {mps});
  EXPECT_THAT(Output({}, 0, node, {mps}), HasSubstr("all equal"));
}

}  // namespace
}  // namespace memtide::client
