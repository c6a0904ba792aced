// The probes of gpu_probe, and the functions that its child processes run.
#ifndef MEMTIDE_BENCH_GPU_PROBES_H_
#define MEMTIDE_BENCH_GPU_PROBES_H_

#include <string>

namespace memtide::bench {

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
void ProbeFences();
void ProbeBusy();

// host.cc
void ProbeHostMemory();
int PlayRegistrar(const std::string& argument, int socket);

// copies.cc
void ProbeCopies();

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_PROBES_H_
