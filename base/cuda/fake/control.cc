#include <algorithm>

#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/process.h"
#include "base/cuda/fake/streams.h"

namespace memtide::fake_cuda {

void FailCall(const std::string& name, uint64_t n, int code) {
  Process& process = TheProcess();
  MutexLock lock(&process.mutex);
  process.faults.push_back({name, process.calls[name] + n, static_cast<CUresult>(code)});
}

void ClearFaults() {
  Process& process = TheProcess();
  MutexLock lock(&process.mutex);
  process.faults.clear();
}

uint64_t CallCount(const std::string& name) {
  Process& process = TheProcess();
  MutexLock lock(&process.mutex);
  return process.calls[name];
}

void SetDelay(Duration delay) {
  Process& process = TheProcess();
  MutexLock lock(&process.mutex);
  process.delay = delay;
}

void SetCost(const std::string& name, Duration cost) {
  Process& process = TheProcess();
  MutexLock lock(&process.mutex);
  process.costs[name] = cost;
}

void SetPinnedLimit(Bytes limit) {
  Process& process = TheProcess();
  MutexLock lock(&process.mutex);
  process.pinned_limit = limit;
}

void SetRates(Bytes pinned, Bytes pageable) {
  Process& process = TheProcess();
  MutexLock lock(&process.mutex);
  process.pinned_rate = pinned;
  process.pageable_rate = pageable;
}

Bytes PinnedBytes() {
  Process& process = TheProcess();
  MutexLock lock(&process.mutex);
  return Bytes(process.PinnedBytes());
}

Bytes PageableBytes() {
  Process& process = TheProcess();
  MutexLock lock(&process.mutex);
  return Bytes(process.pageable_bytes);
}

Holdings Held() {
  Process& process = TheProcess();
  MutexLock lock(&process.mutex);
  Holdings held;
  held.handles = process.handles.size();
  held.reservations = process.reservations.size();
  held.mappings = process.mappings.size();
  held.registrations = process.registrations.size();
  // The program neither creates nor destroys the default stream.
  held.streams = process.streams.size() - process.streams.count(nullptr);
  held.events = process.events.size();
  return held;
}

}  // namespace memtide::fake_cuda
