#include "daemon/metrics/node_metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <limits>
#include <utility>

#include "daemon/metrics/drive_life.h"
#include "daemon/metrics/latency_histogram.h"

namespace memtide {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// One family: a gauge or a counter, with a value for each set of labels.
class Family {
 public:
  Family(MetricType type, std::string name, std::string help) {
    family_.type = type;
    family_.name = std::move(name);
    family_.help = std::move(help);
  }

  Family& Add(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    // ClientMetric has a field for each type, of which the exporter writes the one that the
    // family's type names.
    (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family_.metric.push_back(std::move(metric));
    return *this;
  }
  // Prometheus has doubles only. They are exact up to 8 PiB.
  Family& Add(Labels labels, Bytes value) {
    return Add(std::move(labels), static_cast<double>(value.count()));
  }
  // Prometheus's base unit of time is the second.
  Family& Add(Labels labels, Duration value) {
    return Add(std::move(labels), std::chrono::duration<double>(value).count());
  }

  MetricFamily Take() { return std::move(family_); }

 private:
  MetricFamily family_;
};

Family Gauge(std::string name, std::string help) {
  return Family(MetricType::Gauge, std::move(name), std::move(help));
}

Family Counter(std::string name, std::string help) {
  return Family(MetricType::Counter, std::move(name), std::move(help));
}

// Values of a label are part of the interface: dashboards name them.
std::string KindName(ChunkKind kind) {
  switch (kind) {
    case ChunkKind::kParameter:
      return "parameter";
    case ChunkKind::kGradient:
      return "gradient";
    case ChunkKind::kOptimizerState:
      return "optimizer_state";
    case ChunkKind::kActivation:
      return "activation";
    case ChunkKind::kOther:
      break;
  }
  return "other";
}

void AddPools(const InspectReply& node, std::vector<MetricFamily>* families) {
  Family capacity = Gauge("memtide_pool_capacity_bytes", "Memory that the daemon manages.");
  Family states = Gauge(
      "memtide_pool_bytes",
      "Memory by state; the states of a tier, or of one of its devices, sum to its capacity. used: "
      "holds a "
      "chunk's copy; reserved: belongs to a job, empty; quarantined: belongs to a job, and the "
      "kernels of a process that died may still write to it; ballooned: belongs to a job, "
      "and the machine has it while it is short of memory; scrubbing: belonged to an "
      "ended job; free: belongs to no job.");
  for (const PoolUsage& pool : node.pools) {
    Labels labels = {{"tier", std::string(TierName(pool.pool.tier))}};
    if (pool.pool.tier == Tier::kDevice) {
      labels.push_back({"device", std::to_string(pool.pool.device)});
    }
    capacity.Add(labels, pool.capacity);
    labels.push_back({"state", ""});
    const auto add = [&](const char* state, Bytes bytes) {
      labels.back().value = state;
      states.Add(labels, bytes);
    };
    // Every state is exported, even at zero, so that the sum over the states is the capacity.
    add("used", pool.used);
    add("reserved", pool.reserved - pool.quarantined);
    add("quarantined", pool.quarantined);
    add("ballooned", pool.balloon);
    add("scrubbing", pool.scrubbing);
    add("free", pool.free);
  }
  families->push_back(capacity.Take());
  families->push_back(states.Take());
}

void AddKinds(const InspectReply& node, std::vector<MetricFamily>* families) {
  Family allocated = Gauge("memtide_allocated_bytes", "Chunks by what they hold.");
  Family copies = Gauge("memtide_copies_bytes",
                        "Valid copies of chunks by what they hold; a chunk may have copies on "
                        "several tiers.");
  Family shared =
      Gauge("memtide_shared_bytes", "What more would be allocated if sessions shared no contents.");
  for (const KindUsage& usage : node.kinds) {
    const std::string kind = KindName(usage.kind);
    allocated.Add({{"kind", kind}}, usage.allocated);
    shared.Add({{"kind", kind}}, usage.shared);
    copies.Add({{"kind", kind}, {"tier", "device"}}, usage.device)
        .Add({{"kind", kind}, {"tier", "host"}}, usage.host)
        .Add({{"kind", kind}, {"tier", "ssd"}}, usage.ssd);
  }
  families->push_back(allocated.Take());
  families->push_back(copies.Take());
  families->push_back(shared.Take());
}

// The subject of a quota by its name, as the administrator wrote it: few, unlike the users of the
// default quota.
void AddQuotas(const InspectReply& node, std::vector<MetricFamily>* families) {
  Family limits = Gauge("memtide_quota_limit_bytes", "Limits of the quotas of users and groups.");
  Family uses =
      Gauge("memtide_quota_used_bytes",
            "What the jobs under a quota have, and what is guaranteed to them. lingering: "
            "what they keep without sessions. ssd_written_per_day: what they wrote to SSD in the "
            "last 24 hours.");
  const auto add = [&](const QuotaUse& use, std::string what, const absl::optional<Bytes>& limit,
                       Bytes used) {
    if (!limit) return;
    const Labels labels = {{"subject", use.quota.name}, {"what", std::move(what)}};
    limits.Add(labels, *limit);
    uses.Add(labels, used);
  };
  for (const QuotaUse& use : node.quotas) {
    if (use.quota.kind == Quota::Kind::kDefault) continue;
    for (const Tier tier : kAllTiers) {
      const int i = static_cast<int>(tier);
      add(use, std::string(TierName(tier)), use.quota.most.bytes[i], use.bytes[i]);
    }
    add(use, "lingering", use.quota.most.lingering, use.lingering);
    add(use, "ssd_written_per_day", use.quota.most.written_per_day, use.written_last_day);
  }
  families->push_back(limits.Take());
  families->push_back(uses.Take());
}

void AddTraffic(const Counters& counters, std::vector<MetricFamily>* families) {
  // Each direction of a link has a bandwidth of its own, so it has a label of its own.
  families->push_back(Counter("memtide_moved_bytes_total", "Bytes moved, by link.")
                          .Add({{"link", "host_to_device"}}, counters.host_to_device)
                          .Add({{"link", "device_to_host"}}, counters.device_to_host)
                          .Add({{"link", "ssd_to_host"}}, counters.ssd_read)
                          .Add({{"link", "host_to_ssd"}}, counters.ssd_written)
                          .Take());
  families->push_back(Counter("memtide_zeroed_bytes_total", "Bytes of new chunks set to zero.")
                          .Add({}, counters.zeroed)
                          .Take());
  families->push_back(
      Counter("memtide_verified_bytes_total",
              "Bytes on SSD that were compared with the checksums of what was written there. read: "
              "as a chunk was read; scrub: at rest.")
          .Add({{"when", "read"}}, counters.verified)
          .Add({{"when", "scrub"}}, counters.scrubbed)
          .Take());
  families->push_back(Counter("memtide_wrong_bytes_total",
                              "Reads of the SSD that returned other bytes than were written there.")
                          .Add({}, static_cast<double>(counters.wrong_bytes))
                          .Take());
  families->push_back(
      Counter("memtide_ballooned_bytes_total",
              "Host memory that the balloon took while the machine was short of it.")
          .Add({}, counters.balloon)
          .Take());
  families->push_back(Counter("memtide_reclaimed_bytes_total",
                              "Memory reclaimed from elastic shares for other jobs.")
                          .Add({{"tier", "device"}}, counters.device_reclaimed)
                          .Add({{"tier", "host"}}, counters.host_reclaimed)
                          .Add({{"tier", "ssd"}}, counters.ssd_reclaimed)
                          .Take());
  families->push_back(
      Counter(
          "memtide_stall_seconds_total",
          "Time that fetches waited, each counted under the slowest thing it needed: a read "
          "from ssd, a copy to or from the device, or room in a pool; budget: an eviction that a "
          "daily budget of writes to SSD held up.")
          .Add({{"cause", "ssd"}}, counters.stalled_on_ssd)
          .Add({{"cause", "copy"}}, counters.stalled_on_copy)
          .Add({{"cause", "room"}}, counters.stalled_on_room)
          .Add({{"cause", "budget"}}, counters.stalled_on_budget)
          .Take());
}

void AddCounts(const InspectReply& node, std::vector<MetricFamily>* families) {
  const auto add = [families](Family family, double value) {
    families->push_back(family.Add({}, value).Take());
  };
  const Counters& counters = node.counters;
  add(Counter("memtide_events_total", "Events that the engine has handled."), counters.events);
  add(Counter("memtide_fetches_total", "Fetch calls granted."), counters.fetches);
  add(Counter("memtide_fetch_hits_total", "Fetch calls granted without moving a byte."),
      counters.fetch_hits);
  add(Counter("memtide_evictions_total", "Copies dropped to make room."), counters.evictions);
  add(Counter("memtide_clean_evictions_total", "Evictions that wrote nothing back."),
      counters.dropped_clean);
  add(Counter("memtide_revokes_total", "Leases that were revoked."), counters.revokes);
  add(Counter("memtide_iterations_total", "Iterations that jobs reported."), counters.iterations);
  add(Counter("memtide_iteration_mispredictions_total",
              "Iterations that differed from the prediction."),
      counters.iteration_mispredictions);
  add(Counter("memtide_step_parts_total", "Parts of optimizer steps that were computed."),
      counters.step_parts);
  add(Counter("memtide_step_parts_shared_total",
              "Parts that a rank did not compute, because another rank of its training had."),
      counters.parts_shared);
  add(Counter("memtide_contents_shared_total",
              "Chunks that came to share a content with other sessions of their user."),
      counters.contents_shared);
  add(Counter("memtide_digests_collided_total",
              "Chunks whose bytes differed from those of a shared content with their digest."),
      counters.digests_collided);
  add(Counter("memtide_steps_committed_total", "Optimizer steps that were committed."),
      counters.steps_committed);
  add(Counter("memtide_non_finite_gradients_total",
              "Infinite or NaN gradient elements, in steps that count them."),
      counters.non_finite_gradients);
  add(Counter("memtide_transfers_failed_total", "Transfers that failed."),
      counters.transfers_failed);
  add(Counter("memtide_calls_refused_total", "Calls refused because a limit was reached."),
      counters.calls_refused);
  add(Counter("memtide_calls_over_quota_total",
              "Those of them that a quota of a user or group did not permit."),
      counters.over_quota);
  add(Counter("memtide_deadlines_exceeded_total", "Calls that waited past their deadline."),
      counters.deadlines_exceeded);
  add(Counter("memtide_sessions_lost_total", "Sessions that ended without a Close call."),
      counters.sessions_lost);
  add(Gauge("memtide_sessions", "Connected processes."), node.session_count);
  add(Gauge("memtide_chunks", "Allocated chunks."), node.chunk_count);
  add(Gauge("memtide_waiting_calls", "Calls without a reply yet."), node.waiting_calls);
  add(Gauge("memtide_remembered_chunk_ids",
            "Chunk ids in replies that are kept in case a client asks again, 8 bytes each."),
      node.remembered_chunks);
  add(Gauge("memtide_transfers_in_flight", "Transfers in flight."), node.transfers_in_flight);
  add(Gauge("memtide_draining", "1 while the daemon takes no new sessions."),
      node.draining || node.refuses_sessions ? 1 : 0);
}

void AddHostMemory(const HostMemoryUse& use, std::vector<MetricFamily>* families) {
  families->push_back(
      Gauge("memtide_host_memory_bytes",
            "Host memory of jobs by what the GPU's driver has of it. pinned: copied from and to at "
            "once; unpinned: the machine permits no more, and copies go through staging buffers; "
            "staging: those buffers, which are pinned, too.")
          .Add({{"state", "pinned"}}, use.pinned)
          .Add({{"state", "unpinned"}}, use.unpinned)
          .Add({{"state", "staging"}}, use.staging)
          .Take());
}

void AddDevices(const std::vector<DeviceSnapshot>& devices, std::vector<MetricFamily>* families) {
  Family usable = Gauge("memtide_device_usable",
                        "1 while the device lends memory; 0 while it is lost, and memtided waits "
                        "until it works again.");
  Family losses = Counter("memtide_device_losses_total",
                          "How often the device, or its process, failed, and its memory was lost.");
  for (size_t i = 0; i < devices.size(); ++i) {
    const Labels labels = {{"device", std::to_string(i)}};
    usable.Add(labels, devices[i].is_usable ? 1 : 0);
    losses.Add(labels, devices[i].losses);
  }
  families->push_back(usable.Take());
  families->push_back(losses.Take());
}

// No label names a user: everyone who may connect can read the metrics.
void AddSsdWrites(const NodeSnapshot& node, std::vector<MetricFamily>* families) {
  Family written = Counter("memtide_ssd_written_bytes_total",
                           "What all daemons wrote to the drive of an SSD directory; it goes on "
                           "when the daemon is restarted.");
  Family last_day =
      Gauge("memtide_ssd_written_day_bytes", "What was written to it in the last 24 hours.");
  Family budget =
      Gauge("memtide_ssd_budget_day_bytes", "The most that may be, by its budget; 0: it has none.");
  Family awaited =
      Gauge("memtide_ssd_budget_awaited", "1 while the next eviction waits for this budget.");
  Family endurance = Gauge("memtide_ssd_endurance_bytes",
                           "What can be written to it in its life; 0: that is not known.");
  Family life = Gauge("memtide_ssd_life_years",
                      "How long that lasts if each day is as the last one, where it is known.");
  const size_t count = std::min(node.ssd_directories.size(), node.engine.drives.size());
  for (size_t i = 0; i < count; ++i) {
    const DriveWrites& drive = node.engine.drives[i];
    const Bytes rated = node.ssd_directories[i].endurance;
    const Labels labels = {{"directory", node.ssd_directories[i].path}};
    written.Add(labels, drive.written);
    last_day.Add(labels, drive.last_day);
    budget.Add(labels, drive.per_day);
    awaited.Add(labels, drive.is_awaited ? 1 : 0);
    endurance.Add(labels, rated);
    const absl::optional<double> years = LifeYears(rated, drive.written, drive.last_day);
    if (years.has_value()) life.Add(labels, *years);
  }
  for (Family* family : {&written, &last_day, &budget, &awaited, &endurance, &life}) {
    families->push_back(family->Take());
  }
  families->push_back(Gauge("memtide_ssd_users_at_budget",
                            "Users whose next eviction waits for their own daily budget.")
                          .Add({}, static_cast<double>(node.engine.users_at_budget))
                          .Take());
}

MetricFamily HistogramOf(std::string name, std::string help, const LatencyHistogram& latencies) {
  constexpr size_t kBounds = LatencyHistogram::kBounds.size();
  ClientMetric metric;
  auto& histogram = metric.histogram;
  for (size_t i = 0; i <= kBounds; ++i) {
    histogram.sample_count += latencies.Count(i);
    const double bound = i == kBounds
                             ? std::numeric_limits<double>::infinity()
                             : std::chrono::duration<double>(LatencyHistogram::kBounds[i]).count();
    histogram.bucket.push_back({histogram.sample_count, bound});
  }
  histogram.sample_sum = std::chrono::duration<double>(latencies.Sum()).count();
  return {std::move(name), std::move(help), MetricType::Histogram, {metric}};
}

// Refusals at the edges are counted apart from memtide_calls_refused_total, because the engine
// never sees them.
void AddEdges(const EdgeCounters& edges, std::vector<MetricFamily>* families) {
  families->push_back(
      Counter("memtide_edge_refusals_total",
              "Connections and calls refused before they reached the engine: connections to the fd "
              "socket and to the gRPC socket, calls without a valid token, malformed calls, calls "
              "above the queue limit, calls of users that read no replies.")
          .Add({{"what", "connection"}}, edges.connections_refused)
          .Add({{"what", "grpc_connection"}}, edges.grpc_connections_refused)
          .Add({{"what", "unauthenticated"}}, edges.calls_unauthenticated)
          .Add({{"what", "malformed"}}, edges.calls_malformed)
          .Add({{"what", "overload"}}, edges.calls_overloaded)
          .Add({{"what", "unread"}}, edges.calls_unread)
          .Take());
  families->push_back(
      HistogramOf("memtide_fetch_hit_seconds",
                  "Time from the arrival of a Fetch call to its reply, of those that waited for "
                  "nothing: their chunks were there.",
                  edges.fetch_hits));
}

}  // namespace

std::vector<MetricFamily> NodeMetrics(const NodeSnapshot& node, const EdgeCounters& edges,
                                      const std::string& version) {
  std::vector<MetricFamily> families;
  AddPools(node.engine, &families);
  AddKinds(node.engine, &families);
  AddQuotas(node.engine, &families);
  AddTraffic(node.engine.counters, &families);
  AddCounts(node.engine, &families);
  AddHostMemory(node.host_memory, &families);
  AddDevices(node.devices, &families);
  AddSsdWrites(node, &families);
  AddEdges(edges, &families);
  // A label can hold text, which the value of a metric cannot.
  families.push_back(Gauge("memtide_build_info", "Always 1; the label says which release runs.")
                         .Add({{"version", version}}, 1)
                         .Take());
  return families;
}

std::string NodeMetricsText(const NodeSnapshot& node, const EdgeCounters& edges,
                            const std::string& version) {
  return prometheus::TextSerializer().Serialize(NodeMetrics(node, edges, version));
}

}  // namespace memtide
