// How much of several drives' speed one store over all of them has.
//
//   bazel run -c opt //daemon/io:drives_benchmark -- DIRECTORY DIRECTORY... [ROUNDS]
//
// Each round streams 1 GiB of chunks in each direction over each directory alone, then over all of
// them; the medians count. Prints as well what the daemon measures at its start. On one drive, two
// directories of unequal speed are loop devices with limits of blkio or io.max (decision 34).
// Leaves the directories' markers behind.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/shared_memory.h"
#include "daemon/io/open_disk.h"
#include "daemon/io/testing/stream_chunks.h"

namespace memtide {
namespace {

constexpr Bytes kStoreSize = MiB(1024);
constexpr StoreId kStore(1);
using Direction = DiskTransfer::Direction;

// A set of directories, and the speeds of its rounds in GB/s.
struct Case {
  std::vector<std::string> directories;
  std::vector<double> writes, reads;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double GigabytesPerSecond(Disk* disk, const SharedMemory& memory, Direction direction) {
  const Instant start = Now();
  StreamChunks(disk, kStore, kStoreSize, memory, direction);
  return static_cast<double>(kStoreSize.count()) / 1e9 /
         std::chrono::duration<double>(Now() - start).count();
}

void Round(const SharedMemory& memory, Case* of) {
  DiskOptions options;
  options.directories = of->directories;
  const Instant start = Now();
  absl::StatusOr<std::unique_ptr<Disk>> disk = OpenDisk(options);
  MEMTIDE_CHECK(disk.ok()) << disk.status();
  const double opening = std::chrono::duration<double>(Now() - start).count();
  if (of->directories.size() > 1) {
    std::printf("opened in %.2f s:", opening);
    for (const DiskDirectory& directory : (*disk)->Directories()) {
      std::printf("  %s %.3f GB/s, %u stripes", directory.path.c_str(),
                  directory.bytes_per_second / 1e9, directory.stripes);
    }
    std::printf("\n");
  }
  MEMTIDE_CHECK((*disk)->MakeStore(kStore, kStoreSize).ok());
  (*disk)->AddBuffer(memory.data(), memory.size());
  of->writes.push_back(GigabytesPerSecond(disk->get(), memory, Direction::kWrite));
  of->reads.push_back(GigabytesPerSecond(disk->get(), memory, Direction::kRead));
  (*disk)->RemoveBuffer(memory.data());
}

int Run(const std::vector<std::string>& directories, int rounds) {
  const absl::StatusOr<SharedMemory> memory = SharedMemory::Create("benchmark", kStreamedChunk * 4);
  MEMTIDE_CHECK(memory.ok()) << memory.status();
  std::vector<Case> cases;
  for (const std::string& directory : directories) cases.push_back({{directory}, {}, {}});
  cases.push_back({directories, {}, {}});
  for (int round = 0; round < rounds; ++round) {
    for (Case& each : cases) Round(*memory, &each);
  }
  double write_sum = 0, read_sum = 0;
  for (const Case& each : cases) {
    const double write = Median(each.writes), read = Median(each.reads);
    if (each.directories.size() == 1) {
      std::printf("%s: write %.3f GB/s, read %.3f GB/s\n", each.directories[0].c_str(), write,
                  read);
      write_sum += write;
      read_sum += read;
      continue;
    }
    std::printf("all: write %.3f GB/s, %.2f of the sum; read %.3f GB/s, %.2f of the sum\n", write,
                write / write_sum, read, read / read_sum);
  }
  return 0;
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  std::vector<std::string> directories(argv + 1, argv + argc);
  int rounds = 3;
  if (!directories.empty() && absl::SimpleAtoi(directories.back(), &rounds)) {
    directories.pop_back();
  }
  if (directories.size() < 2 || rounds < 1) {
    std::fprintf(stderr, "usage: %s DIRECTORY DIRECTORY... [ROUNDS]\n", argv[0]);
    return 2;
  }
  return memtide::Run(directories, rounds);
}
