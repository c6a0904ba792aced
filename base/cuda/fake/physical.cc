#include "base/cuda/fake/physical.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/check.h"
#include "base/cuda/fake/fake_cuda.h"

namespace memtide::fake_cuda {
namespace {

// Serializes searching for free memory and creating memory, over all processes.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory) {
    mkdir(directory.c_str(), S_IRWXU);
    fd_ = open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
    MEMTIDE_CHECK(fd_ >= 0) << directory << ": " << std::strerror(errno);
    while (flock(fd_, LOCK_EX) != 0) MEMTIDE_CHECK(errno == EINTR) << std::strerror(errno);
  }
  ~DirectoryLock() { close(fd_); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

std::string NameFor(const PhysicalFacts& facts) {
  uint64_t unique = 0;
  MEMTIDE_CHECK(getrandom(&unique, sizeof(unique), 0) == sizeof(unique));
  return absl::StrCat("mem-", facts.device, "-", facts.size, "-", facts.exportable ? 1 : 0, "-",
                      absl::Hex(unique, absl::kZeroPad16));
}

absl::optional<PhysicalFacts> FactsOf(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '-');
  PhysicalFacts facts;
  if (parts.size() != 5 || parts[0] != "mem" || !absl::SimpleAtoi(parts[1], &facts.device) ||
      !absl::SimpleAtoi(parts[2], &facts.size)) {
    return absl::nullopt;
  }
  facts.exportable = parts[3] == "1";
  return facts;
}

// Unlinks the memory if no process holds it any more, and returns whether it is gone. REQUIRES: the
// directory is locked.
bool Reap(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return true;
  const bool free = flock(fd, LOCK_EX | LOCK_NB) == 0;
  if (free) unlink(path.c_str());
  close(fd);
  return free;
}

// REQUIRES: the directory is locked.
Bytes UsedWhileLocked(const std::string& directory, int device) {
  Bytes used;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const auto facts = FactsOf(entry.path().filename().string());
    if (facts && facts->device == device && !Reap(entry.path().string())) {
      used += Bytes(facts->size);
    }
  }
  return used;
}

bool Fill(int fd, uint64_t size) {
  const std::string poison(kGranularity, kPoison);
  for (uint64_t at = 0; at < size; at += kGranularity) {
    if (pwrite(fd, poison.data(), kGranularity, at) != static_cast<ssize_t>(kGranularity)) {
      return false;
    }
  }
  return true;
}

std::string g_private_directory;
pid_t g_private_owner = 0;

void RemovePrivateDirectory() {
  std::error_code ignored;
  if (getpid() == g_private_owner) std::filesystem::remove_all(g_private_directory, ignored);
}

}  // namespace

std::shared_ptr<Physical> Physical::Create(const std::string& directory, Bytes capacity,
                                           const PhysicalFacts& facts, Content content) {
  const DirectoryLock lock(directory);
  const Bytes used = UsedWhileLocked(directory, facts.device);
  if (used + Bytes(facts.size) > capacity) return nullptr;
  const std::string name = NameFor(facts);
  const std::string path = absl::StrCat(directory, "/", name);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  MEMTIDE_CHECK(fd >= 0) << path << ": " << std::strerror(errno);
  auto physical = std::make_shared<Physical>(facts, name, fd);
  MEMTIDE_CHECK(flock(fd, LOCK_SH | LOCK_NB) == 0) << path << ": " << std::strerror(errno);
  const bool filled = content == Content::kPoison
                          ? Fill(fd, facts.size)
                          : ftruncate(fd, static_cast<off_t>(facts.size)) == 0;
  if (!filled) return nullptr;
  return physical;
}

std::shared_ptr<Physical> Physical::FromDescriptor(const std::string& directory, int fd) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), error);
  if (error || path.parent_path() != directory) return nullptr;
  const auto facts = FactsOf(path.filename().string());
  const int own = facts ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
  if (own < 0) return nullptr;
  return std::make_shared<Physical>(*facts, path.filename().string(), own);
}

std::shared_ptr<Physical> Physical::Open(const std::string& directory, const std::string& name) {
  const DirectoryLock lock(directory);
  const std::string path = absl::StrCat(directory, "/", name);
  const auto facts = FactsOf(name);
  if (!facts || Reap(path)) return nullptr;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  MEMTIDE_CHECK(fd >= 0) << path << ": " << std::strerror(errno);
  MEMTIDE_CHECK(flock(fd, LOCK_SH | LOCK_NB) == 0) << path << ": " << std::strerror(errno);
  return std::make_shared<Physical>(*facts, name, fd);
}

Physical::~Physical() { close(fd_); }

Bytes UsedMemory(const std::string& directory, int device) {
  const DirectoryLock lock(directory);
  return UsedWhileLocked(directory, device);
}

uint64_t LossesOf(const std::string& directory, int device) {
  struct stat file;
  const std::string path = absl::StrCat(directory, "/lost-", device);
  return stat(path.c_str(), &file) == 0 ? static_cast<uint64_t>(file.st_size) : 0;
}

bool IsGone(const std::string& directory, int device) {
  return access(absl::StrCat(directory, "/gone-", device).c_str(), F_OK) == 0;
}

std::string MakePrivateDirectory() {
  std::string directory = "/dev/shm/memtide-fake-cuda-XXXXXX";
  MEMTIDE_CHECK(mkdtemp(&directory[0]) != nullptr) << directory << ": " << std::strerror(errno);
  g_private_directory = directory;
  g_private_owner = getpid();
  std::atexit(RemovePrivateDirectory);
  return directory;
}

}  // namespace memtide::fake_cuda
