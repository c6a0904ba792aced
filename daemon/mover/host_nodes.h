// Where a node's host memory is, and the threads that work on it, for each of its NUMA nodes.
#ifndef MEMTIDE_DAEMON_MOVER_HOST_NODES_H_
#define MEMTIDE_DAEMON_MOVER_HOST_NODES_H_

#include <cstddef>
#include <vector>

#include "base/numa.h"
#include "daemon/device/device.h"
#include "daemon/mover/work_queue.h"

namespace memtide {

// Below the priority of the training processes on the same cores.
constexpr int kStepNice = 5;

// Where host memory is. The first placement is that of jobs without a device: on the node of all
// devices, if they share one. Where devices are on several nodes, one follows for each of these.
std::vector<NumaPlacement> HostPlacementsOf(const std::vector<Device*>& devices);
// The number, among the placements of all devices, of the one for jobs on this device.
size_t HostNodeNear(const Device& device, const std::vector<NumaPlacement>& placements);

// The queues of work on host memory of one NUMA node, or of any.
struct HostNode {
  // `placements`: how many HostNodes there are, which share the cores of the machine.
  HostNode(const NumaPlacement& placement, size_t placements);

  // A step that the daemon's end drops is as if the daemon had been killed: nothing reads its
  // output.
  WorkQueue steps, zeroes;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_MOVER_HOST_NODES_H_
