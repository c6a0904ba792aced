#include "tests/integration/gpu_node.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <utility>

#include "base/check.h"
#include "base/cuda/cuda.h"

namespace memtide::client {
namespace {

constexpr std::chrono::seconds kPatience(60);
constexpr uint64_t kPageBytes = 4096;

std::vector<std::string> Flags(const std::string& directory, const std::string& device,
                               Bytes device_pool) {
  return {"--socket-dir=" + directory + "/s",
          "--ssd-dir=" + directory + "/d",
          "--device=" + device,
          "--device-pool=" + std::to_string(device_pool.count()),
          "--host-pool=16MiB",
          "--ssd-pool=256MiB",
          "--metrics-address=off"};
}

bool IsIdle(const v1::InspectNodeResponse& node) {
  if (node.session_count() > 0 || node.chunk_count() > 0) return false;
  for (const v1::Pool& pool : node.pools()) {
    if (pool.scrubbing_bytes() > 0 || pool.reserved_bytes() > 0) return false;
  }
  return true;
}

uint64_t ValueAt(PlaceId place, uint64_t page, uint64_t stamp) {
  return (uint64_t{place.value()} << 40) ^ (page << 20) ^ stamp ^ 0x9E3779B97F4A7C15u;
}

// The word of a page that Fill writes. Its offset differs from page to page.
uint64_t* WordAt(Client* client, PlaceId place, uint64_t page) {
  return reinterpret_cast<uint64_t*>(client->address(place) + page * kPageBytes) + page % 512;
}

// Returns the variables, which may set faults: these are for the daemon's own calls.
const std::vector<std::string>& AfterMeeting(const std::vector<std::string>& environment) {
  if (!environment.empty()) MeetGpus();
  return environment;
}

}  // namespace

GpuNode::GpuNode(const std::string& device, const std::vector<std::string>& environment,
                 Bytes device_pool)
    : daemon_(Flags(directory_.path(), device, device_pool), AfterMeeting(environment)),
      admin_(v1::AdminService::NewStub(grpc::CreateChannel("unix:" + socket_dir() + "/grpc.sock",
                                                           grpc::InsecureChannelCredentials()))) {
  EXPECT_TRUE(daemon_.WaitUntilReady()) << daemon_.log();
}

GpuNode::~GpuNode() {
  if (!ended_) End();
}

v1::InspectNodeResponse GpuNode::Inspect() {
  grpc::ClientContext context;
  v1::InspectNodeRequest request;
  request.set_sessions(true);
  v1::InspectNodeResponse node;
  const grpc::Status status = admin_->InspectNode(&context, request, &node);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return node;
}

v1::InspectNodeResponse GpuNode::InspectUntilIdle() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  v1::InspectNodeResponse node = Inspect();
  while (!IsIdle(node) && std::chrono::steady_clock::now() < deadline) node = Inspect();
  EXPECT_TRUE(IsIdle(node)) << node.ShortDebugString();
  return node;
}

std::string GpuNode::End() {
  daemon_.Signal(SIGTERM);
  EXPECT_EQ(daemon_.Wait(), 0) << daemon_.log();
  ended_ = true;
  return daemon_.log();
}

void GpuNode::Kill() {
  daemon_.Signal(SIGKILL);
  daemon_.Wait();
  ended_ = true;
}

Client::Options GpuJob(const GpuNode& node, const std::string& job_name) {
  Client::Options options;
  options.daemon = {node.socket_dir(), "gpu_test"};
  options.job.set_job_name(job_name);
  options.job.set_chunk_size_bytes(kGpuChunk.count());
  return options;
}

std::unique_ptr<Client> OpenClient(const Client::Options& options) {
  auto client = Client::Open(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? std::move(client).value() : nullptr;
}

std::vector<PlaceId> Places(PlaceRange range, uint32_t first, uint32_t count) {
  std::vector<PlaceId> places;
  for (uint32_t i = first; i < first + count; ++i) places.emplace_back(range.first.value() + i);
  return places;
}

void Fill(Client* client, const std::vector<PlaceId>& places, uint64_t stamp) {
  for (const PlaceId place : places) {
    for (uint64_t page = 0; page < kGpuChunk.count() / kPageBytes; ++page) {
      *WordAt(client, place, page) = ValueAt(place, page, stamp);
    }
  }
}

uint64_t CountWrong(Client* client, const std::vector<PlaceId>& places, uint64_t stamp) {
  uint64_t wrong = 0;
  for (const PlaceId place : places) {
    for (uint64_t page = 0; page < kGpuChunk.count() / kPageBytes; ++page) {
      wrong += *WordAt(client, place, page) != ValueAt(place, page, stamp) ? 1 : 0;
    }
  }
  return wrong;
}

void FillEach(Client* client, const std::vector<PlaceId>& places, uint64_t stamp) {
  for (const PlaceId place : places) {
    const auto use = client->Use({place}, Access::kWrite);
    ASSERT_TRUE(use.ok()) << use.status();
    Fill(client, {place}, stamp);
  }
}

uint64_t CountWrongEach(Client* client, const std::vector<PlaceId>& places, uint64_t stamp) {
  uint64_t wrong = 0;
  for (const PlaceId place : places) {
    const auto use = client->Use({place}, Access::kRead);
    EXPECT_TRUE(use.ok()) << use.status();
    wrong += use.ok() ? CountWrong(client, {place}, stamp) : 1;
  }
  return wrong;
}

Bytes FreeGpuMemory() {
  size_t free = 0, total = 0;
  const absl::StatusOr<const CudaDriver*> driver = LoadCudaDriver();
  MEMTIDE_CHECK(driver.ok() && UseGpu(0).ok());
  MEMTIDE_CHECK((*driver)->MemGetInfo(&free, &total) == CUDA_SUCCESS);
  return Bytes(free);
}

Bytes FreeGpuMemoryOnce(Bytes expected) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  Bytes free = FreeGpuMemory();
  while (free != expected && std::chrono::steady_clock::now() < deadline) free = FreeGpuMemory();
  return free;
}

}  // namespace memtide::client
