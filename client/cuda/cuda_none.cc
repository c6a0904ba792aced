// The functions of cuda_space.h in builds without the CUDA toolkit.
#include "client/cuda/cuda_space.h"

namespace memtide::client {
namespace {

absl::Status WithoutCuda() {
  return absl::UnimplementedError(
      "the daemon lends memory of a GPU, but this libmemtide was built without CUDA: build it "
      "where the CUDA toolkit is (CUDA_HOME), or run the daemon with --device=none");
}

}  // namespace

absl::StatusOr<std::unique_ptr<AddressSpace>> ReserveCudaSpace(const AddressSpace::Options& options,
                                                               const std::string& uuid) {
  return WithoutCuda();
}

absl::StatusOr<std::string> CudaDeviceUuid(uint32_t ordinal) { return WithoutCuda(); }

absl::StatusOr<std::unique_ptr<AddressSpace>> OpenCudaPointers(const AddressSpace::Options& options,
                                                               const std::string& uuid) {
  return WithoutCuda();
}

}  // namespace memtide::client
