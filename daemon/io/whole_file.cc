#include "daemon/io/whole_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "daemon/io/io_error.h"
#include "daemon/io/owned_fd.h"

namespace memtide {
namespace {

constexpr char kLostAndFound[] = "lost+found";  // Made by the file system in its root.

bool WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t some = write(fd, text.data(), text.size());
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) return false;
    text.remove_prefix(static_cast<size_t>(some));
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, Bytes most) {
  // Without O_NONBLOCK a pipe of that name would hold up the caller.
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    const int error = errno;
    if (error == ENOENT) return absl::NotFoundError(absl::StrCat(path, " is not there"));
    return ReadError(error, absl::StrCat("opening ", path));
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<uint64_t>(status.st_size) > most.count()) {
    return absl::DataLossError(
        absl::StrCat(path, " is no regular file of at most ", FormatBytes(most)));
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  for (size_t end = 0; end < text.size();) {
    const ssize_t some = read(file.get(), &text[end], text.size() - end);
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) return ReadError(some < 0 ? errno : EIO, absl::StrCat("reading ", path));
    end += static_cast<size_t>(some);
  }
  return text;
}

absl::StatusOr<std::vector<std::string>> NamesIn(int directory, const std::string& path) {
  const std::string what = absl::StrCat("listing ", path);
  // closedir() closes the descriptor, so the stream gets one of its own.
  DIR* const stream = fdopendir(openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (stream == nullptr) return ReadError(errno, what);
  const absl::Cleanup close = [stream] { closedir(stream); };
  std::vector<std::string> names;
  for (;;) {
    errno = 0;  // Only so an error differs from the end.
    const dirent* const entry = readdir(stream);
    if (entry == nullptr && errno != 0) return ReadError(errno, what);
    if (entry == nullptr) return names;
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && name != kLostAndFound) names.push_back(name);
  }
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& path) {
  const OwnedFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.valid()) return NamesIn(directory.get(), path);
  const int error = errno;
  if (error == ENOENT) return absl::NotFoundError(absl::StrCat(path, " is not there"));
  return ReadError(error, absl::StrCat("opening ", path));
}

absl::Status ReplaceFile(const std::string& directory, const std::string& name,
                         absl::string_view text) {
  const std::string next = absl::StrCat(name, kNextSuffix);
  const auto failed = [&](absl::string_view what) {
    const int error = errno;
    return WriteError(error, absl::StrCat(what, " ", directory, "/", next));
  };
  const OwnedFd folder(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return failed("making");
  // A file that a killed daemon has left is of no use.
  if (unlinkat(folder.get(), next.c_str(), 0) != 0 && errno != ENOENT) return failed("removing");
  const OwnedFd file(openat(folder.get(), next.c_str(),
                            O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                            S_IRUSR | S_IWUSR));
  if (!file.valid()) return failed("making");
  if (!WriteAll(file.get(), text)) return failed("writing");
  if (fsync(file.get()) != 0) return failed("flushing");
  if (renameat(folder.get(), next.c_str(), folder.get(), name.c_str()) != 0) {
    return failed("renaming");
  }
  if (fsync(folder.get()) == 0) return absl::OkStatus();
  const absl::Status unflushed = WriteError(errno, absl::StrCat("flushing ", directory));
  return absl::UnknownError(absl::StrCat("whether ", name, " is the new one or the last one is ",
                                         "not known: ", unflushed.message()));
}

}  // namespace memtide
