#include "base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"

namespace memtide {
namespace {

// The file names of one version of the cgroup interface.
struct Interface {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* inactive_file;  // A key in memory.stat, like active_file.
  const char* active_file;
};
constexpr Interface kV1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                           "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
constexpr Interface kV2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
                           "active_file"};

// Reads the number in a file of one line. nullopt: the file is missing, or holds "max".
absl::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  uint64_t value = 0;
  if (!std::getline(file, line) || !absl::SimpleAtoi(line, &value)) return absl::nullopt;
  return value;
}

// Reads the number after `key` in a file of "key number" lines. nullopt: there is none.
absl::optional<uint64_t> ReadValue(const std::string& path, absl::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t value = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return absl::nullopt;
}

// Lowers *available to what is left of the limit of `group`, if it has one.
void LimitByGroup(const std::string& root, const Interface& interface, const std::string& group,
                  Bytes own, AvailableMemory* available) {
  const std::string directory = absl::StrCat(interface.mount, group);
  const std::string path = absl::StrCat(root, directory, "/");
  const absl::optional<uint64_t> limit = ReadNumber(path + interface.limit);
  const absl::optional<uint64_t> usage = ReadNumber(path + interface.usage);
  if (!limit.has_value() || !usage.has_value()) return;
  // The kernel drops page cache before it kills, so cache does not count as used.
  const uint64_t cache = ReadValue(path + "memory.stat", interface.inactive_file).value_or(0) +
                         ReadValue(path + "memory.stat", interface.active_file).value_or(0);
  const uint64_t used = *usage > cache ? *usage - cache : 0;
  // `own` may be charged to an earlier cgroup and not to this one, so the sum may exceed the limit.
  const Bytes left = std::min(Bytes(*limit), Bytes(*limit > used ? *limit - used : 0) + own);
  if (left < available->bytes)
    *available = {left, absl::StrCat("cgroup ", directory), Bytes(*limit)};
}

}  // namespace

AvailableMemory GetAvailableMemory(const std::string& root, Bytes own) {
  AvailableMemory available = {Bytes(std::numeric_limits<uint64_t>::max()), "this machine"};
  const auto kibibytes = ReadValue(root + "/proc/meminfo", "MemAvailable:");
  if (kibibytes.has_value()) available.bytes = KiB(*kibibytes) + own;
  const auto total = ReadValue(root + "/proc/meminfo", "MemTotal:");
  if (total.has_value()) available.bytes = std::min(available.bytes, KiB(*total));
  // Lines are "0::/path" for v2 and "9:memory:/path" (or "9:cpu,memory:/path") for v1.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool v2 = fields[1].empty();
    bool of_memory = v2;
    for (const std::string& controller : controllers) of_memory |= controller == "memory";
    if (!of_memory) continue;
    // A limit of any parent applies, so walk up to the root.
    for (std::string group = fields[2];; group.resize(group.rfind('/'))) {
      LimitByGroup(root, v2 ? kV2 : kV1, group, own, &available);
      if (group.rfind('/') == std::string::npos) break;
    }
  }
  return available;
}

Bytes LeftOfLimit(Bytes limit, pid_t other, const std::string& root) {
  const std::string own = root + "/proc/self/status";
  Bytes used;
  for (const auto& [path, key] :
       {std::pair(own, "RssAnon:"), std::pair(own, "RssShmem:"),
        std::pair(absl::StrCat(root, "/proc/", other, "/status"), "RssAnon:")}) {
    used += KiB(ReadValue(path, key).value_or(0));
  }
  return limit - std::min(limit, used);
}

}  // namespace memtide
