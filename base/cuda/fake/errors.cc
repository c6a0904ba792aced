// Names and texts of the errors that the fake or its tests use, equal to those of the runtime.
#include "base/cuda/cuda.h"

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define MEMTIDE_NAME(name) \
  case name:               \
    return #name;
    MEMTIDE_NAME(cudaSuccess)
    MEMTIDE_NAME(cudaErrorInvalidValue)
    MEMTIDE_NAME(cudaErrorMemoryAllocation)
    MEMTIDE_NAME(cudaErrorInitializationError)
    MEMTIDE_NAME(cudaErrorInsufficientDriver)
    MEMTIDE_NAME(cudaErrorNoDevice)
    MEMTIDE_NAME(cudaErrorInvalidDevice)
    MEMTIDE_NAME(cudaErrorDeviceUninitialized)
    MEMTIDE_NAME(cudaErrorMapBufferObjectFailed)
    MEMTIDE_NAME(cudaErrorECCUncorrectable)
    MEMTIDE_NAME(cudaErrorOperatingSystem)
    MEMTIDE_NAME(cudaErrorInvalidResourceHandle)
    MEMTIDE_NAME(cudaErrorNotReady)
    MEMTIDE_NAME(cudaErrorIllegalAddress)
    MEMTIDE_NAME(cudaErrorHostMemoryAlreadyRegistered)
    MEMTIDE_NAME(cudaErrorHostMemoryNotRegistered)
    MEMTIDE_NAME(cudaErrorLaunchFailure)
    MEMTIDE_NAME(cudaErrorNotSupported)
    MEMTIDE_NAME(cudaErrorUnknown)
#undef MEMTIDE_NAME
    default:
      return "unrecognized error code";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorUnknown:
      return "unknown error";
    default:
      return cudaGetErrorName(error);
  }
}

}  // extern "C"
