// A process that lost its session, and still has the job's memory mapped, writes on.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/integration/daemon_process.h"
#include "tests/integration/service_manager.h"

namespace memtide {
namespace {

constexpr size_t kChunkBytes = 2 << 20;

// A session of the job "job" that maps each region, as a training process does, and never renews.
class Writer {
 public:
  explicit Writer(const std::string& socket_dir) : session_(socket_dir) {
    v1::OpenRequest request;
    request.set_job_name("job");
    request.set_chunk_size_bytes(kChunkBytes);
    request.set_host_share_bytes(8 << 20);
    request.set_ssd_share_bytes(16 << 20);
    request.mutable_time_to_live()->set_seconds(3600);
    v1::OpenResponse response;
    const grpc::Status status =
        session_.sessions().Open(session_.Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    for (int i = 0; i < response.region_ids_size(); ++i) Map();
  }
  ~Writer() {
    for (const auto& [region, memory] : regions_) munmap(memory.first, memory.second);
  }

  uint64_t Allocate() { return session_.Allocate(1).at(0); }
  // Leases the chunk, and returns where it is mapped.
  char* Lease(uint64_t chunk, v1::Access access) {
    v1::FetchRequest request;
    request.set_tier(v1::TIER_HOST);
    request.set_access(access);
    request.add_chunk_ids(chunk);
    v1::FetchResponse response;
    const grpc::Status status =
        session_.chunks().Fetch(session_.Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (!status.ok()) return nullptr;
    const v1::Lease& lease = response.leases(0);
    return regions_.at(lease.region_id()).first + lease.offset_bytes();
  }
  void Release(uint64_t chunk) {
    v1::ReleaseRequest request;
    request.set_request_id(next_request_++);
    request.add_chunk_ids(chunk);
    v1::ReleaseResponse response;
    EXPECT_TRUE(session_.chunks().Release(session_.Context().get(), request, &response).ok());
  }
  void AwaitEnd() {
    while (session_.Receive().frame_case() != v1::FdFrame::FRAME_NOT_SET) {
    }
  }

 private:
  void Map() {
    int descriptor = -1;
    const v1::FdRegion region = session_.Receive(&descriptor).region();
    void* const data =
        mmap(nullptr, region.size_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    EXPECT_NE(data, MAP_FAILED);
    close(descriptor);
    regions_[region.region_id()] = {static_cast<char*>(data), region.size_bytes()};
  }

  Session session_;
  std::map<uint32_t, std::pair<char*, size_t>> regions_;
  uint64_t next_request_ = 1000;
};

class LateWriterTest : public testing::Test {
 protected:
  void Start() {
    daemon_ = manager_.Start({"--socket-dir=" + sockets_, "--ssd-dir=" + directory_.path() + "/d",
                              "--device=none", "--host-pool=16MiB", "--ssd-pool=64MiB",
                              "--metrics-address=off", "--session-lease=1s"});
    ASSERT_TRUE(daemon_->WaitUntilReady()) << daemon_->log();
  }
  // The job is joined again and written again, before the old process goes on where it was.
  void WriteAgain(uint64_t chunk, char* late) {
    Writer next(sockets_);
    char* const data = next.Lease(chunk, v1::ACCESS_WRITE);
    ASSERT_NE(data, nullptr);
    std::memset(data, 'b', kChunkBytes);
    std::memset(late, 'z', kChunkBytes);
    EXPECT_EQ(std::string(data, kChunkBytes), std::string(kChunkBytes, 'b'));
  }

  ScratchDirectory directory_;
  const std::string sockets_ = directory_.path() + "/s";
  ServiceManager manager_{directory_.path()};
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(LateWriterTest, OfASessionThatWasNotRenewedChangesNothing) {
  Start();
  Writer late(sockets_);
  const uint64_t chunk = late.Allocate(), whole = late.Allocate();
  std::memset(late.Lease(whole, v1::ACCESS_WRITE), 'w', kChunkBytes);
  late.Release(whole);
  char* const data = late.Lease(chunk, v1::ACCESS_WRITE);
  late.AwaitEnd();
  WriteAgain(chunk, data);
  Writer next(sockets_);
  EXPECT_EQ(std::string(next.Lease(whole, v1::ACCESS_READ), kChunkBytes),
            std::string(kChunkBytes, 'w'));
}

TEST_F(LateWriterTest, OfADaemonThatDiedChangesNothing) {
  Start();
  Writer late(sockets_);
  const uint64_t chunk = late.Allocate();
  char* const data = late.Lease(chunk, v1::ACCESS_WRITE);
  daemon_->Signal(SIGKILL);
  daemon_->Wait();
  Start();
  WriteAgain(chunk, data);
}

}  // namespace
}  // namespace memtide
