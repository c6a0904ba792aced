#include "daemon/mover/host_nodes.h"

#include <algorithm>
#include <set>
#include <thread>

namespace memtide {
namespace {

bool AreOnOneNode(const std::vector<Device*>& devices) {
  return std::all_of(devices.begin(), devices.end(), [&devices](const Device* device) {
    return device->placement().node == devices.front()->placement().node;
  });
}

// Half of the cores are for steps.
size_t StepThreads(const NumaPlacement& placement, size_t placements) {
  const size_t half = std::max(1u, std::thread::hardware_concurrency() / 2);
  const size_t cpus = placement.cpus.size();
  if (cpus == 0) return half;
  // With more than two nodes, half of the cores is more than a node has.
  return placements == 1 ? std::min(half, cpus) : std::max(size_t{1}, cpus / 2);
}

}  // namespace

std::vector<NumaPlacement> HostPlacementsOf(const std::vector<Device*>& devices) {
  if (devices.empty()) return {NumaPlacement()};
  if (AreOnOneNode(devices)) return {devices.front()->placement()};
  std::vector<NumaPlacement> placements = {NumaPlacement()};
  std::set<int> nodes;
  for (const Device* const device : devices) {
    const NumaPlacement placement = device->placement();
    if (placement.node && nodes.insert(*placement.node).second) placements.push_back(placement);
  }
  return placements;
}

size_t HostNodeNear(const Device& device, const std::vector<NumaPlacement>& placements) {
  const absl::optional<int> node = device.placement().node;
  for (size_t i = 1; i < placements.size(); ++i) {
    if (placements[i].node == node) return i;
  }
  return 0;
}

HostNode::HostNode(const NumaPlacement& placement, size_t placements)
    : steps("memtide-steps", {StepThreads(placement, placements), kStepNice, placement.cpus,
                              /*drops_rest=*/true}),
      zeroes("memtide-zeroes", {1, 0, placement.cpus}) {}

}  // namespace memtide
