// SharedMemory: one sealed memfd, mapped and pre-faulted in this process, to be shared by passing
// its descriptor.
//
// Mode 0600 and sealed against SHRINK, GROW and further seals, so that no holder of the descriptor
// can make another's mapping fault. On huge pages where the kernel gives them: hugetlb when pages
// are reserved, else transparent huge pages of shmem ("advise" or better), else 4 KiB pages, which
// HugePages() tells. Move-only; unmaps and closes when destroyed (other processes' mappings keep
// the pages alive until they end). Fresh memory reads as zeros.
#ifndef MEMTIDE_BASE_SHARED_MEMORY_H_
#define MEMTIDE_BASE_SHARED_MEMORY_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace memtide {

enum class HugePages { kNone, kTransparent, kHugetlb };

class SharedMemory {
 public:
  // REQUIRES: size is a multiple of 2 MiB and not zero. RESOURCE_EXHAUSTED, naming sizes, when the
  // machine, or a cgroup that we are in, cannot supply the pages (each is touched here, so that
  // there is no SIGBUS later; what exceeds the memory available is not tried).
  static absl::StatusOr<SharedMemory> Create(const std::string& name, Bytes size);

  // Maps what a process before us made by Create, with what is in it. Takes `fd` over, also when it
  // fails. DATA_LOSS when it is not such memory of `size` bytes.
  static absl::StatusOr<SharedMemory> Adopt(int fd, Bytes size);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Gives the pages of a range to the machine; it reads as zeros, and a touch brings a page back.
  // Of hugetlb memory nothing goes: nobody else could use it. REQUIRES (both): a multiple of 2 MiB,
  // inside.
  absl::Status Empty(Bytes offset, Bytes size) const;
  // The range has its pages again, as Create makes them. RESOURCE_EXHAUSTED as Create; it is empty
  // then.
  absl::Status Fill(Bytes offset, Bytes size) const;

  int fd() const { return fd_; }
  char* data() const { return data_; }
  Bytes size() const { return size_; }
  HugePages huge_pages() const { return huge_pages_; }

 private:
  SharedMemory(int fd, char* data, Bytes size, HugePages huge_pages);

  int fd_ = -1;
  char* data_ = nullptr;
  Bytes size_;
  HugePages huge_pages_ = HugePages::kNone;
};

// What Create would get now, and, where it is less than huge pages, what an operator can do.
HugePages AvailableHugePages(std::string* advice);

}  // namespace memtide

#endif  // MEMTIDE_BASE_SHARED_MEMORY_H_
