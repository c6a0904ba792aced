#include "client/memory/host_space.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "proto/protocol.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

namespace memtide::client {
namespace {

// Alignment beyond a huge page only makes addresses easier to read, so it is bounded.
constexpr Bytes kMaxAlignment = MiB(64);
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex word");

std::string Errno(absl::string_view what) { return absl::StrCat(what, ": ", strerror(errno)); }

struct FaultDescriptor {
  Descriptor fd;
  bool kernel_faults = false;
};

// Tries the three ways to open a userfaultfd, best first: the system call with kernel faults, which
// needs privilege or vm.unprivileged_userfaultfd; the device, which a udev rule may grant to users;
// the system call for faults in user mode only.
absl::StatusOr<FaultDescriptor> OpenUserfaultfd() {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  FaultDescriptor result;
  result.fd = Descriptor(static_cast<int>(syscall(SYS_userfaultfd, kFlags)));
  result.kernel_faults = result.fd.valid();
  if (!result.fd.valid()) {
    const Descriptor device(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
    if (device.valid()) result.fd = Descriptor(ioctl(device.get(), USERFAULTFD_IOC_NEW, kFlags));
    result.kernel_faults = result.fd.valid();
  }
  if (!result.fd.valid()) {
    result.fd =
        Descriptor(static_cast<int>(syscall(SYS_userfaultfd, kFlags | UFFD_USER_MODE_ONLY)));
  }
  if (!result.fd.valid()) {
    return absl::UnimplementedError(
        absl::StrCat(Errno("userfaultfd"),
                     "; memtide needs Linux 5.11 or newer and permission to use userfaultfd "
                     "(in a container: the seccomp profile)"));
  }
  uffdio_api api = {};
  api.api = UFFD_API;
  // EVENT_REMAP keeps the registration of memory that mremap moves (see Unmap).
  api.features = UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_EVENT_REMAP;
  if (ioctl(result.fd.get(), UFFDIO_API, &api) != 0) {
    return absl::UnimplementedError(Errno("this userfaultfd cannot report thread ids and remaps"));
  }
  return result;
}

// Reserves `size` bytes of addresses at a multiple of `alignment`. Null on failure.
char* ReserveAligned(uint64_t size, uint64_t alignment) {
  // Reserve more than needed, then return what lies before and after the aligned range.
  // MAP_NORESERVE, because only addresses are wanted: the memory behind them is the daemon's.
  void* reserved = mmap(nullptr, size + alignment, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const uint64_t start = reinterpret_cast<uint64_t>(reserved);
  const uint64_t aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned > start) munmap(reserved, aligned - start);
  munmap(reinterpret_cast<void*>(aligned + size), start + alignment - aligned);
  return reinterpret_cast<char*>(aligned);
}

// Maps inaccessible anonymous memory: over what is at `at`, or anywhere if `at` is null.
char* MapNothing(char* at, size_t size) {
  const int fixed = at != nullptr ? MAP_FIXED : 0;
  void* mapped =
      mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  madvise(mapped, size, MADV_DONTFORK);
  // With huge pages the kernel would zero 2 MiB at a fault before it reports the event.
  madvise(mapped, size, MADV_NOHUGEPAGE);
  return static_cast<char*>(mapped);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostSpace>> HostSpace::Reserve(const Options& options) {
  MEMTIDE_CHECK(!options.chunk_size.IsZero() && options.chunk_size.IsMultipleOf(kChunkAlignment));
  MEMTIDE_CHECK(options.places > 0);
  MEMTIDE_ASSIGN_OR_RETURN(FaultDescriptor faults, OpenUserfaultfd());
  const uint64_t alignment =
      options.chunk_size <= kMaxAlignment ? options.chunk_size.count() : kChunkAlignment.count();
  const Bytes size = options.chunk_size * options.places;
  char* base = ReserveAligned(size.count(), alignment);
  if (base == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Errno(absl::StrCat("cannot reserve ", FormatBytes(size), " of addresses")),
                     "; lower address_bytes or raise the limit (ulimit -v)"));
  }
  madvise(base, size.count(), MADV_DONTFORK);
  return std::unique_ptr<HostSpace>(
      new HostSpace(base, options, std::move(faults.fd), faults.kernel_faults));
}

HostSpace::HostSpace(char* base, const Options& options, Descriptor uffd, bool kernel_faults)
    : AddressSpace(options),
      base_(base),
      uffd_(std::move(uffd)),
      kernel_faults_(kernel_faults),
      // tidy(raw-new): into a smart pointer; make_unique would not zero atomics before C++20.
      page_states_(new std::atomic<uint32_t>[options.places]()) {}

HostSpace::~HostSpace() { munmap(base_, (chunk_size() * places()).count()); }

bool HostSpace::Contains(const void* address) const {
  const char* byte = static_cast<const char*>(address);
  return byte >= base_ && byte < base_ + chunk_size().count() * places();
}

PlaceId HostSpace::place(const void* address) const {
  return PlaceId(
      static_cast<uint32_t>((static_cast<const char*>(address) - base_) / chunk_size().count()));
}

// REQUIRES: the range is inaccessible anonymous memory. It becomes accessible only after its
// registration; in the other order an access in between would read zeros.
absl::Status HostSpace::RegisterForFaults(char* at, size_t size) {
  uffdio_register registration = {};
  registration.range.start = reinterpret_cast<uint64_t>(at);
  registration.range.len = size;
  registration.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (ioctl(uffd_.get(), UFFDIO_REGISTER, &registration) != 0) {
    return absl::InternalError(Errno("cannot register addresses with userfaultfd"));
  }
  if (mprotect(at, size, PROT_READ | PROT_WRITE) != 0) {
    return absl::ResourceExhaustedError(
        Errno("cannot make addresses accessible (vm.max_map_count, vm.overcommit_memory)"));
  }
  return absl::OkStatus();
}

absl::Status HostSpace::Bind(PlaceRange range) {
  const size_t size = chunk_size().count() * range.count;
  if (absl::Status status = RegisterForFaults(address(range.first), size); !status.ok()) {
    // The range may be registered already; make it inaccessible again.
    Unbind(range);
    return status;
  }
  for (uint32_t i = 0; i < range.count; ++i) {
    SetPageState(PlaceId(range.first.value() + i), PageState::kAbsent);
  }
  return absl::OkStatus();
}

void HostSpace::Unbind(PlaceRange range) {
  for (uint32_t i = 0; i < range.count; ++i) {
    SetPageState(PlaceId(range.first.value() + i), PageState::kUnbound);
  }
  char* at = MapNothing(address(range.first), chunk_size().count() * range.count);
  MEMTIDE_CHECK(at != nullptr) << Errno("cannot make addresses inaccessible");
  // A thread that faulted while the chunks were being freed retries and gets its segmentation
  // fault.
  for (uint32_t i = 0; i < range.count; ++i) Wake(PlaceId(range.first.value() + i));
}

absl::Status HostSpace::Map(PlaceId place, Region* region, Bytes offset, Access access) {
  const int protection = access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  // MAP_FIXED replaces the absent memory in one step. MAP_POPULATE fills the page table now, which
  // is much cheaper than a fault for each page.
  void* at =
      mmap(address(place), chunk_size().count(), protection, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
           region->memory.get(), static_cast<off_t>(offset.count()));
  if (at == MAP_FAILED) {
    return absl::ResourceExhaustedError(Errno("cannot map a chunk (vm.max_map_count)"));
  }
  // madvise applies to one mapping, and mmap has just replaced the one that had this advice.
  madvise(at, chunk_size().count(), MADV_DONTFORK);
  CountMap();
  return absl::OkStatus();
}

absl::Status HostSpace::MakeWritable(PlaceId place) {
  if (mprotect(address(place), chunk_size().count(), PROT_READ | PROT_WRITE) != 0) {
    if (errno == EACCES) return absl::PermissionDeniedError("the memory was lent to be read");
    return absl::ResourceExhaustedError(Errno("cannot make a chunk writable (vm.max_map_count)"));
  }
  return absl::OkStatus();
}

void HostSpace::ResumeWaiters(PlaceId place, Access access) {
  SetPageState(place, access == Access::kWrite ? PageState::kWrite : PageState::kRead);
  Wake(place);
}

// The absent memory is prepared aside and moved over the slot by one mremap. Unmapping first and
// registering second would leave a moment in which an access, most visibly by a system call, fails.
absl::Status HostSpace::Unmap(PlaceId place) {
  const size_t size = chunk_size().count();
  char* aside = MapNothing(nullptr, size);
  MEMTIDE_CHECK(aside != nullptr) << Errno("cannot unmap a chunk (vm.max_map_count)");
  const absl::Status status = RegisterForFaults(aside, size);
  MEMTIDE_CHECK(status.ok()) << status.ToString();
  SetPageState(place, PageState::kAbsent);
  void* moved = mremap(aside, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, address(place));
  MEMTIDE_CHECK(moved == address(place)) << Errno("cannot unmap a chunk (vm.max_map_count)");
  return absl::OkStatus();
}

void HostSpace::Wake(PlaceId place) {
  uffdio_range range = {};
  range.start = reinterpret_cast<uint64_t>(address(place));
  range.len = chunk_size().count();
  MEMTIDE_CHECK(ioctl(uffd_.get(), UFFDIO_WAKE, &range) == 0) << Errno("UFFDIO_WAKE");
}

PageState HostSpace::page_state(PlaceId place) const {
  return static_cast<PageState>(page_states_[place.value()].load(std::memory_order_acquire));
}

void HostSpace::SetPageState(PlaceId place, PageState state) {
  std::atomic<uint32_t>& word = page_states_[place.value()];
  // The store and the load are sequentially consistent, like the operations of WaitWhile: either
  // this load sees the waiter, or the waiter's futex call sees the new word and returns at once.
  word.store(static_cast<uint32_t>(state));
  if (waiting_.load() == 0) return;
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void HostSpace::WaitWhile(PlaceId place, PageState state) {
  waiting_.fetch_add(1);
  syscall(SYS_futex, &page_states_[place.value()], FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(state),
          nullptr, nullptr, 0);
  waiting_.fetch_sub(1);
}

}  // namespace memtide::client
