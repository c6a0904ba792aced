#include "daemon/metrics/exporter.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace memtide {
namespace {

class NodeCollectable : public prometheus::Collectable {
 public:
  NodeCollectable(std::string version, const EdgeCounters* edges, Exporter::Inspect inspect)
      : version_(std::move(version)), edges_(edges), inspect_(std::move(inspect)) {}

  // Runs in a thread of the web server at each scrape.
  std::vector<prometheus::MetricFamily> Collect() const override {
    const absl::StatusOr<NodeSnapshot> node = inspect_();
    // Absent metrics raise an alert, where those of the last scrape would hide a stuck engine.
    if (!node.ok()) return {};
    return NodeMetrics(*node, *edges_, version_);
  }

 private:
  const std::string version_;
  const EdgeCounters* const edges_;
  const Exporter::Inspect inspect_;
};

// Options of the embedded web server, civetweb. Scrapes are few, so two threads serve them. The
// timeouts free a thread that a silent client holds.
std::vector<std::string> WebServerOptions(const std::string& address) {
  return {"listening_ports",       address, "num_threads",       "2",
          "request_timeout_ms",    "5000",  "enable_keep_alive", "yes",
          "keep_alive_timeout_ms", "5000"};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Exporter>> Exporter::Start(const std::string& address,
                                                          const std::string& version,
                                                          const EdgeCounters* edges,
                                                          Inspect inspect) {
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    exposer = std::make_unique<prometheus::Exposer>(WebServerOptions(address));
  } catch (const std::runtime_error& error) {
    return absl::FailedPreconditionError(absl::StrCat(
        "metrics_address: cannot listen on \"", address, "\" (", error.what(),
        "). Choose another --metrics-address; port 0 takes any free one, \"off\" does without"));
  }
  auto collectable = std::make_shared<NodeCollectable>(version, edges, std::move(inspect));
  // The exposer has only a weak pointer to the collectable, so that the Exporter owns it.
  exposer->RegisterCollectable(collectable);
  // For port 0 the kernel chose a port, which the metrics address file must name.
  std::string real = absl::StrCat(address.substr(0, address.rfind(':')), ":",
                                  exposer->GetListeningPorts().front());
  return std::unique_ptr<Exporter>(
      new Exporter(std::move(real), std::move(collectable), std::move(exposer)));
}

Exporter::Exporter(std::string address, std::shared_ptr<prometheus::Collectable> collectable,
                   std::unique_ptr<prometheus::Exposer> exposer)
    : address_(std::move(address)),
      collectable_(std::move(collectable)),
      exposer_(std::move(exposer)) {}

Exporter::~Exporter() = default;

}  // namespace memtide
