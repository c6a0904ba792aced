#include "tests/integration/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace memtide {
namespace {

constexpr size_t kMostDescriptors = 16;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  MEMTIDE_CHECK(path.size() < sizeof(address.sun_path)) << path;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

std::vector<int> DescriptorsIn(msghdr* header) {
  std::vector<int> descriptors;
  for (cmsghdr* control = CMSG_FIRSTHDR(header); control != nullptr;
       control = CMSG_NXTHDR(header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    descriptors.resize((control->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(descriptors.data(), CMSG_DATA(control), descriptors.size() * sizeof(int));
  }
  return descriptors;
}

}  // namespace

ServiceManager::ServiceManager(const std::string& directory)
    : path_(directory + "/notify"), socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_un address = AddressOf(path_);
  MEMTIDE_CHECK(bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
      << std::strerror(errno);
  thread_ = std::thread([this] { Listen(); });
}

ServiceManager::~ServiceManager() {
  shutdown(socket_, SHUT_RDWR);
  thread_.join();
  close(socket_);
  for (const auto& [name, fd] : stored_) close(fd);
}

void ServiceManager::Listen() {
  while (true) {
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
    iovec part = {text, sizeof(text)};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(socket_, &header, MSG_CMSG_CLOEXEC);
    if (got <= 0) return;
    Hear(std::string(text, static_cast<size_t>(got)), DescriptorsIn(&header));
  }
}

void ServiceManager::Hear(const std::string& message, const std::vector<int>& descriptors) {
  std::map<std::string, std::string> values;
  for (const absl::string_view line : absl::StrSplit(message, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(line, absl::MaxSplits('=', 1));
    values.insert(pair);
  }
  MutexLock lock(&mutex_);
  const std::string& name = values["FDNAME"];
  if (values.count("FDSTORE") > 0) {
    MEMTIDE_CHECK(descriptors.size() == 1 && stored_.count(name) == 0) << name;
    stored_[name] = descriptors[0];
  } else {
    for (const int fd : descriptors)
      close(fd);  // A barrier's descriptor is answered by closing it.
  }
  if (values.count("FDSTOREREMOVE") > 0 && stored_.count(name) > 0) {
    close(stored_[name]);
    stored_.erase(name);
  }
  uint64_t sync = 0;
  if (absl::SimpleAtoi(values["SYNC"], &sync)) synced_ = sync;
  notified_.SignalAll();
}

void ServiceManager::Sync() {
  const sockaddr_un address = AddressOf(path_);
  const std::string message = absl::StrCat("SYNC=", ++last_sync_);
  MEMTIDE_CHECK(sendto(socket_, message.data(), message.size(), 0,
                       reinterpret_cast<const sockaddr*>(&address), sizeof(address)) > 0)
      << std::strerror(errno);
  MutexLock lock(&mutex_);
  while (synced_ < last_sync_) notified_.Wait(&mutex_);
}

std::unique_ptr<DaemonProcess> ServiceManager::Start(const std::vector<std::string>& flags,
                                                     const std::vector<std::string>& environment) {
  std::vector<std::string> names = Names();
  std::vector<int> descriptors;
  MutexLock lock(&mutex_);
  for (const std::string& name : names) descriptors.push_back(stored_[name]);
  std::vector<std::string> all = {"NOTIFY_SOCKET=" + path_,
                                  "LISTEN_FDNAMES=" + absl::StrJoin(names, ":")};
  all.insert(all.end(), environment.begin(), environment.end());
  return std::make_unique<DaemonProcess>(flags, all, descriptors);
}

std::vector<std::string> ServiceManager::Names() {
  Sync();
  MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, fd] : stored_) names.push_back(name);
  return names;
}

void ServiceManager::Lose(const std::string& name) {
  Sync();
  MutexLock lock(&mutex_);
  MEMTIDE_CHECK(stored_.count(name) == 1) << name;
  close(stored_[name]);
  stored_.erase(name);
}

uint64_t ServiceManager::Overwrite(const std::string& name, uint64_t offset, uint64_t number) {
  Sync();
  MutexLock lock(&mutex_);
  MEMTIDE_CHECK(stored_.count(name) == 1) << name;
  uint64_t before = 0;
  const auto at = static_cast<off_t>(offset);
  MEMTIDE_CHECK(pread(stored_[name], &before, sizeof(before), at) == sizeof(before) &&
                pwrite(stored_[name], &number, sizeof(number), at) == sizeof(number))
      << std::strerror(errno);
  return before;
}

void ServiceManager::Store(const std::string& name, int fd) {
  MutexLock lock(&mutex_);
  stored_[name] = fd;
}

void ServiceManager::AwaitCount(size_t count) {
  MutexLock lock(&mutex_);
  while (stored_.size() != count) notified_.Wait(&mutex_);
}

}  // namespace memtide
