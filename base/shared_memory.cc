#include "base/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/available_memory.h"
#include "base/check.h"
#include "base/numa.h"
#include "base/populate.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

constexpr char kShmemPolicy[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

// A descriptor and a mapping, released by destruction unless moved into a SharedMemory.
struct Parts {
  Parts() = default;
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() {
    if (data != nullptr) munmap(data, size);
    if (fd >= 0) close(fd);
  }

  int fd = -1;
  char* data = nullptr;
  size_t size = 0;
};

// Reads one line of /proc/meminfo. nullopt: the kernel has no such line.
absl::optional<uint64_t> MemoryInfo(absl::string_view key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t value = 0;
    if (words.size() >= 2 && words[0] == absl::StrCat(key, ":") &&
        absl::SimpleAtoi(words[1], &value)) {
      return value;
    }
  }
  return absl::nullopt;
}

uint64_t FreeHugetlbPages() {
  const uint64_t free = MemoryInfo("HugePages_Free").value_or(0);
  // HugePages_Free includes pages that are promised to mappings that have not touched them yet.
  const uint64_t reserved = MemoryInfo("HugePages_Rsvd").value_or(0);
  // /proc/meminfo counts huge pages of the default size only, which may be another one.
  const bool two_mebibytes = MemoryInfo("Hugepagesize").value_or(0) * 1024 == kHugePage.count();
  return two_mebibytes && free > reserved ? free - reserved : 0;
}

// Whether shmem provides huge pages to a mapping with MADV_HUGEPAGE.
bool ShmemIsHuge() {
  std::ifstream file(kShmemPolicy);
  std::string line;
  std::getline(file, line);
  for (const char* policy : {"[always]", "[within_size]", "[advise]", "[force]"}) {
    if (line.find(policy) != std::string::npos) return true;
  }
  return false;
}

absl::Status Exhausted(absl::string_view what, Bytes size) {
  const AvailableMemory available = GetAvailableMemory();
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory of ", FormatBytes(size), ": ", what, "; ",
                   FormatBytes(available.bytes), " are available to ", available.limited_by,
                   "; free or add memory there, or take a smaller --host-pool"));
}

absl::Status Failed(absl::string_view call, Bytes size, int error) {
  return Exhausted(absl::StrCat(call, " failed with ", strerrorname_np(error)), size);
}

// Maps at a multiple of 2 MiB, so that every huge page of the file can be mapped as one.
char* MapAligned(int fd, size_t size) {
  const size_t align = kHugePage.count();
  void* reserved =
      mmap(nullptr, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(reserved);
  char* const data = begin + (align - reinterpret_cast<uintptr_t>(begin) % align) % align;
  const size_t head = data - begin;
  if (head > 0) munmap(begin, head);
  munmap(data + size, align - head);
  if (mmap(data, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(data, size);
    errno = error;
    return nullptr;
  }
  return data;
}

// A hole is permitted by the seals, which only keep the file's size.
absl::Status PunchHole(int fd, Bytes offset, Bytes size) {
  const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  while (fallocate(fd, mode, static_cast<off_t>(offset.count()),
                   static_cast<off_t>(size.count())) != 0) {
    if (errno != EINTR) return Failed("fallocate", size, errno);
  }
  return absl::OkStatus();
}

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status Map(Bytes size, HugePages pages, Parts* parts) {
  parts->data = MapAligned(parts->fd, size.count());
  if (parts->data == nullptr) return Failed("mmap", size, errno);
  parts->size = size.count();
  // A kernel without huge pages refuses MADV_HUGEPAGE, and the mapping works without it. Forked
  // children do not inherit the mapping, and core files omit it, as it may be larger than the disk.
  if (pages == HugePages::kTransparent) madvise(parts->data, parts->size, MADV_HUGEPAGE);
  if (madvise(parts->data, parts->size, MADV_DONTFORK) != 0 ||
      madvise(parts->data, parts->size, MADV_DONTDUMP) != 0) {
    return Failed("madvise", size, errno);
  }
  return absl::OkStatus();
}

// Maps parts->fd. Its pages are populated on that node.
absl::Status MapOn(Bytes size, HugePages pages, absl::optional<int> node, Parts* parts) {
  MEMTIDE_RETURN_IF_ERROR(Map(size, pages, parts));
  // The policy belongs to the file, so it also holds for pages that clients populate.
  if (node) PreferNode(parts->data, size, *node).IgnoreError();
  return absl::OkStatus();
}

// Makes a file and maps it, without pages.
absl::Status Make(const std::string& name, Bytes size, HugePages pages, absl::optional<int> node,
                  Parts* parts) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (pages == HugePages::kHugetlb) flags |= MFD_HUGETLB | MFD_HUGE_2MB;
  parts->fd = memfd_create(name.c_str(), flags);
  if (parts->fd < 0) return Failed("memfd_create", size, errno);
  // memfd_create makes a file that every user may open through /proc.
  if (fchmod(parts->fd, 0600) != 0) return Failed("fchmod", size, errno);
  if (ftruncate(parts->fd, static_cast<off_t>(size.count())) != 0) {
    return Failed("ftruncate", size, errno);
  }
  // A client that could shrink the file would make the daemon fail with SIGBUS.
  if (fcntl(parts->fd, F_ADD_SEALS, kSeals) != 0) {
    return Failed("sealing", size, errno);
  }
  return MapOn(size, pages, node, parts);
}

// Checks that parts->fd is memory that Create made, and returns its pages.
absl::StatusOr<HugePages> Inspect(Bytes size, const Parts& parts) {
  struct stat status;
  struct statfs file_system;
  // The seals prove that Create made it, and that no other holder can resize it.
  if (size.IsZero() || !size.IsMultipleOf(kHugePage) || fstat(parts.fd, &status) != 0 ||
      static_cast<uint64_t>(status.st_size) != size.count() ||
      fstatfs(parts.fd, &file_system) != 0 || fcntl(parts.fd, F_GET_SEALS) != kSeals) {
    return absl::DataLossError(
        absl::StrCat("descriptor ", parts.fd, " is not shared memory of ", FormatBytes(size)));
  }
  return file_system.f_type == HUGETLBFS_MAGIC ? HugePages::kHugetlb
         : ShmemIsHuge()                       ? HugePages::kTransparent
                                               : HugePages::kNone;
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(const std::string& name, Bytes size,
                                                  absl::optional<int> node) {
  Maker maker(name, size, node);
  while (!maker.Populate(size)) {
  }
  return maker.Take();
}

SharedMemory::Maker::Maker(std::string name, Bytes size, absl::optional<int> node)
    : name_(std::move(name)), size_(size), node_(node) {
  MEMTIDE_CHECK(!size.IsZero() && size.IsMultipleOf(kHugePage)) << size;
}

absl::Status SharedMemory::Maker::Begin() {
  populated_ = Bytes();
  if (may_be_hugetlb_ && FreeHugetlbPages() >= size_ / kHugePage) {
    Parts parts;
    // Another process may take the pages first: then use other pages.
    if (Make(name_, size_, HugePages::kHugetlb, node_, &parts).ok()) {
      memory_ = SharedMemory(std::exchange(parts.fd, -1), std::exchange(parts.data, nullptr), size_,
                             HugePages::kHugetlb);
      return absl::OkStatus();
    }
  }
  if (size_ > GetAvailableMemory().bytes) return Exhausted("does not fit", size_);
  const HugePages pages = ShmemIsHuge() ? HugePages::kTransparent : HugePages::kNone;
  Parts parts;
  MEMTIDE_RETURN_IF_ERROR(Make(name_, size_, pages, node_, &parts));
  memory_ =
      SharedMemory(std::exchange(parts.fd, -1), std::exchange(parts.data, nullptr), size_, pages);
  return absl::OkStatus();
}

bool SharedMemory::Maker::Populate(Bytes most) {
  if (!memory_.has_value()) status_ = Begin();
  if (!status_.ok()) return true;
  const bool is_hugetlb = memory_->huge_pages() == HugePages::kHugetlb;
  const Bytes left = size_ - populated_;
  // Populating more than is available does not fail: the kernel kills a process instead. Others may
  // have taken memory since the last piece.
  if (!is_hugetlb && left > GetAvailableMemory().bytes) {
    status_ = Exhausted("does not fit", size_);
    return true;
  }
  const Bytes piece = std::min(most, left);
  const int error = PopulateWrite(memory_->data() + populated_.count(), piece.count());
  if (error == 0) {
    populated_ += piece;
    return populated_ == size_;
  }
  if (!is_hugetlb) {
    status_ = Failed("populating", size_, error);
    return true;
  }
  // A cgroup refuses the pages that the machine has: the next call begins with other pages.
  may_be_hugetlb_ = false;
  memory_.reset();
  return false;
}

absl::StatusOr<SharedMemory> SharedMemory::Maker::Take() {
  if (!status_.ok()) return status_;
  return *std::move(memory_);
}

absl::StatusOr<SharedMemory> SharedMemory::Adopt(int fd, Bytes size, absl::optional<int> node) {
  Parts parts;
  parts.fd = fd;
  MEMTIDE_ASSIGN_OR_RETURN(const HugePages pages, Inspect(size, parts));
  MEMTIDE_RETURN_IF_ERROR(MapOn(size, pages, node, &parts));
  const int error = PopulateWrite(parts.data, parts.size);
  if (error != 0) return Failed("populating", size, error);
  return SharedMemory(std::exchange(parts.fd, -1), std::exchange(parts.data, nullptr), size, pages);
}

absl::StatusOr<SharedMemory> SharedMemory::Borrow(int fd, Bytes size) {
  Parts parts;
  parts.fd = fd;
  MEMTIDE_ASSIGN_OR_RETURN(const HugePages pages, Inspect(size, parts));
  MEMTIDE_RETURN_IF_ERROR(Map(size, pages, &parts));
  return SharedMemory(std::exchange(parts.fd, -1), std::exchange(parts.data, nullptr), size, pages);
}

absl::Status SharedMemory::EmptyAll() const { return PunchHole(fd_, Bytes(0), size_); }

absl::Status SharedMemory::Empty(Bytes offset, Bytes size) const {
  if (huge_pages_ == HugePages::kHugetlb) return absl::OkStatus();
  return PunchHole(fd_, offset, size);
}

Bytes SharedMemory::populated() const {
  struct stat info = {};
  return fstat(fd_, &info) == 0 ? Bytes(static_cast<uint64_t>(info.st_blocks) * 512) : Bytes();
}

absl::Status SharedMemory::Fill(Bytes offset, Bytes size) const {
  if (huge_pages_ == HugePages::kHugetlb) return absl::OkStatus();
  if (size > GetAvailableMemory().bytes) return Exhausted("does not fit", size);
  const int error = PopulateWrite(data_ + offset.count(), size.count());
  if (error == 0) return absl::OkStatus();
  Empty(offset, size).IgnoreError();  // Some pages may be populated.
  return Failed("populating", size, error);
}

SharedMemory::SharedMemory(int fd, char* data, Bytes size, HugePages huge_pages)
    : fd_(fd), data_(data), size_(size), huge_pages_(huge_pages) {}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, Bytes())),
      huge_pages_(other.huge_pages_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(huge_pages_, other.huge_pages_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_.count());
  if (fd_ >= 0) close(fd_);
}

HugePages AvailableHugePages(std::string* advice) {
  advice->clear();
  if (FreeHugetlbPages() > 0) return HugePages::kHugetlb;
  if (ShmemIsHuge()) return HugePages::kTransparent;
  *advice = absl::StrCat(
      "shared memory gets pages of 4 KiB, which take three times as long to make and to map. "
      "Reserve huge pages (sysctl vm.nr_hugepages=N, 2 MiB each), or allow transparent ones: "
      "echo advise > ",
      kShmemPolicy);
  return HugePages::kNone;
}

}  // namespace memtide
