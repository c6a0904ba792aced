#include "daemon/device/gpu_owners.h"

#include <dirent.h>
#include <fcntl.h>
#include <google/protobuf/text_format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

constexpr size_t kLargestFile = 4096;
constexpr size_t kMostFiles = 1024;  // Files that are read for one GPU.

std::string PrefixOf(const std::string& uuid) { return absl::StrCat("memtide-gpu.", uuid, "."); }

std::string ErrnoText() { return std::strerror(errno); }

// Whether a process has the write lock.
bool IsLocked(int fd) {
  struct flock lock = {};
  lock.l_type = F_RDLCK;  // Conflicts with write locks only, which need the right to write.
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// The owner that a file speaks of; nullopt: its daemon has ended. The text is of any user, so that
// nothing in it is taken for granted.
absl::StatusOr<absl::optional<v1::GpuOwner>> ReadOwner(int directory, const std::string& name) {
  // O_NONBLOCK: to open a pipe would wait for a writer.
  const int fd = openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return absl::optional<v1::GpuOwner>();
  if (fd < 0) return absl::FailedPreconditionError(ErrnoText());
  const absl::Cleanup close_file = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::FailedPreconditionError(ErrnoText());
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError("it is not a file");
  if (!IsLocked(fd)) {
    if (info.st_uid == geteuid()) unlinkat(directory, name.c_str(), 0);
    return absl::optional<v1::GpuOwner>();
  }
  char text[kLargestFile];
  const ssize_t size = read(fd, text, sizeof(text));
  v1::GpuOwner owner;
  if (size < 0 ||
      !google::protobuf::TextFormat::ParseFromString(std::string(text, static_cast<size_t>(size)),
                                                     &owner) ||
      owner.pid() <= 0) {
    return absl::FailedPreconditionError("it does not say which daemon has the GPU");
  }
  owner.set_uid(info.st_uid);
  return absl::optional<v1::GpuOwner>(std::move(owner));
}

// Makes a file that is locked and has its text before it has a name, so that none sees less of it.
absl::StatusOr<int> MakeFile(const v1::GpuOwner& owner, const std::string& directory,
                             const std::string& path) {
  const auto failed = [&directory](const char* what) {
    return absl::FailedPreconditionError(
        absl::StrCat("others do not see that this daemon has memory of the GPU: ", what, " in ",
                     directory, ": ", ErrnoText()));
  };
  const int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) return failed("making a file");
  absl::Cleanup close_file = [fd] { close(fd); };
  // All users may read it. The umask of the daemon is for other files.
  if (fchmod(fd, S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH) != 0) return failed("chmod");
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0) return failed("locking a file");
  std::string text;
  google::protobuf::TextFormat::PrintToString(owner, &text);
  if (write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return failed("writing a file");
  }
  const std::string link = absl::StrCat("/proc/self/fd/", fd);
  if (linkat(AT_FDCWD, link.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    return failed("naming a file");
  }
  std::move(close_file).Cancel();
  return fd;
}

absl::StatusOr<std::string> NewName(const std::string& uuid) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    return absl::InternalError(absl::StrCat("getrandom: ", ErrnoText()));
  }
  return absl::StrCat(PrefixOf(uuid), absl::Hex(random, absl::kZeroPad16));
}

GpuOwners FindBut(const std::string& own_path, const std::string& uuid,
                  const std::string& directory) {
  GpuOwners found;
  DIR* const entries = opendir(directory.c_str());
  if (entries == nullptr) {
    found.problems.push_back(absl::StrCat(
        "which daemons have memory of the GPU is unknown: ", directory, ": ", ErrnoText()));
    return found;
  }
  const absl::Cleanup close_directory = [entries] { closedir(entries); };
  size_t files = 0;
  while (const dirent* const entry = readdir(entries)) {
    const std::string name = entry->d_name;
    const std::string path = absl::StrCat(directory, "/", name);
    if (!absl::StartsWith(name, PrefixOf(uuid)) || path == own_path) continue;
    if (++files > kMostFiles) {
      found.problems.push_back(
          absl::StrCat(directory, " has more than ", kMostFiles, " files of one GPU"));
      break;
    }
    absl::StatusOr<absl::optional<v1::GpuOwner>> owner = ReadOwner(dirfd(entries), name);
    if (!owner.ok()) {
      found.problems.push_back(
          absl::StrCat(absl::CEscape(path), " is of no use: ", owner.status().message()));
    } else if (owner->has_value()) {
      found.owners.push_back(**std::move(owner));
    }
  }
  return found;
}

}  // namespace

GpuOwners FindGpuOwners(const std::string& uuid, const std::string& directory) {
  return FindBut("", uuid, directory);
}

std::string Describe(const v1::GpuOwner& owner) {
  return absl::StrCat(owner.service() ? "the service" : "a private", " memtided of uid ",
                      owner.uid(), ", pid ", owner.pid(), ", which has ",
                      FormatBytes(Bytes(owner.pool_bytes())), " of it, with sockets in ",
                      absl::CEscape(owner.socket_dir()));
}

absl::StatusOr<std::unique_ptr<GpuOwnership>> GpuOwnership::Take(const std::string& uuid,
                                                                 const v1::GpuOwner& owner,
                                                                 std::vector<std::string>* notes,
                                                                 const std::string& directory) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::string name, NewName(uuid));
  const std::string path = absl::StrCat(directory, "/", name);
  std::unique_ptr<GpuOwnership> ownership;
  // The file is made before others are looked for: of two daemons, one at least sees the other.
  const absl::StatusOr<int> fd = MakeFile(owner, directory, path);
  if (fd.ok()) {
    ownership = std::unique_ptr<GpuOwnership>(new GpuOwnership(path, *fd));
  } else {
    notes->push_back(std::string(fd.status().message()));
  }
  GpuOwners others = FindBut(path, uuid, directory);
  for (std::string& problem : others.problems) notes->push_back(std::move(problem));
  uint64_t shared_bytes = 0;
  for (const v1::GpuOwner& other : others.owners) {
    if (other.service()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "GPU ", uuid, " belongs to ", Describe(other),
          ". Connect to it: `memtide run` without pools or a budget does, with --socket-dir where "
          "that is not the default. Or choose another GPU or none: --device cuda:N, --device "
          "none"));
    }
    shared_bytes += other.pool_bytes();
  }
  if (!others.owners.empty()) {
    notes->push_back(absl::StrCat(
        "GPU ", uuid, " is shared with ", others.owners.size(), " private memtided, which ",
        others.owners.size() == 1 ? "has " : "have ", FormatBytes(Bytes(shared_bytes)), " of it"));
  }
  return ownership;
}

GpuOwnership::GpuOwnership(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

GpuOwnership::~GpuOwnership() {
  unlink(path_.c_str());
  close(fd_);
}

}  // namespace memtide
