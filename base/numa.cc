#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace memtide {
namespace {

constexpr int kMostCpus = 1 << 14;
constexpr size_t kBitsOfWord = sizeof(unsigned long) * CHAR_BIT;
// A kernel has 1024 nodes at most.
using NodeMask = std::array<unsigned long, 1024 / kBitsOfWord>;
// The kernel reads one bit fewer than this argument says.
constexpr unsigned long kMaskBits = 1024 + 1;

std::string LineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

absl::Status Failed(absl::string_view call, int error) {
  return absl::InternalError(absl::StrCat(call, ": ", strerrorname_np(error)));
}

}  // namespace

std::vector<int> ParseCpuList(const std::string& text) {
  std::vector<int> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last >= kMostCpus) {
      return {};
    }
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

std::vector<int> NumaTopology::Nodes() const {
  return ParseCpuList(LineOf(absl::StrCat(sysfs_, "/devices/system/node/online")));
}

std::vector<int> NumaTopology::CpusOf(int node) const {
  return ParseCpuList(LineOf(absl::StrCat(sysfs_, "/devices/system/node/node", node, "/cpulist")));
}

absl::optional<int> NumaTopology::NodeOfPci(const std::string& id) const {
  int node = -1;
  const std::string line = LineOf(absl::StrCat(sysfs_, "/bus/pci/devices/", id, "/numa_node"));
  if (!absl::SimpleAtoi(line, &node) || node < 0) return absl::nullopt;
  return node;
}

NumaPlacement NumaTopology::On(absl::optional<int> node) const {
  const std::vector<int> nodes = Nodes();
  const bool is_choice =
      node && nodes.size() > 1 && std::find(nodes.begin(), nodes.end(), *node) != nodes.end();
  if (!is_choice) return {};
  return {node, CpusOf(*node)};
}

absl::Status PreferNode(char* memory, Bytes size, int node) {
  NodeMask mask = {};
  mask.at(node / kBitsOfWord) |= 1ul << (node % kBitsOfWord);
  if (syscall(SYS_mbind, memory, size.count(), MPOL_PREFERRED, mask.data(), kMaskBits, 0) == 0) {
    return absl::OkStatus();
  }
  return Failed(absl::StrCat("mbind to node ", node), errno);
}

absl::StatusOr<absl::optional<int>> PreferredNode(const char* memory) {
  int mode = 0;
  NodeMask mask = {};
  if (syscall(SYS_get_mempolicy, &mode, mask.data(), kMaskBits, memory, MPOL_F_ADDR) != 0) {
    return Failed("get_mempolicy", errno);
  }
  if (mode != MPOL_PREFERRED) return absl::optional<int>();
  for (size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == 0) continue;
    return absl::optional<int>(static_cast<int>(word * kBitsOfWord) + __builtin_ctzl(mask[word]));
  }
  return absl::optional<int>();
}

absl::StatusOr<int> NodeOfPage(const char* memory) {
  int node = -1;
  if (syscall(SYS_get_mempolicy, &node, nullptr, 0, memory, MPOL_F_NODE | MPOL_F_ADDR) != 0) {
    return Failed("get_mempolicy", errno);
  }
  return node;
}

void RunOn(const std::vector<int>& cpus) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &wanted);
  }
  // Where the operating system refuses, the thread runs anywhere, as before.
  if (CPU_COUNT(&wanted) > 0) sched_setaffinity(0, sizeof(wanted), &wanted);
}

}  // namespace memtide
