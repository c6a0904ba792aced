#include "daemon/config/machine.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::StatusOr<Bytes> MemAvailable() {
  const std::string text = ReadAll("/proc/meminfo");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    uint64_t kib;
    if (absl::ConsumePrefix(&line, "MemAvailable:") && absl::ConsumeSuffix(&line, " kB") &&
        absl::SimpleAtoi(line, &kib)) {
      return KiB(kib);
    }
  }
  return absl::InternalError("no MemAvailable in /proc/meminfo");
}

// What the cgroup (version 2) of this process, and those above it, still allow.
absl::optional<Bytes> CgroupAvailable() {
  const std::string text = ReadAll("/proc/self/cgroup");
  absl::optional<Bytes> least;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "0::")) continue;
    std::filesystem::path group = absl::StrCat("/sys/fs/cgroup", line);
    for (; group.string().size() >= strlen("/sys/fs/cgroup"); group = group.parent_path()) {
      uint64_t max, current;
      if (absl::SimpleAtoi(ReadAll(group / "memory.max"), &max) &&
          absl::SimpleAtoi(ReadAll(group / "memory.current"), &current)) {
        const Bytes left(max > current ? max - current : 0);
        least = least ? std::min(*least, left) : left;
      }
    }
  }
  return least;
}

std::string FromEnvironment(const char* name, const std::string& below) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? "" : absl::StrCat(value, below);
}

absl::StatusOr<FreeSpace> FreeSpaceOf(const std::string& directory) {
  std::filesystem::path path = std::filesystem::absolute(directory);
  std::error_code error;
  while (!std::filesystem::exists(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  struct stat info;
  struct statvfs space;
  if (stat(path.c_str(), &info) != 0 || statvfs(path.c_str(), &space) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("ssd_dirs: cannot tell the free space of \"",
                                                      directory, "\": ", std::strerror(errno)));
  }
  return FreeSpace{info.st_dev, Bytes(space.f_bavail) * space.f_frsize};
}

}  // namespace

absl::StatusOr<Machine> ThisMachine() {
  Machine machine;
  MEMTIDE_ASSIGN_OR_RETURN(machine.available_memory, MemAvailable());
  if (const auto left = CgroupAvailable()) {
    machine.available_memory = std::min(machine.available_memory, *left);
  }
  if (geteuid() == 0) {
    machine.socket_dir = "/run/memtide";
    machine.ssd_dir = "/var/lib/memtide";
  } else {
    machine.socket_dir = FromEnvironment("XDG_RUNTIME_DIR", "/memtide");
    machine.ssd_dir = FromEnvironment("XDG_CACHE_HOME", "/memtide/store");
    if (machine.ssd_dir.empty()) machine.ssd_dir = FromEnvironment("HOME", "/.cache/memtide/store");
  }
  machine.free_space = FreeSpaceOf;
  return machine;
}

}  // namespace memtide
