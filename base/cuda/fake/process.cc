#include "base/cuda/fake/process.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/cuda/fake/streams.h"

namespace memtide::fake_cuda {
namespace {

bool IsSticky(CUresult error) {
  switch (error) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return error == kContained;
  }
}

uint64_t NewToken() {
  uint64_t token = 0;
  MEMTIDE_CHECK(getrandom(&token, sizeof(token), 0) == sizeof(token));
  return token;
}

}  // namespace

thread_local int t_ordinal = 0;
thread_local bool t_has_context = false;

Process::Process()
    : pid(getpid()),
      settings(ReadSettings(std::getenv("MEMTIDE_FAKE_CUDA"))),
      directory(settings.directory.empty() ? MakePrivateDirectory() : settings.directory),
      visible(VisibleDevices(std::getenv("CUDA_VISIBLE_DEVICES"), settings)),
      token(NewToken()),
      card(settings.card.empty()
               ? nullptr
               : std::make_unique<Card>(settings.card, settings.dilation, directory)),
      delay(settings.delay),
      costs(settings.costs),
      pinned_limit(settings.pinned),
      pinned_rate(settings.pinned_rate),
      pageable_rate(settings.pageable_rate),
      faults(ReadFaults(std::getenv("MEMTIDE_FAKE_CUDA_FAULTS"))) {}

Process::~Process() = default;

void Process::Break(CUresult error) {
  MEMTIDE_CHECK(IsSticky(error) || !settings.mends) << error;
  if (sticky == CUDA_SUCCESS) sticky = error;
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

void* Process::View(uintptr_t address) const {
  auto found = mappings.upper_bound(address);
  if (found != mappings.begin()) {
    --found;
    const uintptr_t offset = address - found->first;
    if (offset < found->second.size) return reinterpret_cast<void*>(found->second.view + offset);
  }
  return reinterpret_cast<void*>(address);
}

uint64_t Process::PinnedBytes() const {
  uint64_t pinned = 0;
  for (const auto* pieces : {&registrations, &host_allocations}) {
    for (const auto& [start, size] : *pieces) pinned += size;
  }
  return pinned;
}

bool Process::MayPin(uint64_t size) const {
  return pinned_limit.IsZero() || PinnedBytes() + size <= pinned_limit.count();
}

bool Process::IsPinned(uintptr_t address, uint64_t size) const {
  for (const auto* pieces : {&registrations, &host_allocations}) {
    const auto after = pieces->upper_bound(address);
    if (after == pieces->begin()) continue;
    const auto& [start, length] = *std::prev(after);
    if (address + size <= start + length) return true;
  }
  return false;
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

bool Process::HasLost(int ordinal) const {
  const auto found = contexts.find(ordinal);
  return found != contexts.end() && found->second.references > 0 &&
         found->second.losses != LossesOf(directory, visible[ordinal]);
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
    if (mapping.by == MappedBy::kMap) continue;
    munmap(reinterpret_cast<void*>(address), mapping.size);
    if (mapping.view != address) munmap(reinterpret_cast<void*>(mapping.view), mapping.size);
  }
  for (const auto& [address, size] : reservations) {
    munmap(reinterpret_cast<void*>(address), size);
    const auto view = views.find(address);
    if (view != views.end()) munmap(reinterpret_cast<void*>(view->second), size);
  }
  mappings.clear();
  reservations.clear();
  views.clear();
  handles.clear();
  sticky = CUDA_SUCCESS;
  changed.SignalAll();
  return ended;
}

Process& TheProcess() {
  // tidy(raw-new): of the process; threads of streams use it until its last moment.
  static Process& process = *new Process();
  return process;
}

Call::Call(Process* process, const char* name, Needs needs) : process_(process) {
  process_->mutex.Lock();
  if (const auto cost = process_->costs.find(name); cost != process_->costs.end()) {
    const Instant end = Now() + cost->second;
    process_->mutex.Unlock();
    // A driver's call uses the CPU, and a sleep this short would take longer.
    while (Now() < end) {
    }
    process_->mutex.Lock();
  }
  if (process_->card != nullptr) {
    process_->mutex.Unlock();
    process_->card->SpendOn(name);
    process_->mutex.Lock();
  }
  const uint64_t own = ++process_->calls[name];
  const uint64_t all = ++process_->calls["*"];
  if (process_->pid != getpid()) {
    refusal_ = CUDA_ERROR_NOT_INITIALIZED;  // CUDA does not survive a fork.
  } else if (process_->settings.driver == Driver::kNoUvm) {
    refusal_ = CUDA_ERROR_UNKNOWN;
  } else if (process_->visible.empty()) {
    refusal_ = CUDA_ERROR_NO_DEVICE;
  } else if (!process_->initialized && std::strcmp(name, "cuInit") != 0) {
    refusal_ = CUDA_ERROR_NOT_INITIALIZED;
  } else if (process_->sticky != CUDA_SUCCESS &&
             (needs != Needs::kReset || !process_->settings.mends)) {
    refusal_ = process_->sticky;
  } else if (needs == Needs::kContext) {
    refusal_ = !t_has_context                            ? CUDA_ERROR_INVALID_CONTEXT
               : !process_->contexts[t_ordinal].is_there ? CUDA_ERROR_CONTEXT_IS_DESTROYED
               : process_->HasLost(t_ordinal)            ? CUDA_ERROR_UNKNOWN
                                                         : CUDA_SUCCESS;
  }
  if (refusal_ != CUDA_SUCCESS) return;
  for (const Fault& fault : process_->faults) {
    if (fault.call != (fault.name == "*" ? all : own)) continue;
    if (fault.name != "*" && fault.name != name) continue;
    refusal_ = fault.code;
    if (IsSticky(fault.code) || !process_->settings.mends) process_->Break(fault.code);
  }
}

Call::~Call() { process_->mutex.Unlock(); }

}  // namespace memtide::fake_cuda
