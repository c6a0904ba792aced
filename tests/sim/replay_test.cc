// Runs that broke a promise once, shrunk and pasted as `minimize` prints them.
#include "gtest/gtest.h"
#include "tests/sim/simulation.h"

namespace memtide::sim {
namespace {

void ExpectKept(const Config& config, const std::vector<Op>& ops) {
  const Outcome outcome = Simulation::Run(config, ops);
  EXPECT_EQ(outcome.broken, "") << outcome.last;
}

TEST(ReplayTest, AJobEndsWhileOneOfItsChunksMoves) {
  Config config;
  config.seed = 128;
  config.device_slots = 6;
  config.host_slots = 7;
  config.uids = 3;
  config.job_names = 0;
  config.tick_ms = 57;
  config.limits.sessions = 4;
  config.limits.sessions_per_uid = 2;
  config.limits.chunks_per_call = 15;
  config.limits.waiting_calls_per_session = 1;
  config.limits.remembered_replies_per_session = 8;
  config.limits.max_wait = Duration(11000000000);
  config.limits.session_lease = Duration(200000000);
  ExpectKept(config, {{OpKind::kConnect, 24422, 154772184},
                      {OpKind::kOpen, 61684, 327767567},
                      {OpKind::kComplete, 10891, 554739669},
                      {OpKind::kComplete, 26557, 466060170},
                      {OpKind::kAllocate, 40605, 773911128},
                      {OpKind::kFetch, 12313, 308169235},
                      {OpKind::kConnect, 65493, 467569107},
                      {OpKind::kAllocate, 52633, 277314909},
                      {OpKind::kConnect, 35652, 300313036},
                      {OpKind::kComplete, 56135, 751000949},
                      {OpKind::kFetch, 32178, 367416040},
                      {OpKind::kClose, 45669, 580244987}});
}

TEST(ReplayTest, ASessionAsksForAChunkAtTwoTiers) {
  Config config;
  config.seed = 63;
  config.device_slots = 9;
  config.host_slots = 12;
  config.device_share = 4;
  config.host_share = 4;
  config.tick_ms = 84;
  config.limits.sessions = 6;
  config.limits.sessions_per_uid = 4;
  config.limits.chunks_per_call = 8;
  config.limits.waiting_calls_per_session = 2;
  config.limits.remembered_replies_per_session = 2;
  config.limits.max_wait = Duration(15000000000);
  config.limits.session_lease = Duration(1000000000);
  ExpectKept(config, {{OpKind::kConnect, 22624, 591241639},
                      {OpKind::kOpen, 24945, 426803140},
                      {OpKind::kConnect, 43539, 722088310},
                      {OpKind::kOpen, 24169, 593829934},
                      {OpKind::kComplete, 10682, 148804869},
                      {OpKind::kComplete, 9482, 1066195450},
                      {OpKind::kAllocate, 20122, 933794582},
                      {OpKind::kFetch, 27049, 849669388},
                      {OpKind::kFetch, 20520, 393581578},
                      {OpKind::kFetch, 296, 346151155}});
}

TEST(ReplayTest, AChunkIsWantedAboveWhileItsSlotIsWantedBelow) {
  Config config;
  config.seed = 325;
  config.chunk_size = Bytes(1073741824);
  config.device_slots = 4;
  config.host_slots = 5;
  config.ssd_slots = 16;
  config.uids = 2;
  config.device_percent = 58;
  config.faults.disk_read = 4;
  config.faults.disk_write = 2;
  config.faults.make = 18;
  config.tick_ms = 11;
  config.limits.sessions = 6;
  config.limits.sessions_per_uid = 4;
  config.limits.chunks_per_call = 9;
  config.limits.waiting_calls_per_session = 4;
  config.limits.remembered_replies_per_session = 1;
  config.limits.max_wait = Duration(23000000000);
  config.limits.session_lease = Duration(1800000000);
  ExpectKept(config, {{OpKind::kConnect, 55648, 466391820},
                      {OpKind::kOpen, 13057, 54634818},
                      {OpKind::kComplete, 57300, 454123526},
                      {OpKind::kComplete, 52037, 919040207},
                      {OpKind::kAllocate, 29811, 2932345},
                      {OpKind::kComplete, 17431, 109263215},
                      {OpKind::kComplete, 55285, 1023238123},
                      {OpKind::kFetch, 23336, 672537730},
                      {OpKind::kAllocate, 37450, 623081300},
                      {OpKind::kFetch, 6787, 1035342629},
                      {OpKind::kSettle, 62655, 579073555},
                      {OpKind::kFetch, 38414, 550184435},
                      {OpKind::kComplete, 40030, 536212848},
                      {OpKind::kComplete, 27793, 42820068}});
}

TEST(ReplayTest, MemoryCannotBeMadeForAFetchThatWaits) {
  Config config;
  config.seed = 702;
  config.chunk_size = Bytes(1073741824);
  config.host_slots = 8;
  config.ssd_slots = 7;
  config.uids = 2;
  config.job_names = 2;
  config.time_to_live = Duration(253000000);
  config.faults.disk_write = 1;
  config.faults.copy = 3;
  config.faults.make = 16;
  config.tick_ms = 46;
  config.limits.sessions = 5;
  config.limits.sessions_per_uid = 3;
  config.limits.chunks_per_call = 6;
  config.limits.waiting_calls_per_session = 4;
  config.limits.remembered_replies_per_session = 2;
  config.limits.max_wait = Duration(32000000000);
  config.limits.session_lease = Duration(700000000);
  ExpectKept(config, {{OpKind::kConnect, 26951, 429338126},
                      {OpKind::kOpen, 20658, 865977374},
                      {OpKind::kComplete, 24627, 573972129},
                      {OpKind::kAllocate, 60442, 122089734},
                      {OpKind::kComplete, 21209, 588854241},
                      {OpKind::kComplete, 24563, 833104116},
                      {OpKind::kComplete, 62849, 228319963},
                      {OpKind::kFetch, 39280, 465276868},
                      {OpKind::kComplete, 29741, 524278678}});
}

}  // namespace
}  // namespace memtide::sim
