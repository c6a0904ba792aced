#include "daemon/io/store_directory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/parent_directories.h"
#include "base/status_macros.h"
#include "daemon/io/disk.h"
#include "daemon/io/io_error.h"
#include "daemon/io/whole_file.h"

namespace memtide {
namespace {

constexpr char kMarker[] = ".memtide-store";
constexpr char kMagic[] = "memtide-store 1\n";
constexpr char kFilePrefix[] = ".memtide-file-";

absl::Status NotOurs(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("store directory ", path, " ", why));
}

absl::Status CheckIsPrivate(const std::string& path, int directory) {
  struct stat status;
  if (fstat(directory, &status) != 0) return NotOurs(path, ErrnoName(errno));
  if (status.st_uid != geteuid()) {
    return NotOurs(path, absl::StrCat("belongs to uid ", status.st_uid,
                                      ", and this daemon runs as uid ", geteuid()));
  }
  // A user who can write here can replace the marker, and a second daemon would lock the new one.
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return NotOurs(path, absl::StrFormat("is writable by others (mode %04o): chmod 0700 it",
                                         status.st_mode & 07777));
  }
  return absl::OkStatus();
}

absl::StatusOr<OwnedFd> OpenDirectory(const std::string& path) {
  // All later steps go through this descriptor, so that the directory that is checked is the one
  // that is used, whatever happens to the path.
  OwnedFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (directory.valid()) return directory;
  const int error = errno;
  if (error == ENOENT)
    return absl::NotFoundError(absl::StrCat("store directory ", path, " is not there"));
  return NotOurs(path, absl::StrCat("cannot be used: ", ErrnoName(error)));
}

// Opens the marker, or makes it if the directory is empty. Does not lock it.
absl::StatusOr<OwnedFd> OpenMarker(const std::string& path, int directory) {
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  OwnedFd marker(openat(directory, kMarker, kFlags));
  if (!marker.valid() && errno == ENOENT) {
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory, path));
    for (const std::string& name : names) {
      if (name != kMarker) {
        return NotOurs(path, absl::StrCat("is not empty (it holds \"", name,
                                          "\") and not marked as a memtide store"));
      }
    }
    // Without O_EXCL: if two daemons start at once, the lock decides between them.
    marker = OwnedFd(openat(directory, kMarker, kFlags | O_CREAT, 0600));
  }
  if (!marker.valid()) {
    return NotOurs(path, absl::StrCat("has no usable ", kMarker, ": ", ErrnoName(errno)));
  }
  return marker;
}

std::string ReadMarker(int marker) {
  char text[128];
  const ssize_t size = pread(marker, text, sizeof(text), 0);
  return std::string(text, size > 0 ? size : 0);
}

// The owner's pid in the marker.
std::string OwnerIn(const std::string& marker) {
  if (!absl::StartsWith(marker, kMagic)) return "unknown";
  return std::string(absl::StripAsciiWhitespace(marker.substr(strlen(kMagic))));
}

absl::Status LockMarker(const std::string& path, int marker) {
  struct stat status;
  if (fstat(marker, &status) != 0 || !S_ISREG(status.st_mode)) {
    return NotOurs(path, absl::StrCat("has a ", kMarker, " that is not a file"));
  }
  if (flock(marker, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return NotOurs(path, absl::StrCat("is in use by process ", OwnerIn(ReadMarker(marker))));
    }
    return NotOurs(path, absl::StrCat("cannot be locked: ", ErrnoName(errno)));
  }
  // An empty marker: a daemon ended after it made the file and before it wrote it.
  const std::string text = ReadMarker(marker);
  if (!text.empty() && !absl::StartsWith(text, kMagic)) {
    return NotOurs(path, absl::StrCat("has a ", kMarker, " of another kind or version"));
  }
  // The lock, which ends with the process, says who owns the directory. The pid is for messages.
  const std::string mark = absl::StrCat(kMagic, getpid(), "\n");
  if (ftruncate(marker, 0) != 0 ||
      pwrite(marker, mark.data(), mark.size(), 0) != static_cast<ssize_t>(mark.size())) {
    return NotOurs(path, absl::StrCat("cannot be marked: ", ErrnoName(errno)));
  }
  return absl::OkStatus();
}

absl::Status RemoveLeftovers(const std::string& path, int directory) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory, path));
  for (const std::string& name : names) {
    // This process holds the marker's lock, so no running daemon needs the file of this name.
    if (absl::StartsWith(name, kFilePrefix) && unlinkat(directory, name.c_str(), 0) != 0) {
      return NotOurs(path, absl::StrCat("keeps ", name, ": ", ErrnoName(errno)));
    }
  }
  return absl::OkStatus();
}

bool SupportsDirectIo(int fd) {
  // tmpfs accepts O_DIRECT although it has no device below its page cache.
  struct statfs file_system;
  if (fstatfs(fd, &file_system) != 0 || file_system.f_type == TMPFS_MAGIC) return false;
  struct statx status;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return false;
  // Older kernels do not report alignment: there, an accepted O_DIRECT is the only evidence.
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return true;
  return status.stx_dio_offset_align > 0 && status.stx_dio_offset_align <= kDiskAlignment.count() &&
         status.stx_dio_mem_align <= kDiskAlignment.count();
}

}  // namespace

absl::StatusOr<StoreDirectory> StoreDirectory::Claim(const std::string& path) {
  MEMTIDE_ASSIGN_OR_RETURN(OwnedFd directory, OpenDirectory(path));
  MEMTIDE_RETURN_IF_ERROR(CheckIsPrivate(path, directory.get()));
  if (const absl::Status parents = CheckParents(path); !parents.ok()) {
    return NotOurs(path, absl::StrCat("is at a place of others: ", parents.message()));
  }
  MEMTIDE_ASSIGN_OR_RETURN(OwnedFd marker, OpenMarker(path, directory.get()));
  MEMTIDE_RETURN_IF_ERROR(LockMarker(path, marker.get()));
  MEMTIDE_RETURN_IF_ERROR(RemoveLeftovers(path, directory.get()));
  StoreDirectory claimed(path, std::move(directory), std::move(marker));
  MEMTIDE_RETURN_IF_ERROR(claimed.Probe());
  return claimed;
}

StoreDirectory::StoreDirectory(std::string path, OwnedFd directory, OwnedFd marker)
    : path_(std::move(path)), directory_(std::move(directory)), marker_(std::move(marker)) {
  struct stat status;
  if (fstat(directory_.get(), &status) == 0) drive_ = status.st_dev;
}

absl::Status StoreDirectory::CheckPath() const {
  struct stat claimed, named;
  if (fstat(directory_.get(), &claimed) == 0 && stat(path_.c_str(), &named) == 0 &&
      claimed.st_dev == named.st_dev && claimed.st_ino == named.st_ino) {
    return absl::OkStatus();
  }
  return NotOurs(path_,
                 "is another directory than when memtided started, as where a drive has been "
                 "mounted since: nothing is changed there; restart memtided");
}

Bytes StoreDirectory::Free() const {
  struct statvfs space;
  if (fstatvfs(directory_.get(), &space) != 0) return Bytes();
  return Bytes(space.f_frsize) * space.f_bavail;
}

absl::StatusOr<OwnedFd> StoreDirectory::OpenUnnamed(int extra_flags) const {
  const int flags = O_RDWR | O_CLOEXEC | extra_flags;
  OwnedFd file(openat(directory_.get(), ".", flags | O_TMPFILE, 0600));
  if (file.valid()) return file;
  // EOPNOTSUPP comes from a file system without unnamed files, EISDIR from a kernel without them.
  if (errno == EOPNOTSUPP || errno == EISDIR) {
    static std::atomic<uint64_t> next{0};
    const std::string name = absl::StrCat(kFilePrefix, getpid(), "-", next++);
    file = OwnedFd(
        openat(directory_.get(), name.c_str(), flags | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
    if (file.valid() && unlinkat(directory_.get(), name.c_str(), 0) == 0) return file;
  }
  return WriteError(errno, absl::StrCat("making a file in ", path_));
}

absl::Status StoreDirectory::Probe() {
  // A file system without direct I/O may refuse the flag when a file is opened.
  absl::StatusOr<OwnedFd> file = OpenUnnamed(O_DIRECT);
  direct_ = file.ok() && SupportsDirectIo(file->get());
  if (!file.ok()) {
    file = OpenUnnamed(0);
    MEMTIDE_RETURN_IF_ERROR(file.status());
  }
  if (fallocate(file->get(), 0, 0, kDiskAlignment.count()) != 0) {
    // Without reserved blocks a write-back could fail for lack of space (decision 3).
    if (errno == EOPNOTSUPP) {
      return NotOurs(path_, "is on a file system that cannot reserve blocks (fallocate)");
    }
    return WriteError(errno,
                      absl::StrCat("reserving ", FormatBytes(kDiskAlignment), " in ", path_));
  }
  return absl::OkStatus();
}

absl::Status StoreDirectory::Adopt(int file, Bytes size) const {
  // The marker, because files and directories of an overlay are on different devices.
  struct stat marker, status;
  const int flags = fcntl(file, F_GETFL);
  if (flags < 0 || fstat(marker_.get(), &marker) != 0 || fstat(file, &status) != 0 ||
      !S_ISREG(status.st_mode) || status.st_dev != marker.st_dev ||
      static_cast<uint64_t>(status.st_size) != size.count() ||
      ((flags & O_DIRECT) != 0) != direct_) {
    return absl::DataLossError(absl::StrCat("descriptor ", file, " is not a file of ",
                                            FormatBytes(size), " made in ", path_));
  }
  if (size.IsZero()) return absl::OkStatus();
  // A killed process does not wait for its I/O. fallocate does: it ends after the I/O in flight.
  int result;
  do {
    result = fallocate(file, 0, 0, static_cast<off_t>(size.count()));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return absl::OkStatus();
  return WriteError(errno, absl::StrCat("adopting a file of ", FormatBytes(size), " in ", path_));
}

absl::StatusOr<OwnedFd> StoreDirectory::MakeFile(Bytes size) const {
  MEMTIDE_ASSIGN_OR_RETURN(OwnedFd file, OpenUnnamed(direct_ ? O_DIRECT : 0));
  if (size.IsZero()) return file;
  const Bytes free = Free();
  const std::string what = absl::StrCat("reserving ", FormatBytes(size), " in ", path_, ", where ",
                                        FormatBytes(free), " are free");
  // A failing fallocate would fill the disk for a moment, for every user of it.
  if (size > free) return WriteError(ENOSPC, what);
  int result;
  do {
    // After a signal the whole range is asked for again: what is reserved already stays as it is.
    result = fallocate(file.get(), 0, 0, static_cast<off_t>(size.count()));
  } while (result != 0 && errno == EINTR);
  if (result != 0) return WriteError(errno, what);
  return file;
}

}  // namespace memtide
