// SharedMemory: one sealed memfd, mapped and populated in this process. Other processes map its
// descriptor.
//
// Its mode is 0600, and it is sealed against SHRINK, GROW and further seals, so no holder of the
// descriptor can make accesses of another holder fault. It has huge pages if the kernel provides
// them: hugetlb pages if enough are reserved, else transparent huge pages of shmem ("advise" or
// better), else pages of 4 KiB; huge_pages() says which. Fresh memory reads as zeros.
//
// Move-only. The destructor unmaps and closes; mappings of other processes keep the pages alive.
// Empty and Fill may run in several threads on disjoint ranges.
#ifndef MEMTIDE_BASE_SHARED_MEMORY_H_
#define MEMTIDE_BASE_SHARED_MEMORY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/bytes.h"

namespace memtide {

enum class HugePages { kNone, kTransparent, kHugetlb };

class SharedMemory {
 public:
  // Creates memory with all of its pages populated, so that no later access raises SIGBUS.
  // RESOURCE_EXHAUSTED, with sizes: the machine or a cgroup of this process cannot supply the
  // pages. A size above the available memory is refused without an attempt. With a NUMA node, the
  // pages are of that node while it has some; a kernel that refuses this takes them anywhere.
  // REQUIRES: size is a multiple of 2 MiB and not zero.
  static absl::StatusOr<SharedMemory> Create(const std::string& name, Bytes size,
                                             absl::optional<int> node = absl::nullopt);
  // Does what Create does in pieces, for a thread that others wait for.
  class Maker;

  // Maps memory that another process made with Create, with its content. Takes ownership of `fd`,
  // even on an error. Pages that are there stay where they are. DATA_LOSS: `fd` is not such memory
  // of `size` bytes.
  static absl::StatusOr<SharedMemory> Adopt(int fd, Bytes size,
                                            absl::optional<int> node = absl::nullopt);

  // The same for memory that the other process goes on using: pages that are not there stay so.
  static absl::StatusOr<SharedMemory> Borrow(int fd, Bytes size);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Returns all pages to the machine, hugetlb pages and pages that other processes have mapped
  // included. The memory then reads as zeros, and a page is charged to the process that touches it.
  absl::Status EmptyAll() const;

  // Returns the pages of a range to the machine. The range then reads as zeros, and an access
  // populates a page. Does nothing with hugetlb pages, which no other process could use. REQUIRES
  // (both methods): the range is inside, its offset and size multiples of 2 MiB.
  absl::Status Empty(Bytes offset, Bytes size) const;
  // Populates the pages of an emptied range. RESOURCE_EXHAUSTED: as in Create; the range is empty
  // then.
  absl::Status Fill(Bytes offset, Bytes size) const;

  // The memory of its pages, whichever process has populated them. Zero with hugetlb pages.
  Bytes populated() const;

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

// Makes SharedMemory piece by piece. Move-only; what it has made by then goes with it.
//
//   SharedMemory::Maker maker("name", size);
//   while (!maker.Populate(MiB(64))) {}
//   absl::StatusOr<SharedMemory> memory = maker.Take();
class SharedMemory::Maker {
 public:
  // As for Create.
  Maker(std::string name, Bytes size, absl::optional<int> node = absl::nullopt);

  // Populates at most `most` bytes more. True: the memory is made, or cannot be. No more is
  // populated than is available, even if others take memory between two pieces.
  bool Populate(Bytes most);
  // The memory, or why there is none. REQUIRES: Populate() has returned true.
  absl::StatusOr<SharedMemory> Take();

 private:
  // Makes the file and its mapping, without pages.
  absl::Status Begin();

  std::string name_;
  Bytes size_, populated_;
  absl::optional<int> node_;
  bool may_be_hugetlb_ = true;
  absl::optional<SharedMemory> memory_;
  absl::Status status_;
};

// Returns the pages that Create would get now. *advice is what an operator can do about pages of 4
// KiB; empty if Create would get huge pages.
HugePages AvailableHugePages(std::string* advice);

}  // namespace memtide

#endif  // MEMTIDE_BASE_SHARED_MEMORY_H_
