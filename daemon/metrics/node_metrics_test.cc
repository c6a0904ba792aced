#include "daemon/metrics/node_metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace memtide {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

NodeSnapshot TestNode() {
  NodeSnapshot snapshot;
  snapshot.host_memory = {MiB(5), MiB(2), MiB(16), 1};
  snapshot.devices = {{true, 0}, {false, 3}};
  snapshot.ssd_directories = {{"/a", GiB(731)}, {"/b", Bytes()}};
  InspectReply& node = snapshot.engine;
  node.drives = {{GiB(8), GiB(0), GiB(2), true}, {Bytes(), GiB(3), GiB(1), false}};
  node.users_at_budget = 4;
  node.pools = {{{Tier::kDevice, 1},
                 MiB(10),
                 MiB(4),
                 MiB(3),
                 MiB(1),
                 MiB(2),
                 Bytes(),
                 Bytes(),
                 /*quarantined=*/MiB(2)},
                {{Tier::kHost}, MiB(7), MiB(7), Bytes(), Bytes(), Bytes()}};
  node.kinds = {{ChunkKind::kGradient, MiB(4), MiB(2), MiB(4), Bytes()}};
  node.counters.fetches = 11;
  node.counters.ssd_read = MiB(8);
  node.counters.stalled_on_room = std::chrono::milliseconds(1500);
  node.session_count = 2;
  node.draining = true;
  QuotaUse use;
  use.quota = {Quota::Kind::kUser, 7, "user:7"};
  use.quota.most.bytes[static_cast<int>(Tier::kHost)] = MiB(6);
  use.bytes[static_cast<int>(Tier::kHost)] = MiB(8);
  node.quotas = {use, {{Quota::Kind::kDefault, 0, "default", use.quota.most}, 8}};
  node.counters.over_quota = 4;
  return snapshot;
}

double ValueOf(const std::vector<MetricFamily>& families, const std::string& name,
               const std::map<std::string, std::string>& labels) {
  for (const MetricFamily& family : families) {
    if (family.name != name) continue;
    for (const auto& metric : family.metric) {
      std::map<std::string, std::string> found;
      for (const auto& label : metric.label) found[label.name] = label.value;
      if (found == labels) {
        return family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value;
      }
    }
  }
  ADD_FAILURE() << "no " << name << " with these labels";
  return -1;
}

TEST(NodeMetricsTest, ShowsTheValuesOfTheEngine) {
  EdgeCounters edges;
  edges.calls_malformed = 3;
  const auto families = NodeMetrics(TestNode(), edges, "1.2.3");
  EXPECT_EQ(ValueOf(families, "memtide_fetches_total", {}), 11);
  EXPECT_EQ(ValueOf(families, "memtide_moved_bytes_total", {{"link", "ssd_to_host"}}), 8 << 20);
  EXPECT_EQ(ValueOf(families, "memtide_stall_seconds_total", {{"cause", "room"}}), 1.5);
  EXPECT_EQ(ValueOf(families, "memtide_copies_bytes", {{"kind", "gradient"}, {"tier", "host"}}),
            4 << 20);
  EXPECT_EQ(ValueOf(families, "memtide_sessions", {}), 2);
  EXPECT_EQ(ValueOf(families, "memtide_host_memory_bytes", {{"state", "pinned"}}), 5 << 20);
  EXPECT_EQ(ValueOf(families, "memtide_device_usable", {{"device", "0"}}), 1);
  EXPECT_EQ(ValueOf(families, "memtide_device_usable", {{"device", "1"}}), 0);
  EXPECT_EQ(ValueOf(families, "memtide_device_losses_total", {{"device", "1"}}), 3);
  EXPECT_EQ(ValueOf(families, "memtide_host_memory_bytes", {{"state", "unpinned"}}), 2 << 20);
  EXPECT_EQ(ValueOf(families, "memtide_host_memory_bytes", {{"state", "staging"}}), 16 << 20);
  EXPECT_EQ(ValueOf(families, "memtide_edge_refusals_total", {{"what", "malformed"}}), 3);
  EXPECT_EQ(ValueOf(families, "memtide_ssd_written_day_bytes", {{"directory", "/a"}}), 2LL << 30);
  EXPECT_EQ(ValueOf(families, "memtide_ssd_budget_day_bytes", {{"directory", "/a"}}), 8LL << 30);
  EXPECT_EQ(ValueOf(families, "memtide_ssd_budget_awaited", {{"directory", "/a"}}), 1);
  EXPECT_EQ(ValueOf(families, "memtide_ssd_written_bytes_total", {{"directory", "/b"}}), 3LL << 30);
  EXPECT_NEAR(ValueOf(families, "memtide_ssd_life_years", {{"directory", "/a"}}), 1, 0.001);
  EXPECT_EQ(ValueOf(families, "memtide_ssd_users_at_budget", {}), 4);
  EXPECT_EQ(ValueOf(families, "memtide_draining", {}), 1);
  EXPECT_EQ(ValueOf(families, "memtide_calls_over_quota_total", {}), 4);
  const std::map<std::string, std::string> host = {{"subject", "user:7"}, {"what", "host"}};
  EXPECT_EQ(ValueOf(families, "memtide_quota_limit_bytes", host), 6 << 20);
  EXPECT_EQ(ValueOf(families, "memtide_quota_used_bytes", host), 8 << 20);
  for (const MetricFamily& family : families) {
    if (family.name != "memtide_quota_used_bytes") continue;
    EXPECT_EQ(family.metric.size(), 1u);
  }
  EXPECT_EQ(ValueOf(families, "memtide_build_info", {{"version", "1.2.3"}}), 1);
}

TEST(NodeMetricsTest, ADurationIsCountedUpToEachLargerBound) {
  EdgeCounters edges;
  for (const int microseconds : {1, 3, 4, 3000, 30'000'000}) {
    edges.fetch_hits.Add(std::chrono::microseconds(microseconds));
  }
  const auto families = NodeMetrics(TestNode(), edges, "");
  const auto found = std::find_if(families.begin(), families.end(), [](const MetricFamily& family) {
    return family.name == "memtide_fetch_hit_seconds";
  });
  ASSERT_NE(found, families.end());
  const auto& histogram = found->metric.at(0).histogram;
  EXPECT_EQ(histogram.sample_count, 5u);
  EXPECT_NEAR(histogram.sample_sum, 30.003008, 1e-9);
  std::map<int, uint64_t> counts;  // By the bound in tenths of a microsecond.
  for (const auto& bucket : histogram.bucket) {
    if (bucket.upper_bound < 1.5) {
      counts[static_cast<int>(std::lround(bucket.upper_bound * 1e7))] = bucket.cumulative_count;
    }
  }
  EXPECT_EQ(counts[10], 1u);
  EXPECT_EQ(counts[25], 1u);
  EXPECT_EQ(counts[40], 3u) << "a bound belongs to the class that it ends";
  EXPECT_EQ(counts[25'000], 3u);
  EXPECT_EQ(counts[40'000], 4u);
  EXPECT_EQ(counts[10'000'000], 4u);
  EXPECT_EQ(histogram.bucket.size(), LatencyHistogram::kBounds.size() + 1);
  EXPECT_EQ(histogram.bucket.back().cumulative_count, 5u);
}

TEST(NodeMetricsTest, TheStatesOfAPoolSumToItsCapacity) {
  const auto families = NodeMetrics(TestNode(), EdgeCounters(), "");
  using Labels = std::map<std::string, std::string>;
  for (const Labels& pool :
       {Labels{{"tier", "device"}, {"device", "1"}}, Labels{{"tier", "host"}}}) {
    double sum = 0;
    for (const std::string state :
         {"used", "reserved", "quarantined", "ballooned", "scrubbing", "free"}) {
      Labels labels = pool;
      labels["state"] = state;
      sum += ValueOf(families, "memtide_pool_bytes", labels);
    }
    EXPECT_EQ(sum, ValueOf(families, "memtide_pool_capacity_bytes", pool));
  }
  EXPECT_EQ(ValueOf(families, "memtide_pool_bytes",
                    {{"tier", "device"}, {"device", "1"}, {"state", "quarantined"}}),
            2 << 20);
}

TEST(NodeMetricsTest, NamesFollowTheConventions) {
  std::set<std::string> names;
  const std::regex form("memtide_[a-z]+(_[a-z]+)*");
  for (const MetricFamily& family : NodeMetrics(TestNode(), EdgeCounters(), "")) {
    EXPECT_TRUE(std::regex_match(family.name, form)) << family.name;
    EXPECT_TRUE(names.insert(family.name).second) << family.name << " twice";
    const bool ends_in_total =
        family.name.size() > 6 && family.name.substr(family.name.size() - 6) == "_total";
    EXPECT_EQ(family.type == MetricType::Counter, ends_in_total) << family.name;
    EXPECT_FALSE(family.help.empty()) << family.name;
    EXPECT_EQ(family.help.back(), '.') << family.name;
  }
}

}  // namespace
}  // namespace memtide
