// Exporter: the metrics over HTTP (GET /metrics), for Prometheus to scrape.
//
// Each scrape calls `inspect` once, from a thread of the Exporter. If that fails, the scrape has no
// memtide metrics, and an alert on their absence fires. Serves until it is destroyed.
#ifndef MEMTIDE_DAEMON_METRICS_EXPORTER_H_
#define MEMTIDE_DAEMON_METRICS_EXPORTER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/metrics/edge_counters.h"
#include "daemon/metrics/node_metrics.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace memtide {

class Exporter {
 public:
  using Inspect = std::function<absl::StatusOr<NodeSnapshot>()>;

  // `address`: host:port; port 0 takes any free one. FAILED_PRECONDITION: the address cannot be
  // used. `edges` must outlive the exporter.
  static absl::StatusOr<std::unique_ptr<Exporter>> Start(const std::string& address,
                                                         const std::string& version,
                                                         const EdgeCounters* edges,
                                                         Inspect inspect);
  ~Exporter();
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  // The address that it listens on, with the actual port.
  const std::string& address() const { return address_; }

 private:
  Exporter(std::string address, std::shared_ptr<prometheus::Collectable> collectable,
           std::unique_ptr<prometheus::Exposer> exposer);

  const std::string address_;
  const std::shared_ptr<prometheus::Collectable> collectable_;
  const std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_METRICS_EXPORTER_H_
