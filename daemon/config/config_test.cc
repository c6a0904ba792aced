#include "daemon/config/config.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace memtide {
namespace {

using absl::StatusCode;

// 8 GiB of memory, 100 GiB free under /a and /b, which share a file system, and 10 GiB under
// /small.
Machine TestMachine() {
  Machine machine;
  machine.available_memory = GiB(8);
  machine.socket_dir = "/run/memtide";
  machine.ssd_dir = "/a";
  machine.free_space = [](const std::string& directory) -> absl::StatusOr<FreeSpace> {
    if (directory == "/gone") return absl::FailedPreconditionError("no such file system");
    return directory == "/small" ? FreeSpace{2, GiB(10)} : FreeSpace{1, GiB(100)};
  };
  machine.accounts.uid_of = [](const std::string& name) {
    return name == "alice" ? absl::make_optional(1000u) : absl::nullopt;
  };
  machine.accounts.gid_of = [](const std::string& name) {
    return name == "operators" ? absl::make_optional(60u) : absl::nullopt;
  };
  machine.gpu_uuids = [] { return absl::NotFoundError("no GPU"); };
  machine.inspect_gpu = [](const std::string&) { return absl::NotFoundError("no GPU"); };
  return machine;
}

absl::StatusOr<Config> FromText(const std::string& text) {
  const auto proto = ParseConfigText(text, "test");
  if (!proto.ok()) return proto.status();
  return Validate(*proto, TestMachine());
}

// The message of the refusal, when `text` is refused with `code`.
std::string Refusal(const std::string& text, StatusCode code) {
  const absl::Status status = FromText(text).status();
  EXPECT_EQ(status.code(), code) << text << ": " << status;
  return std::string(status.message());
}

TEST(ConfigTest, NeedsNoSettings) {
  const auto config = FromText("");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->socket_dir, "/run/memtide");
  EXPECT_FALSE(config->emulated_device.has_value());
  EXPECT_EQ(config->host_pool, GiB(4));
  EXPECT_EQ(config->host_reserve, MiB(512)) << "a 16th of 8 GiB";
  EXPECT_EQ(config->ssd_dirs, std::vector<std::string>{"/a"});
  EXPECT_EQ(config->ssd_pool, GiB(80));
  EXPECT_EQ(config->metrics_address, "") << "the daemon opens no port by itself";
  EXPECT_EQ(config->log_level, LogLevel::kInfo);
  EXPECT_FALSE(config->lifeline_fd.has_value());
  EXPECT_EQ(config->session_lease, std::chrono::seconds(60));
}

TEST(ConfigTest, TakesEveryField) {
  const auto config = FromText(R"pb(
    socket_dir: "/s"
    device: "emulated"
    device_pool_bytes: 100663297
    emulated_link {
      bytes_per_second: 4000000000
      latency { nanos: 20000 }
    }
    host_pool_bytes: 1073741824
    host_reserve_bytes: 268435456
    ssd_dirs: "/b/./c/../"
    ssd_dirs: "/small"
    ssd_pool_bytes: 21474836480
    ssd_pool: SSD_POOL_ENABLED
    metrics_address: "[::1]:0"
    log_level: "debug"
    lifeline_fd: 3
    session_lease { seconds: 5 }
    ssd_written_per_day_bytes: 0
    ssd_written_per_day_bytes: 500000000000
    ssd_endurance_bytes: 600000000000000
    user_ssd_written_per_day_bytes: 100000000000
    quotas { subject: "user:alice" host_bytes: 9 lingering_seconds: 60 }
    admin_group: "operators"
    settings_dir: "/settings"
  )pb");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->socket_dir, "/s");
  EXPECT_EQ(config->emulated_device->capacity, MiB(96)) << "rounded down to 2 MiB";
  EXPECT_EQ(config->emulated_device->bytes_per_second, Bytes(4'000'000'000));
  EXPECT_EQ(config->emulated_device->latency, std::chrono::microseconds(20));
  EXPECT_EQ(config->host_pool, GiB(1));
  EXPECT_EQ(config->host_reserve, MiB(256));
  EXPECT_EQ(config->ssd_dirs, (std::vector<std::string>{"/b/", "/small"}));
  EXPECT_EQ(config->ssd_pool, GiB(20));
  EXPECT_EQ(config->metrics_address, "[::1]:0");
  EXPECT_EQ(config->log_level, LogLevel::kDebug);
  EXPECT_EQ(config->lifeline_fd, 3);
  EXPECT_EQ(config->session_lease, std::chrono::seconds(5));
  EXPECT_EQ(config->ssd_written_per_day, (std::vector<Bytes>{Bytes(), Bytes(500'000'000'000)}));
  EXPECT_EQ(config->ssd_endurance, std::vector<Bytes>(2, Bytes(600'000'000'000'000)));
  EXPECT_EQ(config->user_ssd_written_per_day, Bytes(100'000'000'000));
  ASSERT_EQ(config->quotas.size(), 1u);
  EXPECT_EQ(config->quotas[0].id, 1000u);
  EXPECT_EQ(config->quotas[0].most.bytes[static_cast<int>(Tier::kHost)], Bytes(9));
  EXPECT_FALSE(config->quotas[0].most.bytes[static_cast<int>(Tier::kSsd)].has_value());
  EXPECT_EQ(config->quotas[0].most.time_to_live, std::chrono::minutes(1));
  EXPECT_EQ(config->admin_group, 60u);
  EXPECT_EQ(config->settings_dir, "/settings");
}

TEST(ConfigTest, BudgetsOfWritesAreForEachDirectoryAndLetTheLargestChunkThrough) {
  EXPECT_EQ(Refusal("ssd_written_per_day_bytes: 1073741824", StatusCode::kInvalidArgument),
            "ssd_written_per_day_bytes: 1 GiB; at least 2 GiB, as the largest chunk could else not "
            "be written in a day");
  Refusal("user_ssd_written_per_day_bytes: 1", StatusCode::kInvalidArgument);
  EXPECT_EQ(Refusal("ssd_endurance_bytes: 1 ssd_endurance_bytes: 2", StatusCode::kInvalidArgument),
            "ssd_endurance_bytes: 2 values for 1 SSD directories; give one for all, or one for "
            "each");
  Refusal("ssd_pool: SSD_POOL_DISABLED ssd_endurance_bytes: 1", StatusCode::kInvalidArgument);
  EXPECT_EQ(FromText("")->ssd_written_per_day, std::vector<Bytes>(1));
}

TEST(ConfigTest, AccountsThatAreGoneKeepNoDaemonFromStarting) {
  const auto config = FromText(R"pb(
    quotas { subject: "user:bob" jobs: 1 }
    quotas { subject: "group:operators" jobs: 1 }
    admin_group: "wheel"
  )pb");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->quotas.size(), 1u);
  EXPECT_FALSE(config->admin_group.has_value());
  EXPECT_EQ(config->warnings,
            (std::vector<std::string>{
                "quotas: subject: the machine has no user \"bob\"; a number needs no name. The "
                "quota has no effect",
                "admin_group: the machine has no group \"wheel\", so that root alone administers "
                "the node"}));
  EXPECT_FALSE(FromText("")->admin_group.has_value());
  EXPECT_TRUE(FromText("")->warnings.empty()) << "there need be no group memtide-admin";
  Machine machine = TestMachine();
  machine.accounts.gid_of = [](const std::string& name) {
    return name == "memtide-admin" ? absl::make_optional(61u) : absl::nullopt;
  };
  EXPECT_EQ(Validate(v1::NodeConfig(), machine)->admin_group, 61u);
}

TEST(ConfigTest, AQuotaHasOneSubject) {
  EXPECT_EQ(Refusal("quotas { subject: \"everyone\" jobs: 1 }", StatusCode::kInvalidArgument),
            "quotas: subject: \"everyone\"; must be \"user:NAME\", \"group:NAME\" or "
            "\"default\"");
  EXPECT_EQ(Refusal("quotas { subject: \"user:alice\" } quotas { subject: \"user:1000\" }",
                    StatusCode::kInvalidArgument),
            "quotas: \"user:alice\" and \"user:1000\" are one subject; name it once");
}

TEST(ConfigTest, TheReserveCanBeNoneAndIsNoMoreThanAGibibyteUnlessAskedFor) {
  EXPECT_EQ(FromText("host_reserve: HOST_RESERVE_DISABLED")->host_reserve, Bytes(0));
  EXPECT_EQ(FromText("host_reserve_bytes: 4294967296")->host_reserve, GiB(4));
  EXPECT_EQ(Refusal("host_reserve_bytes: 9663676416", StatusCode::kFailedPrecondition),
            "host_reserve_bytes: 9 GiB, but only 8 GiB of memory are available now: the host pool "
            "could never be used whole. Reserve less (--host-reserve), or nothing "
            "(--no-host-reserve)");
  Machine machine = TestMachine();
  machine.available_memory = GiB(256);
  EXPECT_EQ(Validate(v1::NodeConfig(), machine)->host_reserve, GiB(1));
  EXPECT_EQ(FromText("memory_limit_bytes: 1073741824")->host_reserve, MiB(64)) << "of the limit";
}

TEST(ConfigTest, ErrorsOfTheTextSayWhere) {
  EXPECT_EQ(Refusal("socket_dir: \"/s\"\n  host_pool: 7", StatusCode::kInvalidArgument),
            "test:2:12: Message type \"memtide.v1.NodeConfig\" has no field named \"host_pool\".");
}

TEST(ConfigTest, RefusesMoreMemoryThanThereIs) {
  const std::string host = Refusal("host_pool_bytes: 9663676416", StatusCode::kFailedPrecondition);
  EXPECT_EQ(host,
            "host_pool_bytes: 9 GiB, but only 8 GiB of memory are available. Ask for less "
            "(--host-pool), or end other programs");
  Refusal("device_pool_bytes: 8589934592", StatusCode::kFailedPrecondition);
  // Each fits alone, both together do not.
  Refusal("device_pool_bytes: 5368709120 host_pool_bytes: 5368709120",
          StatusCode::kFailedPrecondition);
}

TEST(ConfigTest, RefusesPoolsOfLessThanOnePage) {
  Refusal("host_pool_bytes: 2097151", StatusCode::kInvalidArgument);
  Refusal("ssd_pool_bytes: 1", StatusCode::kInvalidArgument);
  Refusal("device_pool_bytes: 1", StatusCode::kInvalidArgument);
}

TEST(ConfigTest, AStripedPoolIsAsLargeAsItsFullestFileSystemAllows) {
  // 10 GiB on one of two: 20 in all. Two directories on one file system share what is free.
  EXPECT_EQ(FromText("ssd_dirs: \"/small\" ssd_dirs: \"/a\"")->ssd_pool, GiB(16));
  EXPECT_EQ(FromText("ssd_dirs: \"/a\" ssd_dirs: \"/b\"")->ssd_pool, GiB(80));
  const std::string refusal =
      Refusal("ssd_dirs: \"/small\" ssd_dirs: \"/a\" ssd_pool_bytes: 32212254720",
              StatusCode::kFailedPrecondition);
  EXPECT_NE(refusal.find("30 GiB, but the directories have room for 20 GiB"), std::string::npos)
      << refusal;
}

TEST(ConfigTest, NoSsdPoolMeansNoDirectories) {
  const auto config = FromText("ssd_pool: SSD_POOL_DISABLED");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->ssd_dirs.empty());
  EXPECT_TRUE(config->ssd_pool.IsZero());
  EXPECT_EQ(config->verify, v1::VERIFY_KEPT) << "named jobs are verified unless it is said";
  EXPECT_EQ(FromText("verify: VERIFY_OFF")->verify, v1::VERIFY_OFF);
  Refusal("verify: 4", StatusCode::kInvalidArgument);
  Refusal("ssd_pool: SSD_POOL_DISABLED ssd_dirs: \"/a\"", StatusCode::kInvalidArgument);
  Refusal("ssd_dirs: \"/gone\"", StatusCode::kFailedPrecondition);
  Refusal("ssd_dirs: \"/a\" ssd_dirs: \"/b/../a\"", StatusCode::kInvalidArgument);
}

TEST(ConfigTest, RefusesImpossibleValues) {
  Refusal("metrics_address: \"9464\"", StatusCode::kInvalidArgument);
  Refusal("metrics_address: \"localhost:65536\"", StatusCode::kInvalidArgument);
  Refusal("metrics_address: \":9464\"", StatusCode::kInvalidArgument);
  Refusal("log_level: \"verbose\"", StatusCode::kInvalidArgument);
  Refusal("session_lease { nanos: 999999999 }", StatusCode::kInvalidArgument);
  Refusal("session_lease { seconds: -1 }", StatusCode::kInvalidArgument);
  Refusal("device_pool_bytes: 2097152 emulated_link { latency { seconds: 86400 } }",
          StatusCode::kInvalidArgument);
  EXPECT_EQ(FromText("metrics_address: \"off\"")->metrics_address, "");
}

TEST(ConfigTest, SaysWhatToNameWhereTheEnvironmentNamesNothing) {
  Machine machine = TestMachine();
  machine.socket_dir = "";
  EXPECT_NE(Validate({}, machine).status().message().find("--socket-dir"), absl::string_view::npos);
  machine = TestMachine();
  machine.ssd_dir = "";
  EXPECT_NE(Validate({}, machine).status().message().find("--no-ssd"), absl::string_view::npos);
}

TEST(ConfigTest, WhileJobsWaitToBeRestoredAPoolIsReducedInsteadOfRefused) {
  const auto proto = ParseConfigText(
      "host_pool_bytes: 9663676416 host_reserve_bytes: 9663676416 ssd_pool_bytes: 1099511627776",
      "test");
  ASSERT_TRUE(proto.ok()) << proto.status();
  Machine machine = TestMachine();
  machine.persisted.any = true;
  const auto config = Validate(*proto, machine);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->host_pool, GiB(8)) << "all that there is";
  EXPECT_EQ(config->host_reserve, MiB(512));
  EXPECT_EQ(config->ssd_pool, GiB(100));
  ASSERT_EQ(config->warnings.size(), 3u);
  EXPECT_EQ(config->warnings[0],
            "host_pool_bytes: 9 GiB, but only 8 GiB of memory are available. Ask for less "
            "(--host-pool), or end other programs. It is 8 GiB until the next start, so that the "
            "jobs of the last daemon fit");
  EXPECT_FALSE(Validate(*ParseConfigText("log_level: \"loud\"", "test"), machine).ok());
}

TEST(ConfigTest, APoolOfDefaultSizeHasRoomForTheJobsOfTheLastDaemon) {
  Machine machine = TestMachine();
  machine.persisted.any = true;
  machine.persisted.host_pool = GiB(5) - Bytes(1);
  machine.persisted.ssd_pool = GiB(90);
  auto config = Validate({}, machine);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->host_pool, GiB(5)) << "half of what is available is 4 GiB";
  EXPECT_EQ(config->ssd_pool, GiB(90)) << "80% of what is free is 80 GiB";
  v1::NodeConfig given;
  given.set_host_pool_bytes(GiB(1).count());
  config = Validate(given, machine);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->host_pool, GiB(1)) << "a size that is given, and that there is, holds";
}

TEST(ConfigTest, ThisMachineHasMemoryAndADisk) {
  const auto machine = ThisMachine();
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_GT(machine->available_memory, MiB(1));
  const auto here = machine->free_space("/tmp");
  const auto below = machine->free_space("/tmp/not/there/yet");
  ASSERT_TRUE(here.ok()) << here.status();
  ASSERT_TRUE(below.ok()) << below.status();
  EXPECT_EQ(here->file_system, below->file_system);
  PersistedMemory persisted;
  persisted.blocks[here->file_system] = GiB(1 << 20);
  EXPECT_GE(ThisMachine(persisted)->free_space("/tmp")->free, GiB(1 << 20))
      << "what is kept is ours";
}

}  // namespace
}  // namespace memtide
