// FdStore: descriptors that outlive the process, in the service manager's store
// (FileDescriptorStoreMax= and FDSTORE=1 in systemd's sd_notify(3)). systemd holds a duplicate of
// each stored descriptor and passes all of them to the next start of the service, however this
// process ends. Without a service manager or libsystemd, nothing is stored.
//
// Thread safety: thread-safe.
#ifndef MEMTIDE_DAEMON_IO_FD_STORE_H_
#define MEMTIDE_DAEMON_IO_FD_STORE_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

// Whether a service manager takes descriptors. Whether it keeps them, only the next start can tell.
bool HasFdStore();

// Stores a duplicate of `fd` and returns when the service manager has acknowledged it. If it does
// not respond, a warning is logged: the next daemon will miss the descriptor, and log that too.
// `name` consists of letters, digits, "-" and ".".
void StoreFd(const std::string& name, int fd);
// Removes the descriptor from the store. An unknown name is ignored.
void RemoveStoredFd(const std::string& name);

// Names in the store of a region's memory, which begin with kRegionPrefix, and of a store's files.
inline constexpr char kRegionPrefix[] = "region-";
std::string RegionName(RegionId region);
std::string StoreFileName(StoreId store, size_t file);
// Whether it is one of these.
bool IsMemoryName(absl::string_view name);

// The descriptors that earlier processes of the service stored, by name; the last one if several
// have the same name. To be called once.
using StoredFds = std::map<std::string, OwnedFd>;
StoredFds TakeStoredFds();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_FD_STORE_H_
