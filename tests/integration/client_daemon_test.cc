// Tests the client library against a real daemon, with real sockets, regions and a real disk.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/rpc/node_inspection.h"
#include "tests/integration/daemon_process.h"

namespace memtide::client {
namespace {

constexpr uint64_t kChunkBytes = 4 << 20;
constexpr uint64_t kPageBytes = 4096;
// Four times the node's memory of 64 MiB device and 96 MiB host.
constexpr uint32_t kChunks = 160;

constexpr std::chrono::seconds kPatience(60);

// A daemon with small pools, which must exit with status 0, and a stub of its AdminService.
class SmallNode {
 public:
  explicit SmallNode(const std::string& session_lease = "60s")
      : daemon_({"--socket-dir=" + socket_dir(), "--ssd-dir=" + directory_.path() + "/d",
                 "--device=emulated", "--device-pool=64MiB", "--host-pool=96MiB", "--ssd-pool=1GiB",
                 "--metrics-address=off", "--session-lease=" + session_lease}),
        admin_(v1::AdminService::NewStub(grpc::CreateChannel("unix:" + socket_dir() + "/grpc.sock",
                                                             grpc::InsecureChannelCredentials()))) {
    EXPECT_TRUE(daemon_.WaitUntilReady()) << daemon_.log();
  }
  ~SmallNode() {
    if (killed_) return;
    daemon_.Signal(SIGTERM);
    EXPECT_EQ(daemon_.Wait(), 0) << daemon_.log();
  }

  std::string socket_dir() const { return directory_.path() + "/s"; }

  v1::InspectNodeResponse Inspect() {
    grpc::ClientContext context;
    v1::InspectNodeRequest request;
    request.set_sessions(true);
    v1::InspectNodeResponse node;
    const grpc::Status status = admin_->InspectNode(&context, request, &node);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return node;
  }

  // Inspects the node until it has no session, job or scrubbing left, or a deadline has passed.
  v1::InspectNodeResponse InspectUntilIdle() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    v1::InspectNodeResponse node = Inspect();
    while (!IsIdle(node) && std::chrono::steady_clock::now() < deadline) node = Inspect();
    EXPECT_TRUE(IsIdle(node)) << node.ShortDebugString();
    return node;
  }

  void Kill() {
    daemon_.Signal(SIGKILL);
    daemon_.Wait();
    killed_ = true;
  }

 private:
  static bool IsIdle(const v1::InspectNodeResponse& node) {
    if (node.session_count() > 0 || node.chunk_count() > 0) return false;
    for (const v1::Pool& pool : node.pools()) {
      if (pool.scrubbing_bytes() > 0 || pool.reserved_bytes() > 0) return false;
    }
    return true;
  }

  ScratchDirectory directory_;
  DaemonProcess daemon_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
  bool killed_ = false;
};

// A running lease_holder, with pipes to its standard input and output.
class LeaseHolder {
 public:
  explicit LeaseHolder(const std::string& socket_dir) {
    int input[2], output[2];
    EXPECT_EQ(pipe2(input, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(output, O_CLOEXEC), 0);
    const char* program = getenv("LEASE_HOLDER");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(input[0], STDIN_FILENO);
      dup2(output[1], STDOUT_FILENO);
      execl(program, program, socket_dir.c_str(), nullptr);
      _exit(127);
    }
    close(input[0]);
    close(output[1]);
    input_ = input[1];
    output_ = output[0];
  }
  ~LeaseHolder() {
    kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
    close(input_);
    close(output_);
  }

  void Stop() { EXPECT_EQ(kill(pid_, SIGSTOP), 0); }
  bool WaitUntilHolding() {
    char said[16] = {};
    return read(output_, said, sizeof(said) - 1) > 0 && std::string(said) == "holding\n";
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1, output_ = -1;
};

PlaceId Nth(PlaceRange range, uint32_t n) { return PlaceId(range.first.value() + n); }

Client::Options OptionsFor(const SmallNode& node) {
  Client::Options options;
  options.daemon = {node.socket_dir(), "client_daemon_test"};
  options.job.set_chunk_size_bytes(kChunkBytes);
  return options;
}

std::unique_ptr<Client> OpenClient(const Client::Options& options) {
  auto client = Client::Open(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? std::move(client).value() : nullptr;
}

// The content of page `page` of chunk `n` after `round` rounds of writing.
uint64_t Stamp(uint32_t n, uint64_t page, uint64_t round) {
  return (uint64_t{n} << 40) ^ (page << 8) ^ round ^ 0x9E3779B97F4A7C15u;
}

void Write(Client* client, PlaceRange range, uint32_t n, uint64_t round) {
  for (uint64_t page = 0; page < kChunkBytes / kPageBytes; ++page) {
    auto* word = reinterpret_cast<uint64_t*>(client->address(Nth(range, n)) + page * kPageBytes);
    *word = Stamp(n, page, round);
  }
}

uint64_t CountWrong(Client* client, PlaceRange range, uint32_t n, uint64_t round) {
  uint64_t wrong = 0;
  for (uint64_t page = 0; page < kChunkBytes / kPageBytes; ++page) {
    const auto* word =
        reinterpret_cast<uint64_t*>(client->address(Nth(range, n)) + page * kPageBytes);
    wrong += *word != Stamp(n, page, round) ? 1 : 0;
  }
  return wrong;
}

void ExpectPoolsAddUp(const v1::InspectNodeResponse& node) {
  for (const v1::Pool& pool : node.pools()) {
    EXPECT_EQ(
        pool.used_bytes() + pool.reserved_bytes() + pool.scrubbing_bytes() + pool.free_bytes(),
        pool.capacity_bytes())
        << pool.ShortDebugString();
  }
}

void ExpectPoolsAreFree(const v1::InspectNodeResponse& node) {
  for (const v1::Pool& pool : node.pools()) {
    EXPECT_EQ(pool.free_bytes(), pool.capacity_bytes()) << pool.ShortDebugString();
  }
}

TEST(ClientDaemonTest, ADataSetOfFourTimesTheMemorySurvivesThreads) {
  SmallNode node;
  const std::unique_ptr<Client> client = OpenClient(OptionsFor(node));
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(client->properties().job.device_slots, 16u);
  const auto range = client->leases()->Allocate(kChunks, ChunkKind::kOptimizerState);
  ASSERT_TRUE(range.ok()) << range.status();
  std::atomic<uint64_t> wrong{0}, failed{0};
  auto work = [&](uint32_t worker) {
    for (uint64_t round = 1; round <= 2; ++round) {
      for (uint32_t n = worker; n < kChunks; n += 4) {
        // Half of the threads acquire chunks, half access them without leases and fault.
        const std::vector<PlaceId> places = {Nth(*range, n)};
        const bool announce = worker % 2 == 0;
        if (announce && !client->leases()->Acquire(places, Access::kWrite).ok()) ++failed;
        if (round > 1) wrong += CountWrong(client.get(), *range, n, round - 1);
        Write(client.get(), *range, n, round);
        if (announce && !client->leases()->EndUse(places).ok()) ++failed;
      }
    }
    for (uint32_t n = worker; n < kChunks; n += 4) wrong += CountWrong(client.get(), *range, n, 2);
  };
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < 4; ++worker) threads.emplace_back(work, worker);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(failed.load(), 0u);
  const v1::InspectNodeResponse seen = node.Inspect();
  ExpectPoolsAddUp(seen);
  EXPECT_GT(seen.counters().ssd_read_bytes(), kChunks * kChunkBytes / 2);
  ASSERT_TRUE(client->leases()->Free(*range).ok());
}

TEST(ClientDaemonTest, ChunksEvictedToDiskComeBackAsTheyWere) {
  SmallNode node;
  const std::unique_ptr<Client> client = OpenClient(OptionsFor(node));
  ASSERT_NE(client, nullptr);
  const auto range = client->leases()->Allocate(3, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  const std::vector<PlaceId> all = {Nth(*range, 0), Nth(*range, 1), Nth(*range, 2)};
  for (uint32_t n = 0; n < 3; ++n) Write(client.get(), *range, n, 1);
  const absl::Status evicted = client->leases()->Evict(all);
  ASSERT_TRUE(evicted.ok()) << evicted;
  EXPECT_EQ(client->leases()->monitor().stats().leases_held, 0u);
  for (uint32_t n = 0; n < 3; ++n) EXPECT_EQ(CountWrong(client.get(), *range, n, 1), 0u);
}

TEST(ClientDaemonTest, ClientsKilledHoldingLeasesLeaveNothingBehind) {
  SmallNode node;
  for (int round = 0; round < 3; ++round) {
    {
      LeaseHolder holder(node.socket_dir());
      ASSERT_TRUE(holder.WaitUntilHolding());
      const v1::InspectNodeResponse seen = node.Inspect();
      ASSERT_EQ(seen.sessions_size(), 1);
      EXPECT_GE(seen.sessions(0).leases(), 3u);
      ExpectPoolsAddUp(seen);
    }
    const v1::InspectNodeResponse seen = node.InspectUntilIdle();
    ExpectPoolsAddUp(seen);
    ExpectPoolsAreFree(seen);
  }
}

// A debugger, a hung file system: the process lives, and renews no more.
TEST(ClientDaemonTest, AStoppedClientHoldingLeasesLosesThemToOthers) {
  SmallNode node("1s");
  LeaseHolder holder(node.socket_dir());
  ASSERT_TRUE(holder.WaitUntilHolding());
  holder.Stop();
  const v1::InspectNodeResponse idle = node.InspectUntilIdle();
  ExpectPoolsAddUp(idle);
  for (const v1::Pool& pool : idle.pools()) EXPECT_EQ(pool.free_bytes(), pool.capacity_bytes());
  Client::Options options = OptionsFor(node);
  options.job.set_device_share_bytes(64 << 20);
  options.job.set_host_share_bytes(96 << 20);
  const auto client = OpenClient(options);
  ASSERT_NE(client, nullptr) << "all memory is there for others";
}

TEST(ClientDaemonTest, AClosedClientLeavesNothingBehind) {
  SmallNode node;
  {
    const std::unique_ptr<Client> client = OpenClient(OptionsFor(node));
    ASSERT_NE(client, nullptr);
    const auto range = client->leases()->Allocate(8, ChunkKind::kGradient);
    ASSERT_TRUE(range.ok()) << range.status();
    Write(client.get(), *range, 0, 1);
  }
  ExpectPoolsAreFree(node.InspectUntilIdle());
}

TEST(ClientDaemonTest, WithoutADaemonOpeningSaysWhatToDo) {
  Client::Options options;
  options.daemon.socket_dir = "/tmp/memtide-nobody-is-here";
  const absl::Status status = Client::Open(options).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(std::string(status.message()).find("start memtided"), std::string::npos) << status;
}

TEST(ClientDaemonTest, WhenTheDaemonDiesCallsFailAndMappedBytesStay) {
  SmallNode node;
  const std::unique_ptr<Client> client = OpenClient(OptionsFor(node));
  ASSERT_NE(client, nullptr);
  const auto range = client->leases()->Allocate(2, ChunkKind::kParameter);
  ASSERT_TRUE(range.ok()) << range.status();
  Write(client.get(), *range, 0, 1);
  node.Kill();
  absl::Status status;
  // Acquiring a leased chunk needs no daemon, so it succeeds until the client sees the daemon's
  // end.
  while (status.ok()) status = client->leases()->Acquire({Nth(*range, 0)}, Access::kWrite);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(std::string(status.message()).find("the memtide daemon ended"), std::string::npos)
      << status;
  EXPECT_TRUE(absl::IsUnavailable(client->leases()->Acquire({Nth(*range, 1)}, Access::kRead)));
  EXPECT_EQ(CountWrong(client.get(), *range, 0, 1), 0u);
}

TEST(ClientDaemonTest, TwoSessionsOfAJobTakeTheirShareByRevocation) {
  SmallNode node;
  Client::Options options = OptionsFor(node);
  options.job.set_job_name("two");
  const std::unique_ptr<Client> first = OpenClient(options);
  const std::unique_ptr<Client> second = OpenClient(options);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  const auto mine = first->leases()->Allocate(32, ChunkKind::kParameter);
  const auto theirs = second->leases()->Allocate(32, ChunkKind::kParameter);
  ASSERT_TRUE(mine.ok() && theirs.ok());
  for (uint32_t n = 0; n < 32; ++n) {
    Write(first.get(), *mine, n, 1);
    Write(second.get(), *theirs, n, 2);
  }
  for (uint32_t n = 0; n < 32; ++n) {
    EXPECT_EQ(CountWrong(first.get(), *mine, n, 1), 0u);
    EXPECT_EQ(CountWrong(second.get(), *theirs, n, 2), 0u);
  }
}

TEST(ClientDaemonTest, TheNodeIsDescribedInJson) {
  SmallNode node;
  NodeInspectionOptions options;
  options.socket_dir = node.socket_dir();
  const auto json = InspectNodeAsJson(options);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_NE(json->find("\"capacity_bytes\""), std::string::npos) << *json;
  EXPECT_NE(json->find("\"transfers_in_flight\":0"), std::string::npos) << *json;
}

}  // namespace
}  // namespace memtide::client
