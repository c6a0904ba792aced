// GpuNode: a real daemon that lends a GPU's memory, on a GPU that is played (base/cuda/fake); and
// what the tests of it share. A test has a static SharedFakeCuda, whose GPU daemon, test and
// children find. For tests, from one thread.
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
// The device pool of a GpuNode has so many slots of kGpuChunk, as the host pool has; and that many
// of them may be in use at once.
constexpr uint32_t kGpuSlots = 8;
constexpr uint32_t kGpuUses = 6;

class GpuNode {
 public:
  // Of which device (--device), and with more variables ("NAME=value") for the daemon.
  explicit GpuNode(const std::string& device = "cuda",
                   const std::vector<std::string>& environment = {});
  // Ends it, which must end well, unless that was done.
  ~GpuNode();
  GpuNode(const GpuNode&) = delete;
  GpuNode& operator=(const GpuNode&) = delete;

  std::string socket_dir() const { return directory_.path() + "/s"; }
  v1::InspectNodeResponse Inspect();
  // Inspects until no session, job or scrubbing is left.
  v1::InspectNodeResponse InspectUntilIdle();
  // Ends the daemon by SIGTERM, and returns all that it has logged.
  std::string End();
  void Kill();

 private:
  ScratchDirectory directory_;
  DaemonProcess daemon_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
  bool ended_ = false;
};

// For a job on the node with chunks of kGpuChunk.
Client::Options GpuJob(const GpuNode& node, const std::string& job_name = "");
// Null, and a failure of the test, where it cannot be opened.
std::unique_ptr<Client> OpenClient(const Client::Options& options);

// Places first, first + 1, ... of a range.
std::vector<PlaceId> Places(PlaceRange range, uint32_t first, uint32_t count);
// Every 4 KiB of the chunks get a value of their own, which `stamp` is part of. REQUIRES: acquired.
void Fill(Client* client, const std::vector<PlaceId>& places, uint64_t stamp);
// How many of those values are not there.
uint64_t CountWrong(Client* client, const std::vector<PlaceId>& places, uint64_t stamp);
// The same with acquiring before and releasing after, one chunk at a time.
void FillEach(Client* client, const std::vector<PlaceId>& places, uint64_t stamp);
uint64_t CountWrongEach(Client* client, const std::vector<PlaceId>& places, uint64_t stamp);

// What cudaMemGetInfo says is free.
Bytes FreeGpuMemory();
// Looks until so much is free, or too long: for memory of processes that were killed, which the
// kernel takes apart in its own order.
Bytes FreeGpuMemoryOnce(Bytes expected);

}  // namespace memtide::client

#endif  // MEMTIDE_TESTS_INTEGRATION_GPU_NODE_H_
