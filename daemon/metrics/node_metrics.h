// The daemon's Prometheus metrics: the only place where metrics have names, units and help texts.
//
// All of the engine's metrics come from one InspectReply, so a scrape is one consistent moment: the
// states of memtide_pool_bytes sum to memtide_pool_capacity_bytes. Base units, the unit last,
// _total on counters; no label has values that a client can choose.
#ifndef MEMTIDE_DAEMON_METRICS_NODE_METRICS_H_
#define MEMTIDE_DAEMON_METRICS_NODE_METRICS_H_

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/host_memory_use.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/metrics/edge_counters.h"

namespace memtide {

struct DeviceSnapshot {
  bool is_usable = true;  // Not lost.
  uint64_t losses = 0;    // How often it was lost.
};

struct SsdDirectorySnapshot {
  std::string path;
  Bytes endurance;  // Zero: not known.
};

// The state of the node that one scrape shows.
struct NodeSnapshot {
  InspectReply engine;
  HostMemoryUse host_memory;
  std::vector<DeviceSnapshot> devices;                // By number.
  std::vector<SsdDirectorySnapshot> ssd_directories;  // As InspectReply::drives.
};

std::vector<prometheus::MetricFamily> NodeMetrics(const NodeSnapshot& node,
                                                  const EdgeCounters& edges,
                                                  const std::string& version);
// The same in Prometheus' text format.
std::string NodeMetricsText(const NodeSnapshot& node, const EdgeCounters& edges,
                            const std::string& version);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_METRICS_NODE_METRICS_H_
