#include "daemon/io/write_counts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "daemon/io/io_error.h"
#include "daemon/io/owned_fd.h"

namespace memtide {
namespace {

constexpr char kName[] = ".memtide-writes";
constexpr char kNewName[] = ".memtide-writes.new";
constexpr char kMagic[] = "memtide-writes 1";
// 100,000 users that wrote in each ten minutes of a day have less.
constexpr off_t kMostBytes = off_t{1} << 30;

std::string PathOf(const std::string& directory, const char* name) {
  return absl::StrCat(directory, "/", name);
}

absl::Status Error(const std::string& what, int error) {
  return absl::InternalError(absl::StrCat(what, ": ", ErrnoName(error)));
}

absl::StatusOr<std::string> Read(const std::string& path) {
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    const int error = errno;
    if (error == ENOENT) return absl::NotFoundError(absl::StrCat(path, " is not there"));
    return Error(absl::StrCat("opening ", path), error);
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size > kMostBytes) {
    return absl::DataLossError(absl::StrCat(path, " is no file of counts"));
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t end = 0;
  while (end < text.size()) {
    const ssize_t got = read(file.get(), &text[end], text.size() - end);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Error(absl::StrCat("reading ", path), got < 0 ? errno : EIO);
    end += static_cast<size_t>(got);
  }
  return text;
}

absl::Status Write(const std::string& path, const std::string& text) {
  const OwnedFd file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return Error(absl::StrCat("making ", path), errno);
  size_t end = 0;
  while (end < text.size()) {
    const ssize_t wrote = write(file.get(), &text[end], text.size() - end);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return Error(absl::StrCat("writing ", path), wrote < 0 ? errno : EIO);
    end += static_cast<size_t>(wrote);
  }
  if (fdatasync(file.get()) != 0) return Error(absl::StrCat("flushing ", path), errno);
  return absl::OkStatus();
}

// A line of the file; false: it is none.
bool Parse(absl::string_view line, WriteCounts* counts) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  uint64_t bytes;
  if (!absl::SimpleAtoi(words.back(), &bytes)) return false;
  if (words.size() == 2 && words[0] == "written") {
    counts->written = Bytes(bytes);
    return true;
  }
  WriteCounts::Past past;
  past.bytes = Bytes(bytes);
  if (words.size() != 4 || words[0] != "past" || !absl::SimpleAtoi(words[1], &past.unix_seconds) ||
      !absl::SimpleAtoi(words[2], &past.uid)) {
    return false;
  }
  counts->last_day.push_back(past);
  return true;
}

}  // namespace

absl::StatusOr<WriteCounts> LoadWriteCounts(const std::string& directory) {
  const std::string path = PathOf(directory, kName);
  MEMTIDE_ASSIGN_OR_RETURN(const std::string text, Read(path));
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  WriteCounts counts;
  // The last line ends, too: after it comes an empty one.
  bool good = lines.size() >= 3 && lines[0] == kMagic && lines.back().empty();
  size_t number = 1;
  for (; good && number + 1 < lines.size(); ++number) {
    good = absl::StartsWith(lines[number], number == 1 ? "written " : "past ") &&
           Parse(lines[number], &counts);
  }
  // The sums of what is there must not overflow.
  Bytes sum;
  for (const WriteCounts::Past& past : counts.last_day) {
    const absl::optional<Bytes> more = CheckedAdd(sum, past.bytes);
    good = good && more.has_value() && *more <= counts.written;
    sum = more.value_or(sum);
  }
  if (good) return counts;
  return absl::DataLossError(
      absl::StrCat(path, " is no file of counts, or damaged, at line ", number));
}

absl::Status SaveWriteCounts(const std::string& directory, const WriteCounts& counts) {
  std::string text = absl::StrCat(kMagic, "\nwritten ", counts.written.count(), "\n");
  for (const WriteCounts::Past& past : counts.last_day) {
    absl::StrAppend(&text, "past ", past.unix_seconds, " ", past.uid, " ", past.bytes.count(),
                    "\n");
  }
  const std::string path = PathOf(directory, kName), new_path = PathOf(directory, kNewName);
  MEMTIDE_RETURN_IF_ERROR(Write(new_path, text));
  if (rename(new_path.c_str(), path.c_str()) != 0) {
    return Error(absl::StrCat("renaming ", new_path), errno);
  }
  return absl::OkStatus();
}

}  // namespace memtide
