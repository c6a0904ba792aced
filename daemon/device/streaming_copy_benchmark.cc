// Holds StreamCopy to memcpy (at least 1.3 times as fast on CPUs with a large cache) and each of
// its kernels to the others.
//
//   bazel run -c opt //daemon/device:streaming_copy_benchmark
//
// A pass copies 1 GiB in chunks, so that nothing is in a cache; the ways are run in turn.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/shared_memory.h"
#include "daemon/device/streaming_copy.h"

namespace memtide {
namespace {

constexpr Bytes kPool = MiB(512);
constexpr Bytes kChunk = MiB(16);
constexpr int kRounds = 7;

struct Way {
  std::string name;
  std::function<void(char* to, const char* from, Bytes size)> copy;
  std::vector<double> gigabytes_per_second;
};

double Pass(const Way& way, const SharedMemory& to, const SharedMemory& from) {
  const Instant start = Now();
  for (Bytes offset; offset < kPool; offset += kChunk) {
    way.copy(to.data() + offset.count(), from.data() + offset.count(), kChunk);
  }
  return kPool.count() / 1e9 / std::chrono::duration<double>(Now() - start).count();
}

void Run() {
  absl::StatusOr<SharedMemory> to = SharedMemory::Create("to", kPool);
  absl::StatusOr<SharedMemory> from = SharedMemory::Create("from", kPool);
  MEMTIDE_CHECK(to.ok() && from.ok()) << to.status() << from.status();
  std::vector<Way> ways = {
      {"memcpy", [](char* a, const char* b, Bytes size) { memcpy(a, b, size.count()); }, {}},
      {"StreamCopy", StreamCopy, {}},
      {"memset", [](char* a, const char*, Bytes size) { memset(a, 0, size.count()); }, {}},
      {"StreamZero", [](char* a, const char*, Bytes size) { StreamZero(a, size); }, {}},
  };
  for (const StreamingKernel& kernel : StreamingKernels()) {
    if (!kernel.supported) continue;
    ways.push_back(
        {kernel.name,
         [copy = kernel.copy](char* a, const char* b, Bytes size) { copy(a, b, size.count()); },
         {}});
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Way& way : ways) way.gigabytes_per_second.push_back(Pass(way, *to, *from));
  }
  for (Way& way : ways) {
    std::sort(way.gigabytes_per_second.begin(), way.gigabytes_per_second.end());
    std::printf("%-10s  %5.2f GB/s\n", way.name.c_str(), way.gigabytes_per_second[kRounds / 2]);
  }
}

}  // namespace
}  // namespace memtide

int main() { memtide::Run(); }
