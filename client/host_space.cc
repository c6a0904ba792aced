#include "client/host_space.h"

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

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

namespace memtide::client {
namespace {

// Larger alignment than a huge page gains nothing but tidy addresses.
constexpr Bytes kMaxAlignment = MiB(64);
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex word");

std::string Errno(absl::string_view what) { return absl::StrCat(what, ": ", strerror(errno)); }

struct FaultDescriptor {
  Descriptor fd;
  bool kernel_faults = false;
};

// The three ways to one, best first: as a privileged process (or where the node allows it to all),
// by the device that a package's udev rule grants, for touches in user mode only.
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
                     "; memtide needs Linux 5.11 or newer with userfaultfd "
                     "allowed (containers: in the seccomp profile)"));
  }
  uffdio_api api = {};
  api.api = UFFD_API;
  // EVENT_REMAP: memory that is moved stays watched (see Unmap).
  api.features = UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_EVENT_REMAP;
  if (ioctl(result.fd.get(), UFFDIO_API, &api) != 0) {
    return absl::UnimplementedError(Errno("userfaultfd with thread ids and moves"));
  }
  return result;
}

// `size` bytes of addresses at a multiple of `alignment`; null when there are none.
char* ReserveAligned(uint64_t size, uint64_t alignment) {
  void* reserved = mmap(nullptr, size + alignment, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const uint64_t start = reinterpret_cast<uint64_t>(reserved);
  const uint64_t aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned > start) munmap(reserved, aligned - start);
  munmap(reinterpret_cast<void*>(aligned + size), start + alignment - aligned);
  return reinterpret_cast<char*>(aligned);
}

// Inaccessible anonymous memory, over what is at `at`, or, when that is null, anywhere.
char* MapNothing(char* at, size_t size) {
  const int fixed = at != nullptr ? MAP_FIXED : 0;
  void* mapped =
      mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  madvise(mapped, size, MADV_DONTFORK);
  // A touch would fill a huge page with zeros before the kernel finds that it is an event.
  madvise(mapped, size, MADV_NOHUGEPAGE);
  return static_cast<char*>(mapped);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostSpace>> HostSpace::Reserve(const Options& options) {
  MEMTIDE_CHECK(!options.chunk_size.IsZero() && options.chunk_size.IsMultipleOf(MiB(2)));
  MEMTIDE_CHECK(options.places > 0);
  MEMTIDE_ASSIGN_OR_RETURN(FaultDescriptor faults, OpenUserfaultfd());
  const uint64_t alignment =
      options.chunk_size <= kMaxAlignment ? options.chunk_size.count() : MiB(2).count();
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
      shown_(new std::atomic<uint32_t>[options.places]()) {}

HostSpace::~HostSpace() { munmap(base_, (chunk_size() * places()).count()); }

bool HostSpace::Contains(const void* address) const {
  const char* byte = static_cast<const char*>(address);
  return byte >= base_ && byte < base_ + chunk_size().count() * places();
}

PlaceId HostSpace::place(const void* address) const {
  return PlaceId(
      static_cast<uint32_t>((static_cast<const char*>(address) - base_) / chunk_size().count()));
}

// REQUIRES: the range is inaccessible anonymous memory. Accessible only once it is registered, or a
// touch in between would read zeros.
absl::Status HostSpace::Watch(char* at, size_t size) {
  uffdio_register registration = {};
  registration.range.start = reinterpret_cast<uint64_t>(at);
  registration.range.len = size;
  registration.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (ioctl(uffd_.get(), UFFDIO_REGISTER, &registration) != 0) {
    return absl::InternalError(Errno("cannot watch addresses"));
  }
  if (mprotect(at, size, PROT_READ | PROT_WRITE) != 0) {
    return absl::ResourceExhaustedError(
        Errno("cannot open addresses (vm.max_map_count, vm.overcommit_memory)"));
  }
  return absl::OkStatus();
}

absl::Status HostSpace::Open(PlaceRange range) {
  const size_t size = chunk_size().count() * range.count;
  if (absl::Status status = Watch(address(range.first), size); !status.ok()) {
    Shut(range);
    return status;
  }
  for (uint32_t i = 0; i < range.count; ++i) {
    Show(PlaceId(range.first.value() + i), Shown::kAbsent);
  }
  return absl::OkStatus();
}

void HostSpace::Shut(PlaceRange range) {
  for (uint32_t i = 0; i < range.count; ++i) {
    Show(PlaceId(range.first.value() + i), Shown::kShut);
  }
  char* at = MapNothing(address(range.first), chunk_size().count() * range.count);
  MEMTIDE_CHECK(at != nullptr) << Errno("cannot shut addresses");
  // Whoever touched the chunks while they were freed now gets the segmentation fault.
  for (uint32_t i = 0; i < range.count; ++i) Wake(PlaceId(range.first.value() + i));
}

absl::Status HostSpace::Map(PlaceId place, Region* region, Bytes offset, Access access) {
  const int protection = access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* at =
      mmap(address(place), chunk_size().count(), protection, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
           region->memory.get(), static_cast<off_t>(offset.count()));
  if (at == MAP_FAILED) {
    return absl::ResourceExhaustedError(Errno("cannot map a chunk (vm.max_map_count)"));
  }
  madvise(at, chunk_size().count(), MADV_DONTFORK);
  return absl::OkStatus();
}

absl::Status HostSpace::MakeWritable(PlaceId place) {
  if (mprotect(address(place), chunk_size().count(), PROT_READ | PROT_WRITE) != 0) {
    return absl::ResourceExhaustedError(Errno("cannot make a chunk writable (vm.max_map_count)"));
  }
  return absl::OkStatus();
}

void HostSpace::LetOn(PlaceId place, Access access) {
  Show(place, access == Access::kWrite ? Shown::kWrite : Shown::kRead);
  Wake(place);
}

// What is absent is made elsewhere and moved over the slot in one step: there is no moment at which
// a touch, by a thread or by a system call, finds neither.
void HostSpace::Unmap(PlaceId place) {
  const size_t size = chunk_size().count();
  char* aside = MapNothing(nullptr, size);
  MEMTIDE_CHECK(aside != nullptr) << Errno("cannot unmap a chunk (vm.max_map_count)");
  const absl::Status status = Watch(aside, size);
  MEMTIDE_CHECK(status.ok()) << status.ToString();
  Show(place, Shown::kAbsent);
  void* moved = mremap(aside, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, address(place));
  MEMTIDE_CHECK(moved == address(place)) << Errno("cannot unmap a chunk (vm.max_map_count)");
}

void HostSpace::Wake(PlaceId place) {
  uffdio_range range = {};
  range.start = reinterpret_cast<uint64_t>(address(place));
  range.len = chunk_size().count();
  MEMTIDE_CHECK(ioctl(uffd_.get(), UFFDIO_WAKE, &range) == 0) << Errno("UFFDIO_WAKE");
}

Shown HostSpace::shown(PlaceId place) const {
  return static_cast<Shown>(shown_[place.value()].load(std::memory_order_acquire));
}

void HostSpace::Show(PlaceId place, Shown shown) {
  std::atomic<uint32_t>& word = shown_[place.value()];
  // Both sequentially consistent, as in WaitWhile: either we see who waits, or the kernel, asked to
  // wait, sees the word.
  word.store(static_cast<uint32_t>(shown));
  if (waiting_.load() == 0) return;
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void HostSpace::WaitWhile(PlaceId place, Shown shown) {
  waiting_.fetch_add(1);
  syscall(SYS_futex, &shown_[place.value()], FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(shown),
          nullptr, nullptr, 0);
  waiting_.fetch_sub(1);
}

}  // namespace memtide::client
