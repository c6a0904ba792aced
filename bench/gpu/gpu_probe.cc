// Tests the properties of a GPU that memtide's design relies on, and measures its copies.
//
//   gpu_probe QUESTION     runs one of the probes below
//   gpu_probe --list       prints their names, one on each line
//   gpu_probe --uuid       prints the UUID of the GPU that they are about, and makes no context
//
// A run makes one probe, since some probes end the process's CUDA context. Answers are lines of
// JSON on standard output. An error goes to standard error, and the exit status is then 1.
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/types/optional.h"
#include "base/cuda/cuda.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "daemon/device/open_cuda.h"

namespace memtide::bench {
namespace {

struct Question {
  const char* name;
  void (*ask)();
};
constexpr Question kQuestions[] = {
    {"export", ProbeExportWithoutContext},
    {"release", ProbeReleaseWhileMapped},
    {"exporter-death", ProbeExporterDeath},
    {"mapping", ProbeMapping},
    {"upgrade-in-use", ProbeUpgradeInUse},
    {"unmap-in-use", ProbeUnmapInUse},
    {"remap", ProbeRemap},
    {"fences", ProbeFences},
    {"fenced-streams", ProbeFencedStreams},
    {"overlap", ProbeOverlap},
    {"fault", ProbeFault},
    {"quiet", ProbeQuiet},
    {"contexts", ProbeContexts},
    {"host-memory", ProbeHostMemory},
    {"pinning", ProbePinning},
    {"locked-down", ProbeLockedDown},
    {"reset", ProbeReset},
    {"copies", ProbeCopies},
};

struct Part {
  const char* name;
  int (*play)(const std::string& argument, int socket);
};
constexpr Part kParts[] = {
    {"importer", PlayImporter}, {"exporter", PlayExporter},      {"registrar", PlayRegistrar},
    {"copier", PlayCopier},     {"faulter", PlayFaulter},        {"writer", PlayWriter},
    {"idler", PlayIdler},       {"locked-down", PlayLockedDown},
};

int Main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const Question& question : kQuestions) std::puts(question.name);
    return 0;
  }
  if (argc == 2 && std::strcmp(argv[1], "--uuid") == 0) {
    const absl::StatusOr<std::vector<CudaDeviceFacts>> devices = CudaDevices();
    OrDie(devices.status());
    std::puts(devices->front().FormatUuid().c_str());
    return 0;
  }
  // The daemon's device has a process of its own, which is this program with two arguments.
  const absl::optional<int> status =
      argc == 3 ? RunGpuProcess(argv[1], argv[2]) : absl::optional<int>();
  if (status) return *status;
  for (const Question& question : kQuestions) {
    if (argc != 2 || std::strcmp(argv[1], question.name) != 0) continue;
    question.ask();
    return 0;
  }
  // This process is a Child of a probe (child.h).
  for (const Part& part : kParts) {
    int socket = -1;
    if (argc == 4 && std::strcmp(argv[1], part.name) == 0 && absl::SimpleAtoi(argv[3], &socket)) {
      return part.play(argv[2], socket);
    }
  }
  std::fprintf(stderr, "gpu_probe: expected one of the names that gpu_probe --list prints\n");
  return 2;
}

}  // namespace
}  // namespace memtide::bench

int main(int argc, char** argv) { return memtide::bench::Main(argc, argv); }
