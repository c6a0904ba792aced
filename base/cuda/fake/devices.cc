// The runtime's functions about devices and versions.
#include <algorithm>
#include <cstring>

#include "base/cuda/fake/process.h"

using memtide::Bytes;
using memtide::CudaUuid;
using memtide::fake_cuda::Call;
using memtide::fake_cuda::Driver;
using memtide::fake_cuda::Process;
using memtide::fake_cuda::Return;
using memtide::fake_cuda::t_has_context;
using memtide::fake_cuda::t_last_error;
using memtide::fake_cuda::t_ordinal;
using memtide::fake_cuda::TheProcess;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  Process& process = TheProcess();
  Call call(&process, "cudaGetDeviceCount");
  *count = 0;
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  *count = static_cast<int>(process.visible.size());
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  Process& process = TheProcess();
  Call call(&process, "cudaGetDeviceProperties");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  if (ordinal < 0 || ordinal >= static_cast<int>(process.visible.size())) {
    return Return(cudaErrorInvalidDevice);
  }
  std::memset(properties, 0, sizeof(*properties));
  const std::string& name = process.settings.name;
  std::memcpy(properties->name, name.data(), std::min(name.size(), sizeof(properties->name) - 1));
  const CudaUuid uuid = memtide::fake_cuda::UuidOf(process.visible[ordinal]);
  std::memcpy(properties->uuid.bytes, uuid.data(), uuid.size());
  properties->totalGlobalMem = process.settings.memory.count();
  properties->ipcEventSupported = process.settings.legacy_ipc ? 1 : 0;
  properties->unifiedAddressing = 1;
  properties->asyncEngineCount = 2;
  properties->major = 8;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal) {
  Process& process = TheProcess();
  Call call(&process, "cudaSetDevice");
  if (ordinal < 0 || ordinal >= static_cast<int>(process.visible.size())) {
    return Return(call.refusal() != cudaSuccess ? call.refusal() : cudaErrorInvalidDevice);
  }
  // The device is selected even if its context is broken; the error is returned.
  t_ordinal = ordinal;
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  t_has_context = true;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* ordinal) {
  Process& process = TheProcess();
  Call call(&process, "cudaGetDevice");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  *ordinal = t_ordinal;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Process& process = TheProcess();
  Call call(&process, "cudaMemGetInfo");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  t_has_context = true;
  const Bytes used =
      memtide::fake_cuda::UsedMemory(process.directory, process.visible.at(t_ordinal));
  *total = process.settings.memory.count();
  *free = *total - used.count();
  return cudaSuccess;
}

// These four functions cannot fail, and are not counted.
cudaError_t cudaDriverGetVersion(int* version) {
  const Driver driver = TheProcess().settings.driver;
  *version = driver == Driver::kNone ? 0 : driver == Driver::kOld ? 11010 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaPeekAtLastError() { return t_last_error; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = t_last_error;
  t_last_error = cudaSuccess;
  return error;
}

}  // extern "C"
