#include "base/cuda/fake/process.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/cuda/fake/streams.h"

namespace memtide::fake_cuda {
namespace {

bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorContained:
      return true;
    default:
      return false;
  }
}

uint64_t NewToken() {
  uint64_t token = 0;
  MEMTIDE_CHECK(getrandom(&token, sizeof(token), 0) == sizeof(token));
  return token;
}

}  // namespace

thread_local cudaError_t t_last_error = cudaSuccess;
thread_local int t_ordinal = 0;
thread_local bool t_has_context = false;

Process::Process()
    : pid(getpid()),
      settings(ReadSettings(std::getenv("MEMTIDE_FAKE_CUDA"))),
      directory(settings.directory.empty() ? MakePrivateDirectory() : settings.directory),
      visible(VisibleDevices(std::getenv("CUDA_VISIBLE_DEVICES"), settings.devices)),
      token(NewToken()),
      delay(settings.delay),
      costs(settings.costs),
      faults(ReadFaults(std::getenv("MEMTIDE_FAKE_CUDA_FAULTS"))) {}

Process::~Process() = default;

void Process::Break(cudaError_t error) {
  MEMTIDE_CHECK(IsSticky(error)) << error;
  if (sticky == cudaSuccess) sticky = error;
  changed.SignalAll();
}

bool Process::MayUse(uintptr_t address, uint64_t size, Access access) const {
  const uintptr_t end = address + size;
  while (address < end) {
    auto found = mappings.upper_bound(address);
    if (found == mappings.begin()) return false;
    --found;
    if (address >= found->first + found->second.size || found->second.access < access) return false;
    address = found->first + found->second.size;
  }
  return true;
}

bool Process::Overlaps(uintptr_t address, uint64_t size) const {
  for (const auto& [start, mapping] : mappings) {
    if (start < address + size && address < start + mapping.size) return true;
  }
  for (const auto& [start, reserved] : reservations) {
    if (start < address + size && address < start + reserved) return true;
  }
  return false;
}

std::vector<std::unique_ptr<Stream>> Process::Reset() {
  std::vector<std::unique_ptr<Stream>> ended;
  for (auto& [key, stream] : streams) {
    stream->Drop(this);
    ended.push_back(std::move(stream));
  }
  streams.clear();
  events.clear();
  registrations.clear();
  for (const auto& [address, mapping] : mappings) {
    if (mapping.by != MappedBy::kMap) munmap(reinterpret_cast<void*>(address), mapping.size);
  }
  for (const auto& [address, size] : reservations) munmap(reinterpret_cast<void*>(address), size);
  mappings.clear();
  reservations.clear();
  handles.clear();
  sticky = cudaSuccess;
  changed.SignalAll();
  return ended;
}

Process& TheProcess() {
  // tidy(raw-new): of the process; threads of streams use it until its last moment.
  static Process& process = *new Process();
  return process;
}

Call::Call(Process* process, const char* name, Sticky sticky) : process_(process) {
  process_->mutex.Lock();
  if (const auto cost = process_->costs.find(name); cost != process_->costs.end()) {
    const Instant end = Now() + cost->second;
    process_->mutex.Unlock();
    // A driver's call uses the CPU, and a sleep this short would take longer.
    while (Now() < end) {
    }
    process_->mutex.Lock();
  }
  const uint64_t own = ++process_->calls[name];
  const uint64_t all = ++process_->calls["*"];
  if (process_->pid != getpid()) {
    refusal_ = cudaErrorInitializationError;  // CUDA does not survive a fork.
  } else if (process_->settings.driver == Driver::kNone) {
    refusal_ = cudaErrorInsufficientDriver;
  } else if (process_->settings.driver == Driver::kNoUvm) {
    refusal_ = cudaErrorUnknown;
  } else if (process_->visible.empty()) {
    refusal_ = cudaErrorNoDevice;
  } else if (process_->sticky != cudaSuccess && sticky == Sticky::kFails) {
    refusal_ = process_->sticky;
  }
  if (refusal_ != cudaSuccess) return;
  for (const Fault& fault : process_->faults) {
    if (fault.call != (fault.name == "*" ? all : own)) continue;
    if (fault.name != "*" && fault.name != name) continue;
    refusal_ = fault.code;
    if (IsSticky(fault.code)) process_->Break(fault.code);
  }
}

Call::~Call() { process_->mutex.Unlock(); }

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) t_last_error = error;
  return error;
}

}  // namespace memtide::fake_cuda
