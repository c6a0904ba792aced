// GpuNode: a real daemon on a fake GPU (base/cuda/fake), and functions that its tests share. A test
// has a static SharedFakeCuda; the daemon, the test and its child processes use that GPU. Not
// thread-safe.
#ifndef MEMTIDE_TESTS_INTEGRATION_GPU_NODE_H_
#define MEMTIDE_TESTS_INTEGRATION_GPU_NODE_H_

#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "client/client.h"
#include "tests/integration/daemon_process.h"

namespace memtide::client {

constexpr Bytes kGpuChunk = MiB(2);
// A GpuNode's device pool and its host pool have kGpuSlots slots of kGpuChunk each by default. At
// most kGpuUses chunks may be in use at once.
constexpr uint32_t kGpuSlots = 8;
constexpr uint32_t kGpuUses = 6;

class GpuNode {
 public:
  // Starts a daemon with --device=`device` and more environment variables ("NAME=value").
  explicit GpuNode(const std::string& device = "cuda",
                   const std::vector<std::string>& environment = {},
                   Bytes device_pool = kGpuChunk * kGpuSlots);
  // Calls End unless that was done.
  ~GpuNode();
  GpuNode(const GpuNode&) = delete;
  GpuNode& operator=(const GpuNode&) = delete;

  std::string socket_dir() const { return directory_.path() + "/s"; }
  v1::InspectNodeResponse Inspect();
  // Inspects the node until it has no session, job or scrubbing left.
  v1::InspectNodeResponse InspectUntilIdle();
  // Ends the daemon by SIGTERM, expects status 0, and returns its log.
  std::string End();
  void Kill();

 private:
  ScratchDirectory directory_;
  DaemonProcess daemon_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
  bool ended_ = false;
};

// The options of a job on the node with chunks of kGpuChunk.
Client::Options GpuJob(const GpuNode& node, const std::string& job_name = "");
// Opens a client. If that fails, the test fails, and the result is null.
std::unique_ptr<Client> OpenClient(const Client::Options& options);

// Places first, first + 1, ... of a range.
std::vector<PlaceId> Places(PlaceRange range, uint32_t first, uint32_t count);
// Writes a value to each 4 KiB page of the chunks, which depends on `stamp`, place and page.
// REQUIRES: the chunks are acquired.
void Fill(Client* client, const std::vector<PlaceId>& places, uint64_t stamp);
// The number of pages that do not have the value of Fill.
uint64_t CountWrong(Client* client, const std::vector<PlaceId>& places, uint64_t stamp);
// Acquires, fills and releases one chunk at a time.
void FillEach(Client* client, const std::vector<PlaceId>& places, uint64_t stamp);
uint64_t CountWrongEach(Client* client, const std::vector<PlaceId>& places, uint64_t stamp);

// The free memory of the GPU by cuMemGetInfo.
Bytes FreeGpuMemory();
// Waits until `expected` is free, or a deadline has passed, and returns the free memory. The kernel
// frees memory of killed processes some time after their end.
Bytes FreeGpuMemoryOnce(Bytes expected);

}  // namespace memtide::client

#endif  // MEMTIDE_TESTS_INTEGRATION_GPU_NODE_H_
