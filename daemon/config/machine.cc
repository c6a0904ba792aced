#include "daemon/config/machine.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/available_memory.h"

namespace memtide {
namespace {

std::string FromEnvironment(const char* name, const std::string& below) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? "" : absl::StrCat(value, below);
}

absl::StatusOr<FreeSpace> FreeSpaceOf(const std::string& directory,
                                      const PersistedMemory& persisted) {
  std::filesystem::path path = std::filesystem::absolute(directory);
  std::error_code error;
  // The daemon makes a missing directory later; until then its nearest parent has the free space.
  while (!std::filesystem::exists(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  struct stat info;
  struct statvfs space;
  if (stat(path.c_str(), &info) != 0 || statvfs(path.c_str(), &space) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("ssd_dirs: cannot tell the free space of \"",
                                                      directory, "\": ", std::strerror(errno)));
  }
  // Stores that the descriptor store holds take space now, and are this daemon's.
  const auto own = persisted.blocks.find(info.st_dev);
  const Bytes persisted_here = own == persisted.blocks.end() ? Bytes() : own->second;
  // f_bavail leaves out the blocks that the file system keeps for root.
  return FreeSpace{info.st_dev, Bytes(space.f_bavail) * space.f_frsize + persisted_here};
}

}  // namespace

absl::StatusOr<Machine> ThisMachine(const PersistedMemory& persisted) {
  Machine machine;
  machine.persisted = persisted;
  machine.available_memory = GetAvailableMemory("", persisted.memory).bytes;
  if (machine.available_memory == Bytes(std::numeric_limits<uint64_t>::max())) {
    return absl::InternalError("no MemAvailable in /proc/meminfo");
  }
  // A daemon of root is the node's service. Any other has the directories of its user.
  if (geteuid() == 0) {
    machine.socket_dir = "/run/memtide";
    machine.ssd_dir = "/var/lib/memtide";
  } else {
    machine.socket_dir = FromEnvironment("XDG_RUNTIME_DIR", "/memtide");
    machine.ssd_dir = FromEnvironment("XDG_CACHE_HOME", "/memtide/store");
    if (machine.ssd_dir.empty()) machine.ssd_dir = FromEnvironment("HOME", "/.cache/memtide/store");
  }
  machine.accounts = MachineAccounts();
  machine.free_space = [persisted](const std::string& directory) {
    return FreeSpaceOf(directory, persisted);
  };
  return machine;
}

}  // namespace memtide
