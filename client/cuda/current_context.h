// CurrentCudaContext: makes a context the current one of the calling thread until destroyed.
//
// It uses the driver's context stack, which restores what was current before, also if that was
// none.
#ifndef MEMTIDE_CLIENT_CUDA_CURRENT_CONTEXT_H_
#define MEMTIDE_CLIENT_CUDA_CURRENT_CONTEXT_H_

#include "absl/status/status.h"
#include "base/cuda/cuda.h"

namespace memtide::client {

class CurrentCudaContext {
 public:
  CurrentCudaContext(const CudaDriver& driver, CUcontext context)
      : driver_(driver),
        status_(CudaStatus(driver.CtxPushCurrent(context), "entering the context")) {}
  ~CurrentCudaContext() {
    CUcontext popped = nullptr;
    if (status_.ok()) driver_.CtxPopCurrent(&popped);
  }
  CurrentCudaContext(const CurrentCudaContext&) = delete;
  CurrentCudaContext& operator=(const CurrentCudaContext&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  const absl::Status status_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CUDA_CURRENT_CONTEXT_H_
