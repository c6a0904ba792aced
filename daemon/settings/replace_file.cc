#include "daemon/settings/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/io/owned_fd.h"

namespace memtide {
namespace {

bool WriteAll(int fd, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t some = write(fd, text.data() + written, text.size() - written);
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) return false;
    written += static_cast<size_t>(some);
  }
  return true;
}

}  // namespace

absl::Status ReplaceFile(const std::string& directory, const std::string& name,
                         const std::string& text) {
  const std::string next = name + ".next";
  const auto failed = [&](absl::string_view call) {
    return absl::UnavailableError(absl::StrCat("cannot write \"", directory, "/", name,
                                               "\": ", call, ": ", std::strerror(errno)));
  };
  const OwnedFd folder(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return failed("open");
  // What a daemon that was killed has left is of no use.
  if (unlinkat(folder.get(), next.c_str(), 0) != 0 && errno != ENOENT) return failed("unlink");
  const OwnedFd file(openat(folder.get(), next.c_str(),
                            O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                            S_IRUSR | S_IWUSR));
  if (!file.valid()) return failed("open");
  if (!WriteAll(file.get(), text)) return failed("write");
  if (fsync(file.get()) != 0) return failed("fsync");
  if (renameat(folder.get(), next.c_str(), folder.get(), name.c_str()) != 0) {
    return failed("rename");
  }
  // The name is on stable storage only with its directory. The file is replaced already, so that an
  // error here leaves either of the two.
  if (fsync(folder.get()) != 0) return failed("fsync");
  return absl::OkStatus();
}

}  // namespace memtide
