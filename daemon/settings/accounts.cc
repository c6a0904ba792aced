#include "daemon/settings/accounts.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace memtide {
namespace {

// More than any entry has. An entry that is longer counts as unknown.
using Buffer = std::array<char, 1 << 16>;
constexpr size_t kFewGroups = 64;

}  // namespace

Accounts MachineAccounts() {
  Accounts accounts;
  accounts.uid_of = [](const std::string& name) -> absl::optional<uint32_t> {
    Buffer buffer;
    passwd entry;
    passwd* found = nullptr;
    getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (found == nullptr) return absl::nullopt;
    return found->pw_uid;
  };
  accounts.gid_of = [](const std::string& name) -> absl::optional<uint32_t> {
    Buffer buffer;
    group entry;
    group* found = nullptr;
    getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (found == nullptr) return absl::nullopt;
    return found->gr_gid;
  };
  accounts.groups_of = [](uint32_t uid) -> std::vector<uint32_t> {
    Buffer buffer;
    passwd entry;
    passwd* found = nullptr;
    getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
    if (found == nullptr) return {};
    std::vector<gid_t> groups(kFewGroups);
    int count = static_cast<int>(groups.size());
    // The first call says how many there are, where there are more.
    while (getgrouplist(found->pw_name, found->pw_gid, groups.data(), &count) < 0) {
      groups.resize(static_cast<size_t>(count));
    }
    groups.resize(static_cast<size_t>(count));
    std::sort(groups.begin(), groups.end());
    return {groups.begin(), groups.end()};
  };
  return accounts;
}

}  // namespace memtide
