// Accounts: the users and groups that the machine knows by name. Each lookup may wait for a name
// service, so that none is made where calls of users wait.
//
// It is a value, so that tests can have any accounts.
#ifndef MEMTIDE_DAEMON_SETTINGS_ACCOUNTS_H_
#define MEMTIDE_DAEMON_SETTINGS_ACCOUNTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/optional.h"

namespace memtide {

struct Accounts {
  using ByName = std::function<absl::optional<uint32_t>(const std::string& name)>;

  // nullopt: there is no such name.
  ByName uid_of = [](const std::string&) { return absl::optional<uint32_t>(); };
  ByName gid_of = uid_of;
  // The numbers of the user's groups, in ascending order. Empty: the user is not known.
  std::function<std::vector<uint32_t>(uint32_t uid)> groups_of = [](uint32_t) {
    return std::vector<uint32_t>();
  };
};

// The accounts of the machine's name service.
Accounts MachineAccounts();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SETTINGS_ACCOUNTS_H_
