// The machine's NUMA nodes, and how memory and threads are placed on one of them.
//
// A copy between a GPU and memory of another socket crosses the link between the sockets. Linux
// gives memory to the node of the thread that touches it first, so without a placement it is
// wherever that thread ran.
//
// Thread safety: thread-safe. Errors are INTERNAL and name the call; placing is a hint, so callers
// can go on.
#ifndef MEMTIDE_BASE_NUMA_H_
#define MEMTIDE_BASE_NUMA_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/bytes.h"

namespace memtide {

// Where memory and threads should be. The default: anywhere.
struct NumaPlacement {
  absl::optional<int> node;
  std::vector<int> cpus;  // CPUs of the node. Empty: any.
};

// Reads the machine's nodes from sysfs; `sysfs` is another root in tests.
class NumaTopology {
 public:
  explicit NumaTopology(std::string sysfs = "/sys") : sysfs_(std::move(sysfs)) {}

  // The numbers of the nodes that are there, in order. Empty: the kernel has no NUMA.
  std::vector<int> Nodes() const;
  std::vector<int> CpusOf(int node) const;
  // The node of a PCI device, such as "0000:17:00.0". Absent: unknown, as on most machines with one
  // node.
  absl::optional<int> NodeOfPci(const std::string& id) const;
  // Placement on `node`. Anywhere if it is not there, or is the only one.
  NumaPlacement On(absl::optional<int> node) const;

 private:
  const std::string sysfs_;
};

// "0-3,8" as in sysfs. Text that is no such list is an empty one.
std::vector<int> ParseCpuList(const std::string& text);

// Takes pages of this range that are populated from now on from the node while it has some, else
// from others. Holds for all mappings of shared memory, and for as long as the memory exists.
// REQUIRES: the range is mapped, `memory` is a multiple of a page.
absl::Status PreferNode(char* memory, Bytes size, int node);
// The node that PreferNode chose for the page at `memory`. Absent: none did.
absl::StatusOr<absl::optional<int>> PreferredNode(const char* memory);
// The node that the page at `memory` is on. REQUIRES: the page is populated.
absl::StatusOr<int> NodeOfPage(const char* memory);

// Lets the calling thread run on those of `cpus` that it may use. Does nothing if it may use none
// of them, or if `cpus` is empty.
void RunOn(const std::vector<int>& cpus);

}  // namespace memtide

#endif  // MEMTIDE_BASE_NUMA_H_
