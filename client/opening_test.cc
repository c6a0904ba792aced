// How a client finds its daemon, opens a job, and hears that its session is lost.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "client/client.h"
#include "client/lease/region_table.h"
#include "client/session_events.h"
#include "client/testing/fake_daemon_session.h"

namespace memtide::client {
namespace {

TEST(SocketDirTest, IsWhatIsChosenOrElseTheSystemsForRoot) {
  setenv("MEMTIDE_SOCKET_DIR", "/chosen", 1);
  EXPECT_EQ(DefaultSocketDir(), "/chosen");
  setenv("MEMTIDE_SOCKET_DIR", "", 1);
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(DefaultSocketDir(), "/run/memtide");
  setenv("XDG_RUNTIME_DIR", "/of/the/user", 1);
  const bool of_the_system = geteuid() == 0 || access("/run/memtide", F_OK) == 0;
  EXPECT_EQ(DefaultSocketDir(), of_the_system ? "/run/memtide" : "/of/the/user/memtide");
  unsetenv("MEMTIDE_SOCKET_DIR");
  unsetenv("XDG_RUNTIME_DIR");
}

// A daemon of another version may have other rules.
TEST(OpenedJobTest, AJobThatAddressesCannotRepresentIsRefused) {
  FakeDaemonSession::Options odd, without_leases;
  odd.chunk_size = MiB(1);
  without_leases.lease_budget = 0;
  for (const FakeDaemonSession::Options& options : {odd, without_leases}) {
    const auto client = Client::OpenWith(std::make_unique<FakeDaemonSession>(options), {});
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInternal) << client.status();
  }
}

// A lease may name a region that is still on its way.
TEST(SessionEventsTest, ALostSessionEndsTheWaitForARegion) {
  RegionTable regions;
  SessionEvents events(&regions);
  absl::Status found;
  std::thread waits([&] { found = regions.Find(Lease(), MiB(2)).status(); });
  events.Lost(absl::UnavailableError("the daemon ended"));
  waits.join();
  EXPECT_EQ(found.code(), absl::StatusCode::kUnavailable) << found;
}

}  // namespace
}  // namespace memtide::client
