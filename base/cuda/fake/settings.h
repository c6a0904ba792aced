// What the environment says of the fake GPUs. Value types. Text that cannot be read ends the
// process: a test that means something else than it says must not pass.
#ifndef MEMTIDE_BASE_CUDA_FAKE_SETTINGS_H_
#define MEMTIDE_BASE_CUDA_FAKE_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/cuda/cuda.h"

namespace memtide::fake_cuda {

enum class Driver { kUsable, kOld, kNone, kNoUvm };

struct Settings {
  std::string directory;  // Empty: one of this process.
  Bytes memory = GiB(1);  // Of each device.
  int devices = 1;
  std::string name = "Fake GPU";
  Driver driver = Driver::kUsable;
  bool descriptors = true, legacy_ipc = true;
  Duration delay = std::chrono::microseconds(200);
};

struct Fault {
  std::string name;   // "*": any.
  uint64_t call = 0;  // Of that name in this process, from 1.
  cudaError_t code = cudaSuccess;
};

// REQUIRES (all): `text` may be null, which is nothing said.
Settings ReadSettings(const char* text);
std::vector<Fault> ReadFaults(const char* text);
// Which devices CUDA_VISIBLE_DEVICES leaves, in its order: up to the first that is not there.
std::vector<int> VisibleDevices(const char* text, int devices);

CudaUuid UuidOf(int device);

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_SETTINGS_H_
