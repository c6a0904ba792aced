// The questions that gpu_probe asks of a GPU, and the parts that its children play.
#ifndef MEMTIDE_BENCH_GPU_PROBES_H_
#define MEMTIDE_BENCH_GPU_PROBES_H_

namespace memtide::bench {

// sharing.cc
void ProbeExportWithoutContext();
void ProbeReleaseWhileMapped();
void ProbeExporterDeath();
void ProbeLockedDown();
void ProbeReset();
int PlayImporter(int socket);
int PlayExporter(int socket);
int PlayLockedDown(int socket);

// mapping.cc
void ProbeMapping();
void ProbeFences();

// host.cc
void ProbeHostMemory();
int PlayRegistrar(int socket);

// copies.cc
void ProbeCopies();

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_PROBES_H_
