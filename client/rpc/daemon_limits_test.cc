#include "client/rpc/daemon_limits.h"

#include <gtest/gtest.h>

#include <string>

#include "base/version.h"

namespace memtide::client {
namespace {

v1::Limits Sent() {
  v1::Limits sent;
  sent.set_chunks_per_call(3);
  sent.set_moments_per_call(4);
  sent.set_uses_per_call(5);
  sent.set_iteration_ends_per_call(6);
  sent.set_step_manifest_bytes(8);
  sent.set_chunks_per_node(9);
  sent.set_min_slots(11);
  sent.mutable_max_wait()->set_seconds(10);
  return sent;
}

TEST(DaemonLimitsTest, AreThoseThatTheDaemonSent) {
  const auto limits = ReadLimits(Sent());
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ(limits->chunks_per_call, 3u);
  EXPECT_EQ(limits->moments_per_call, 4u);
  EXPECT_EQ(limits->uses_per_call, 5u);
  EXPECT_EQ(limits->iteration_ends_per_call, 6u);
  EXPECT_EQ(limits->step_manifest, Bytes(8));
  EXPECT_EQ(limits->chunks_per_node, 9u);
  EXPECT_EQ(limits->min_slots, 11u);
  EXPECT_EQ(limits->max_wait, std::chrono::seconds(10));
}

TEST(DaemonLimitsTest, ALimitThatIsMissingOrHugeIsNamed) {
  v1::Limits older = Sent(), zero = Sent(), huge = Sent(), endless = Sent(), negative = Sent();
  older.clear_min_slots();
  zero.set_step_manifest_bytes(0);
  huge.set_chunks_per_call(UINT32_MAX);
  endless.mutable_max_wait()->set_seconds(INT64_MAX);
  negative.mutable_max_wait()->set_seconds(-1);
  for (const auto& [name, sent] : {std::pair<std::string, v1::Limits>{"chunks_per_call", {}},
                                   {"min_slots", older},
                                   {"step_manifest_bytes", zero},
                                   {"chunks_per_call", huge},
                                   {"max_wait", endless},
                                   {"max_wait", negative}}) {
    const absl::Status status = ReadLimits(sent).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_NE(status.message().find(name + " is "), absl::string_view::npos) << status;
    // The remedy.
    const std::string versions = std::string("this library's, which is ") + kVersion +
                                 ": install both of one version, and restart the daemon";
    EXPECT_NE(status.message().find(versions), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace memtide::client
