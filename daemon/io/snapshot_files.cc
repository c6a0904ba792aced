#include "daemon/io/snapshot_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "daemon/io/io_error.h"
#include "daemon/io/snapshot_set.h"
#include "daemon/io/whole_file.h"

namespace memtide {
namespace {

constexpr uint64_t kStatBlock = 512;  // The unit of st_blocks on every file system.
// As much as one protobuf message may have.
constexpr Bytes kMost((uint64_t{1} << 31) - 1);

std::string SnapshotName(JobId job) { return absl::StrCat(kSnapshotPrefix, job.value()); }

std::string StorePath(const std::string& directory, StoreId store) {
  return absl::StrCat(directory, "/", kStorePrefix, store.value());
}

absl::Status Flush(int fd, const std::string& what) {
  if (fsync(fd) == 0) return absl::OkStatus();
  return WriteError(errno, absl::StrCat("putting ", what, " on stable storage"));
}

absl::Status FlushDirectory(const std::string& path) {
  const OwnedFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return WriteError(errno, absl::StrCat("opening ", path));
  return Flush(directory.get(), path);
}

// Whether the file has this name. Another file of that name may be of a job that this process does
// not know, so it stays.
absl::StatusOr<bool> HasName(int file, const std::string& path) {
  struct stat own, named;
  if (fstat(file, &own) != 0) return WriteError(errno, absl::StrCat("looking at ", path));
  if (lstat(path.c_str(), &named) != 0) {
    if (errno == ENOENT) return false;
    return WriteError(errno, absl::StrCat("looking at ", path));
  }
  if (own.st_dev == named.st_dev && own.st_ino == named.st_ino) return true;
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is a file of another job, which stays: restart memtided"));
}

// Returns whether the file had no name before.
absl::StatusOr<bool> GiveName(int file, const std::string& path) {
  MEMTIDE_ASSIGN_OR_RETURN(const bool has_name, HasName(file, path));
  if (has_name) return false;
  const std::string unnamed = absl::StrCat("/proc/self/fd/", file);
  if (linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0)
    return true;
  const int error = errno;
  if (error != ENOENT && error != EOPNOTSUPP) {
    return WriteError(error, absl::StrCat("naming ", path));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path,
      ": the file system has no files without a name (O_TMPFILE), so that no job can be "
      "durable there; use a directory on ext4, XFS or Btrfs"));
}

// The names in a directory that begin with `prefix`, without it.
absl::StatusOr<std::vector<std::string>> NamesWith(const std::string& path,
                                                   absl::string_view prefix) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path));
  std::vector<std::string> rests;
  for (absl::string_view name : names) {
    if (absl::ConsumePrefix(&name, prefix)) rests.emplace_back(name);
  }
  return rests;
}

absl::Status Remove(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return WriteError(errno, absl::StrCat("removing ", path));
}

}  // namespace

absl::Status SaveSnapshotFile(const std::vector<std::string>& directories, JobId job,
                              const std::map<StoreId, std::vector<int>>& files,
                              absl::string_view text) {
  MEMTIDE_RETURN_IF_ERROR(MakeSet(directories));
  std::set<size_t> changed;
  for (const auto& [store, of_store] : files) {
    for (size_t i = 0; i < of_store.size(); ++i) {
      const std::string path = StorePath(directories[i], store);
      MEMTIDE_RETURN_IF_ERROR(Flush(of_store[i], path));
      MEMTIDE_ASSIGN_OR_RETURN(const bool is_new, GiveName(of_store[i], path));
      if (is_new) changed.insert(i);
    }
  }
  for (const size_t i : changed) MEMTIDE_RETURN_IF_ERROR(FlushDirectory(directories[i]));
  // The data is there before what names it.
  return ReplaceFile(directories.front(), SnapshotName(job), text);
}

absl::Status RemoveSnapshotFile(const std::vector<std::string>& directories, JobId job,
                                const std::vector<StoreId>& stores) {
  const std::string path = absl::StrCat(directories.front(), "/", SnapshotName(job));
  MEMTIDE_RETURN_IF_ERROR(Remove(absl::StrCat(path, kNextSuffix)));
  MEMTIDE_RETURN_IF_ERROR(Remove(path));
  MEMTIDE_RETURN_IF_ERROR(FlushDirectory(directories.front()));
  for (const StoreId store : stores) {
    for (const std::string& directory : directories) {
      MEMTIDE_RETURN_IF_ERROR(Remove(StorePath(directory, store)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SnapshotFile>> LoadSnapshotFiles(
    const std::vector<std::string>& directories) {
  std::vector<SnapshotFile> files;
  if (directories.empty()) return files;
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           NamesWith(directories.front(), kSnapshotPrefix));
  for (const std::string& name : names) {
    uint64_t job;
    if (!absl::SimpleAtoi(name, &job)) continue;
    const std::string path = absl::StrCat(directories.front(), "/", SnapshotName(JobId(job)));
    files.push_back({JobId(job), path, ReadWholeFile(path, kMost)});
  }
  return files;
}

absl::StatusOr<std::set<StoreId>> NamedStores(const std::vector<std::string>& directories) {
  std::set<StoreId> stores;
  for (const std::string& directory : directories) {
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             NamesWith(directory, kStorePrefix));
    for (const std::string& name : names) {
      uint32_t store;
      if (absl::SimpleAtoi(name, &store)) stores.insert(StoreId(store));
    }
  }
  return stores;
}

absl::StatusOr<std::set<StoreId>> RemoveLeftSnapshotFiles(
    const std::vector<std::string>& directories, const std::set<StoreId>& saved) {
  // Only where all directories are there is a store that no snapshot names known to be left over.
  MEMTIDE_RETURN_IF_ERROR(CheckSet(directories));
  MEMTIDE_ASSIGN_OR_RETURN(const std::set<StoreId> named, NamedStores(directories));
  std::set<StoreId> removed;
  for (const StoreId store : named) {
    if (saved.count(store) > 0) continue;
    for (const std::string& directory : directories) {
      MEMTIDE_RETURN_IF_ERROR(Remove(StorePath(directory, store)));
    }
    removed.insert(store);
  }
  if (directories.empty()) return removed;
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           NamesWith(directories.front(), kSnapshotPrefix));
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, kNextSuffix)) continue;
    MEMTIDE_RETURN_IF_ERROR(Remove(absl::StrCat(directories.front(), "/", kSnapshotPrefix, name)));
  }
  return removed;
}

absl::StatusOr<std::vector<OwnedFd>> OpenNamedStore(const std::vector<std::string>& directories,
                                                    const std::vector<bool>& direct,
                                                    StoreId store) {
  std::vector<OwnedFd> files;
  for (size_t i = 0; i < directories.size(); ++i) {
    const std::string path = StorePath(directories[i], store);
    const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | (direct[i] ? O_DIRECT : 0);
    OwnedFd file(open(path.c_str(), flags));
    if (!file.valid()) {
      return absl::DataLossError(absl::StrCat(path, " cannot be opened: ", ErrnoName(errno)));
    }
    files.push_back(std::move(file));
  }
  return files;
}

std::map<uint64_t, Bytes> BlocksOfNamedStore(const std::vector<std::string>& directories,
                                             StoreId store) {
  std::map<uint64_t, Bytes> blocks;
  for (const std::string& directory : directories) {
    struct stat status;
    if (lstat(StorePath(directory, store).c_str(), &status) != 0) continue;
    blocks[status.st_dev] += Bytes(static_cast<uint64_t>(status.st_blocks)) * kStatBlock;
  }
  return blocks;
}

}  // namespace memtide
