// The primary contexts that this process keeps.
#include <map>

#include "absl/strings/str_cat.h"
#include "base/cuda/cuda.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

struct RetainedContexts {
  Mutex mutex;
  std::map<int, CUcontext> contexts ABSL_GUARDED_BY(mutex);  // By the GPU's ordinal.
};

RetainedContexts& TheRetained() {
  // tidy(raw-new): never freed, because threads use it until the process exits.
  static RetainedContexts& retained = *new RetainedContexts();
  return retained;
}

absl::StatusOr<CUcontext> Retain(const CudaDriver& driver, int ordinal) {
  RetainedContexts& retained = TheRetained();
  {
    const MutexLock lock(&retained.mutex);
    const auto found = retained.contexts.find(ordinal);
    if (found != retained.contexts.end()) return found->second;
  }
  CUcontext context = nullptr;
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver.DevicePrimaryCtxRetain(&context, ordinal),
                                     absl::StrCat("making a context on GPU ", ordinal)));
  bool first = false;
  {
    const MutexLock lock(&retained.mutex);
    first = retained.contexts.emplace(ordinal, context).second;
  }
  // Another thread has retained the same context meanwhile, and one reference is kept.
  if (!first) driver.DevicePrimaryCtxRelease(ordinal);
  return context;
}

}  // namespace

absl::Status UseGpu(int ordinal) {
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  MEMTIDE_ASSIGN_OR_RETURN(const CUcontext context, Retain(*driver, ordinal));
  return CudaStatus(driver->CtxSetCurrent(context),
                    absl::StrCat("using the context of GPU ", ordinal));
}

absl::Status ResetGpu(int ordinal) {
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  MEMTIDE_RETURN_IF_ERROR(
      CudaStatus(driver->DevicePrimaryCtxReset(ordinal), absl::StrCat("resetting GPU ", ordinal)));
  bool was_retained = false;
  {
    RetainedContexts& retained = TheRetained();
    const MutexLock lock(&retained.mutex);
    was_retained = retained.contexts.erase(ordinal) > 0;
  }
  // A reset keeps the references, and only a context that is retained again works.
  if (!was_retained) return absl::OkStatus();
  return CudaStatus(driver->DevicePrimaryCtxRelease(ordinal),
                    absl::StrCat("releasing the context of GPU ", ordinal));
}

}  // namespace memtide
