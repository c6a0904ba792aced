// Descriptors that outlive the process: the service manager's store (FileDescriptorStoreMax= and
// FDSTORE=1 in systemd's sd_notify(3)). It holds a copy of each that it is given, and passes all of
// them to the next start of the service, however this one ended. Where nobody listens, or where
// libsystemd is missing, nothing is kept. Thread-safe.
#ifndef MEMTIDE_DAEMON_IO_KEPT_DESCRIPTORS_H_
#define MEMTIDE_DAEMON_IO_KEPT_DESCRIPTORS_H_

#include <map>
#include <string>

#include "base/ids.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

// Whether a service manager takes descriptors. Whether it keeps them, only the next start can tell.
bool DescriptorsAreKept();

// Returns when the service manager has taken note of it. One that does not answer is told to the
// log: the next daemon will miss the descriptor, and say so. `name`: letters, digits, "-" and ".".
void KeepDescriptor(const std::string& name, int fd);
// A name that it does not have: ignored.
void ForgetDescriptor(const std::string& name);

// The names under which memory is kept.
std::string RegionName(RegionId region);
std::string StoreFileName(StoreId store, size_t file);

// What earlier processes of the service left. To be called once. By name: the last one of several
// that have the same.
using KeptDescriptors = std::map<std::string, OwnedFd>;
KeptDescriptors TakeKeptDescriptors();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_KEPT_DESCRIPTORS_H_
