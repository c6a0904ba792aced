#include "daemon/io/fd_store.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#ifdef HAVE_LIBSYSTEMD
#include <systemd/sd-daemon.h>
#endif

namespace memtide {

namespace {

constexpr char kStoreFdPrefix[] = "store-";

}  // namespace

std::string RegionName(RegionId region) { return absl::StrCat(kRegionPrefix, region.value()); }

std::string StoreFileName(StoreId store, size_t file) {
  return absl::StrCat(kStoreFdPrefix, store.value(), ".", file);
}

bool IsMemoryName(absl::string_view name) {
  return absl::StartsWith(name, kRegionPrefix) || absl::StartsWith(name, kStoreFdPrefix);
}

#ifdef HAVE_LIBSYSTEMD

namespace {

// The service manager may be busy starting every other service.
constexpr uint64_t kPatienceMicros = 10'000'000;

}  // namespace

// systemd sets the variable in the environment of a service that may notify it.
bool HasFdStore() { return std::getenv("NOTIFY_SOCKET") != nullptr; }

void StoreFd(const std::string& name, int fd) {
  // Without FDPOLL=0 systemd drops a descriptor as soon as it reports POLLHUP or POLLERR.
  const std::string message = absl::StrCat("FDSTORE=1\nFDNAME=", name, "\nFDPOLL=0");
  int result = sd_pid_notify_with_fds(0, /*unset_environment=*/0, message.c_str(), &fd, 1);
  // Without the barrier, a crash could come before the service manager has the descriptor.
  if (result > 0) result = sd_notify_barrier(/*unset_environment=*/0, kPatienceMicros);
  if (result > 0) return;
  spdlog::warn(
      "the service manager did not store descriptor {}: {}; its job will not outlive this daemon",
      name, result < 0 ? strerrorname_np(-result) : "there is no notification socket");
}

void RemoveStoredFd(const std::string& name) {
  sd_notify(/*unset_environment=*/0, absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name).c_str());
}

StoredFds TakeStoredFds() {
  StoredFds stored;
  char** names = nullptr;
  // Without the variables, a child process does not take these descriptors for its own.
  const int count = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  for (int i = 0; i < count; ++i) {
    stored[names[i]] = OwnedFd(SD_LISTEN_FDS_START + i);
    std::free(names[i]);
  }
  std::free(names);
  return stored;
}

#else

bool HasFdStore() { return false; }

void StoreFd(const std::string& name, int fd) {}

void RemoveStoredFd(const std::string& name) {}

StoredFds TakeStoredFds() { return {}; }

#endif

}  // namespace memtide
