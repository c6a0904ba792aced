// Process: the state of the fake in this process, under one lock. Call: one call of a function.
//
// The lock is held during copies, too, so nothing is unmapped during a copy, and no copy is in
// progress once an error has become sticky. Kernels (kernel.h) run without it.
#ifndef MEMTIDE_BASE_CUDA_FAKE_PROCESS_H_
#define MEMTIDE_BASE_CUDA_FAKE_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/cuda/fake/card.h"
#include "base/cuda/fake/physical.h"
#include "base/cuda/fake/settings.h"
#include "base/mutex.h"

namespace memtide::fake_cuda {

class Kernel;
class Stream;
struct Event;

enum class Access { kNone, kRead, kWrite };
enum class MappedBy { kMalloc, kMap, kIpc };

// Not in the headers of CUDA 12.0.
inline constexpr auto kContained = static_cast<CUresult>(226);

// The primary context of a device.
struct Context {
  int references = 0;
  bool is_there = false;  // A reset destroys the context and keeps the references.
  int lock = -1;          // With compute mode "exclusive": keeps other processes out.
  uint64_t losses = 0;    // The device was lost so often when the context was made.
};

// Device memory mapped into this process.
struct Mapping {
  uint64_t size = 0;
  MappedBy by = MappedBy::kMap;
  Access access = Access::kNone;
  std::shared_ptr<Physical> physical;
  // Where the fake itself accesses the memory. Differs from the address if only kernels may.
  uintptr_t view = 0;
  int opens = 1;  // For kIpc: the number of closes that unmap it.
};

struct Process {
  Process();
  ~Process();

  // Makes every call fail with `error` from now on. REQUIRES: `error` is sticky.
  void Break(CUresult error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Whether all of the range is device memory with this access.
  bool MayUse(uintptr_t address, uint64_t size, Access access) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Where the fake itself accesses this address. Any other than a mapped one is returned as it is.
  void* View(uintptr_t address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Whether any of the range is reserved or mapped for device memory.
  bool Overlaps(uintptr_t address, uint64_t size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  uint64_t PinnedBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Whether `size` more bytes can be pinned.
  bool MayPin(uint64_t size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Whether all of the range is in one piece of pinned host memory.
  bool IsPinned(uintptr_t address, uint64_t size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  Content ContentOfMemory() const { return card == nullptr ? Content::kPoison : Content::kNone; }
  // Whether a copy or fill of this size moves bytes. Where a card is played small ones do: those by
  // which a daemon tries out what a GPU can do.
  bool Moves(uint64_t size) const { return card == nullptr || size <= MiB(4).count(); }
  bool IsOrdinal(int ordinal) const {
    return ordinal >= 0 && ordinal < static_cast<int>(visible.size());
  }
  // Whether the device was lost since this process made a context on it.
  bool HasLost(int ordinal) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Unmaps and resets everything except settings, counts and faults. The caller destroys the
  // returned streams without the lock.
  std::vector<std::unique_ptr<Stream>> Reset() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const pid_t pid;
  const Settings settings;
  const std::string directory;
  const std::vector<int> visible;    // The device of each ordinal.
  const uint64_t token;              // Unique to this process.
  const std::unique_ptr<Card> card;  // Null: none is played.

  Mutex mutex;
  CondVar changed;  // Work was queued or done, or an error became sticky.
  Duration delay ABSL_GUARDED_BY(mutex);
  std::map<std::string, uint64_t> calls
      ABSL_GUARDED_BY(mutex);  // Call counts by function; "*": all.
  std::map<std::string, Duration> costs ABSL_GUARDED_BY(mutex);
  Bytes pinned_limit ABSL_GUARDED_BY(mutex);
  // By copies from and to host memory that is not pinned, so far.
  uint64_t pageable_bytes ABSL_GUARDED_BY(mutex) = 0;
  Bytes pinned_rate ABSL_GUARDED_BY(mutex), pageable_rate ABSL_GUARDED_BY(mutex);
  std::vector<Fault> faults ABSL_GUARDED_BY(mutex);
  CUresult sticky ABSL_GUARDED_BY(mutex) = CUDA_SUCCESS;

  bool initialized ABSL_GUARDED_BY(mutex) = false;
  uint64_t pushed ABSL_GUARDED_BY(mutex) = 0;  // Pieces of work, so far.
  // With time slices: whether this process has work that it has not waited for, for others to see.
  bool at_work ABSL_GUARDED_BY(mutex) = false;
  int at_work_fd ABSL_GUARDED_BY(mutex) = -1;
  std::map<int, Context> contexts ABSL_GUARDED_BY(mutex);  // By ordinal.
  uint64_t next_handle ABSL_GUARDED_BY(mutex) = 1;
  std::map<uint64_t, std::shared_ptr<Physical>> handles ABSL_GUARDED_BY(mutex);
  // By address.
  std::map<uintptr_t, uint64_t> reservations ABSL_GUARDED_BY(mutex);
  // By a reservation's address, where what is mapped into it is viewed; only Tensors::kOnBackend.
  std::map<uintptr_t, uintptr_t> views ABSL_GUARDED_BY(mutex);
  std::map<uintptr_t, Mapping> mappings ABSL_GUARDED_BY(mutex);
  std::map<uintptr_t, uint64_t> registrations ABSL_GUARDED_BY(mutex);
  std::map<uintptr_t, uint64_t> host_allocations ABSL_GUARDED_BY(mutex);
  // The kernels that run now. Unlike copies, they run without the lock.
  std::vector<const Kernel*> running ABSL_GUARDED_BY(mutex);
  // The key of the default stream is null.
  std::map<CUstream, std::unique_ptr<Stream>> streams ABSL_GUARDED_BY(mutex);
  std::map<CUevent, std::unique_ptr<Event>> events ABSL_GUARDED_BY(mutex);
};

// Created by the first call, and never destroyed.
Process& TheProcess();

// The needs of a function besides an initialized driver. After a sticky error only kReset works.
enum class Needs { kNothing, kContext, kReset };

// One call of a CUDA function: holds the lock, counts the call, and decides whether it fails at
// once.
class ABSL_SCOPED_LOCKABLE Call {
 public:
  Call(Process* process, const char* name, Needs needs = Needs::kNothing)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(process->mutex);
  ~Call() ABSL_UNLOCK_FUNCTION();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  CUresult refusal() const { return refusal_; }

 private:
  Process* const process_;
  CUresult refusal_ = CUDA_SUCCESS;
};

// The calling thread's current context: the primary one of `t_ordinal`, or none.
extern thread_local int t_ordinal;
extern thread_local bool t_has_context;

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_PROCESS_H_
