// The NVIDIA driver's library, opened when CUDA is first used.
#include <dlfcn.h>

#include "base/cuda/loader.h"

namespace memtide {

absl::StatusOr<CuGetProcAddress> FindCuGetProcAddress() {
  // The loader finds it by its name wherever the driver is installed, under WSL2 as well. It is
  // never closed, because the functions that were found in it are used until the process ends.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NoCudaDriver(dlerror());
  if (void* const found = dlsym(library, "cuGetProcAddress_v2")) {
    return reinterpret_cast<CuGetProcAddress>(found);
  }
  // Drivers before CUDA 12.0 have only an older form of cuGetProcAddress.
  int version = 0;
  if (void* const found = dlsym(library, "cuDriverGetVersion")) {
    reinterpret_cast<decltype(&cuDriverGetVersion)>(found)(&version);
  }
  dlclose(library);
  return CudaDriverTooOld(version);
}

}  // namespace memtide
