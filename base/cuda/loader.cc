#include "base/cuda/loader.h"

#include "absl/strings/str_cat.h"

namespace memtide {

absl::Status NoCudaDriver(const char* why) {
  return absl::NotFoundError(absl::StrCat("there is no NVIDIA driver (", why,
                                          "): see whether nvidia-smi works. A container needs the "
                                          "driver's libraries too"));
}

absl::Status CudaDriverTooOld(int version) {
  const std::string is = version > 0 ? absl::StrCat(" is one of CUDA ", version / 1000, ".",
                                                    version % 1000 / 10, " and")
                                     : std::string();
  return absl::FailedPreconditionError(
      absl::StrCat("the NVIDIA driver", is, " is too old: memtide needs driver ", kOldestDriver,
                   " (CUDA ", kOldestCuda / 1000, ".", kOldestCuda % 1000 / 10,
                   ") or later. nvidia-smi shows which it is"));
}

}  // namespace memtide
