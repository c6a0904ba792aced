// Settings and faults of the fake GPUs, parsed from the environment. Value types. Text that cannot
// be parsed ends the process, so that no test passes with other settings than it names.
#ifndef MEMTIDE_BASE_CUDA_FAKE_SETTINGS_H_
#define MEMTIDE_BASE_CUDA_FAKE_SETTINGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/cuda/cuda.h"

namespace memtide::fake_cuda {

enum class Driver { kUsable, kNoContextEvents, kTooOld, kNone, kNoUvm };
// Where torch makes tensors over device memory: on the CPU, which can access it, or on a backend of
// its own (tests/fake_device), whose kernels alone can.
enum class Tensors { kOnCpu, kOnBackend };

struct Settings {
  std::string directory;  // Empty: a private one.
  Bytes memory = GiB(1);  // For each device.
  int devices = 1;
  std::string name = "Fake GPU";
  Driver driver = Driver::kUsable;
  bool descriptors = true, legacy_ipc = true;
  CUcomputemode compute_mode = CU_COMPUTEMODE_DEFAULT;
  bool mps = false, mig = false, coherent = false;
  // Memory of another process can be opened, by descriptor and by legacy handle.
  bool import = true, open_ipc = true;
  bool maps_under_work = true;
  // Work waits where another process is at work.
  bool time_slices = false;
  bool mends = true;  // False: every fault is sticky, and no reset ends it.
  Tensors tensors = Tensors::kOnCpu;
  std::string card;       // The file of the card to play (card.h). Empty: none.
  uint64_t dilation = 1;  // The card's time is dilated by this.
  Duration delay = std::chrono::microseconds(200);
  // How much host memory this process can pin. Zero: any amount.
  Bytes pinned;
  // Rates of each stream's copies from and to host memory, in bytes a second. Zero: as fast as
  // memory allows.
  Bytes pinned_rate, pageable_rate;
  int numa_node = -1;                     // The host's that is closest to each device. -1: unknown.
  std::string pci = "0000:00:00.0";       // The PCI id of each device.
  std::map<std::string, Duration> costs;  // By function: the time that a call of it takes.
};

struct Fault {
  std::string name;   // "*": any function.
  uint64_t call = 0;  // Counted by name in this process, from 1.
  CUresult code = CUDA_SUCCESS;
};

// Parse the environment variables. A null `text` means that the variable is not set.
Settings ReadSettings(const char* text);
std::vector<Fault> ReadFaults(const char* text);
// The devices that CUDA_VISIBLE_DEVICES names, in its order, up to the first that does not exist.
std::vector<int> VisibleDevices(const char* text, const Settings& settings);

// Differs by device and by the shared directory. All processes that name one directory agree on it.
CudaUuid UuidOf(const Settings& settings, int device);

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_SETTINGS_H_
