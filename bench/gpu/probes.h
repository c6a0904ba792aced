// The probes of gpu_probe, and the functions that its child processes run.
#ifndef MEMTIDE_BENCH_GPU_PROBES_H_
#define MEMTIDE_BENCH_GPU_PROBES_H_

#include <cstdlib>
#include <string>

namespace memtide::bench {

// An amount of work: `full`, or `quick` if GPU_PROBE_QUICK is set, which gpu-check does on a fake
// GPU. A quick probe shows that it runs, and its figures mean nothing.
template <typename Amount>
Amount Scaled(Amount full, Amount quick) {
  return std::getenv("GPU_PROBE_QUICK") == nullptr ? full : quick;
}

// sharing.cc
void ProbeExportWithoutContext();
void ProbeReleaseWhileMapped();
void ProbeExporterDeath();
void ProbeLockedDown();
void ProbeReset();
int PlayImporter(const std::string& argument, int socket);
int PlayExporter(const std::string& argument, int socket);
int PlayLockedDown(const std::string& argument, int socket);

// mapping.cc
void ProbeMapping();

// in_use.cc
void ProbeUpgradeInUse();
void ProbeUnmapInUse();

// fences.cc
void ProbeFences();
void ProbeFencedStreams();

// overlap.cc
void ProbeOverlap();
void ProbeRemap();

// copier.cc
int PlayCopier(const std::string& argument, int socket);

// faults.cc
void ProbeFault();
void ProbeQuiet();
void ProbeContexts();
int PlayFaulter(const std::string& argument, int socket);
int PlayWriter(const std::string& argument, int socket);
int PlayIdler(const std::string& argument, int socket);

// host.cc
void ProbeHostMemory();
void ProbePinning();
int PlayRegistrar(const std::string& argument, int socket);

// copies.cc
void ProbeCopies();

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_PROBES_H_
