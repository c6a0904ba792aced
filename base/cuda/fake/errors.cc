// Names and texts of the errors that the fake or its tests use, equal to those of the driver.
#include "base/cuda/cuda.h"

namespace {

struct Error {
  CUresult code;
  const char* name;
  const char* text;
};

const Error* Find(CUresult code) {
#define MEMTIDE_ERROR(code, text) \
  { code, #code, text }
  static constexpr Error kErrors[] = {
      MEMTIDE_ERROR(CUDA_SUCCESS, "no error"),
      MEMTIDE_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
      MEMTIDE_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
      MEMTIDE_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
      MEMTIDE_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE,
                    "CUDA-capable device(s) is/are busy or unavailable"),
      MEMTIDE_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
      MEMTIDE_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
      MEMTIDE_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
      MEMTIDE_ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
      MEMTIDE_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
      MEMTIDE_ERROR(CUDA_ERROR_OPERATING_SYSTEM,
                    "OS call failed or operation not supported on this OS"),
      MEMTIDE_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
      MEMTIDE_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
      MEMTIDE_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
      MEMTIDE_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
      MEMTIDE_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                    "part or all of the requested memory range is already mapped"),
      MEMTIDE_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                    "pointer does not correspond to a registered memory region"),
      MEMTIDE_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
      MEMTIDE_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
      MEMTIDE_ERROR(CUDA_ERROR_MPS_CONNECTION_FAILED,
                    "MPS client failed to connect to the MPS control daemon or the MPS server"),
      MEMTIDE_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
  };
#undef MEMTIDE_ERROR
  for (const Error& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

}  // namespace

extern "C" {

CUresult cuGetErrorName(CUresult code, const char** name) {
  const Error* const error = Find(code);
  *name = error == nullptr ? nullptr : error->name;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  const Error* const error = Find(code);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // extern "C"
