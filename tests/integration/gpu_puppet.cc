// A training process that tests control by lines on standard input, and kill. It opens a job on the
// GPU's memory (gpu_puppet SOCKET_DIR JOB_NAME [DEVICE]), prints "ready", and answers each line by
// one: a result, "ok", or the error. Chunks are named by their number; 0 is the first allocated. On
// a device that is named the job has kGpuSlots slots, and it lingers if it has a name.
//
//   allocate COUNT | acquire FIRST COUNT | read FIRST COUNT | fill FIRST COUNT STAMP |
//   wrong FIRST COUNT STAMP | release FIRST COUNT | ids FIRST COUNT | attach COUNT ID... | hangup |
//   memset FIRST COUNT | close
//
// acquire is for writing, and read for reading. attach takes the place of allocate in a job that is
// resumed, with what ids has printed.
// fill, wrong and memset need acquired chunks; wrong prints the number of pages without fill's
// value. After hangup the session has ended for the daemon, as when the kernel has closed a killed
// process's sockets. memset is a kernel that runs then.
#include <sys/socket.h>

#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "tests/integration/gpu_node.h"

namespace memtide::client {
namespace {

std::string Say(const absl::Status& status) { return status.ok() ? "ok" : status.ToString(); }

// The session's socket is the only one that transmits packets.
std::string HangUp() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    int type = 0;
    socklen_t size = sizeof(type);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) continue;
    return shutdown(fd, SHUT_RDWR) == 0 ? "ok" : "shutdown failed";
  }
  return "no session";
}

std::string Memset(Client* client, const std::vector<PlaceId>& places) {
  if (!UseGpu(0).ok()) return "no GPU";
  for (const PlaceId place : places) {
    const CUdeviceptr address = fake_cuda::DeviceAddress(client->address(place));
    if (cuMemsetD8Async(address, 0xee, kGpuChunk.count(), nullptr) != CUDA_SUCCESS) return "failed";
  }
  return cuCtxSynchronize() == CUDA_SUCCESS ? "ok" : "failed";
}

std::string Ids(Client* client, PlaceRange range) {
  const auto ids = client->leases()->ChunkIds(range);
  if (!ids.ok()) return Say(ids.status());
  std::string text = std::to_string(ids->size());
  for (const ChunkId id : *ids) text += " " + std::to_string(id.value());
  return text;
}

std::string Attach(Client* client, PlaceRange* range, uint32_t count, std::istream* words) {
  std::vector<ChunkId> ids(count);
  for (ChunkId& id : ids) {
    uint64_t value = 0;
    *words >> value;
    id = ChunkId(value);
  }
  const auto attached = client->leases()->Attach(ids);
  if (attached.ok()) *range = *attached;
  return Say(attached.status());
}

std::string Obey(Client* client, PlaceRange* range, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  uint32_t first = 0, count = 0;
  uint64_t stamp = 0;
  words >> verb >> first;
  if (verb == "attach") return Attach(client, range, first, &words);
  words >> count >> stamp;
  if (verb == "allocate") {
    const auto allocated = client->leases()->Allocate(first, ChunkKind::kParameter);
    if (allocated.ok()) *range = *allocated;
    return Say(allocated.status());
  }
  const std::vector<PlaceId> places = Places(*range, first, count);
  if (verb == "acquire") return Say(client->leases()->Acquire(places, Access::kWrite));
  if (verb == "read") return Say(client->leases()->Acquire(places, Access::kRead));
  if (verb == "ids") return Ids(client, {range->first, first + count});
  if (verb == "release") return Say(client->leases()->EndUse(places));
  if (verb == "wrong") return std::to_string(CountWrong(client, places, stamp));
  if (verb == "hangup") return HangUp();
  if (verb == "memset") return Memset(client, places);
  if (verb != "fill") return "unknown: " + verb;
  Fill(client, places, stamp);
  return "ok";
}

int Main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  Client::Options options;
  options.daemon = {argv[1], "gpu_puppet"};
  options.job.set_job_name(argv[2]);
  options.job.set_chunk_size_bytes(kGpuChunk.count());
  if (argc == 4) {
    options.job.set_device_number(static_cast<uint32_t>(std::stoul(argv[3])));
    options.job.set_device_share_bytes((kGpuChunk * kGpuSlots).count());
    options.job.set_elastic(true);
    if (*argv[2] != 0) options.job.mutable_time_to_live()->set_seconds(600);
  }
  auto client = Client::Open(options);
  std::cout << (client.ok() ? "ready" : client.status().ToString()) << std::endl;
  if (!client.ok()) return 1;
  PlaceRange range;
  for (std::string line; std::getline(std::cin, line) && line != "close";) {
    std::cout << Obey(client->get(), &range, line) << std::endl;
  }
  client->reset();
  std::cout << "ok" << std::endl;
  return 0;
}

}  // namespace
}  // namespace memtide::client

int main(int argc, char** argv) { return memtide::client::Main(argc, argv); }
