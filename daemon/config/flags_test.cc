#include "daemon/config/flags.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/bytes.h"
#include "daemon/config/config.h"

namespace memtide {
namespace {

absl::StatusOr<CommandLine> Parse(const std::vector<std::string>& arguments) {
  return ParseCommandLine(arguments, "1.2.3");
}

TEST(FlagsTest, EveryFieldIsAFlag) {
  const auto line = Parse({"--socket-dir=/s",
                           "--device=emulated",
                           "--device-pool=96MiB",
                           "--device-bandwidth=4GB",
                           "--device-latency=20us",
                           "--host-pool=1GiB",
                           "--ssd-dir=/a",
                           "--ssd-dir",
                           "/b",
                           "--ssd-pool=2GiB",
                           "--metrics-address=127.0.0.1:0",
                           "--log-level=debug",
                           "--lifeline-fd=3",
                           "--session-lease=1m30s",
                           "--ssd-written-per-day=500GB",
                           "--ssd-written-per-day=3GiB",
                           "--ssd-endurance=600TB",
                           "--user-ssd-written-per-day=2GiB",
                           "--admin-group=wheel",
                           "--settings-dir=/settings"});
  ASSERT_TRUE(line.ok()) << line.status();
  const auto expected = ParseConfigText(
      R"pb(
        socket_dir: "/s"
        device: "emulated"
        device_pool_bytes: 100663296
        emulated_link {
          bytes_per_second: 4000000000
          latency { nanos: 20000 }
        }
        host_pool_bytes: 1073741824
        ssd_dirs: "/a"
        ssd_dirs: "/b"
        ssd_pool_bytes: 2147483648
        metrics_address: "127.0.0.1:0"
        log_level: "debug"
        lifeline_fd: 3
        session_lease { seconds: 90 }
        ssd_written_per_day_bytes: 500000000000
        ssd_written_per_day_bytes: 3221225472
        ssd_endurance_bytes: 600000000000000
        user_ssd_written_per_day_bytes: 2147483648
        admin_group: "wheel"
        settings_dir: "/settings"
      )pb",
      "expected");
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(line->config, *expected))
      << line->config.DebugString();
  EXPECT_EQ(Parse({"--no-ssd"})->config.ssd_pool(), v1::SSD_POOL_DISABLED);
  EXPECT_EQ(Parse({"--verify=off"})->config.verify(), v1::VERIFY_OFF);
  EXPECT_EQ(Parse({"--verify=kept"})->config.verify(), v1::VERIFY_KEPT);
  EXPECT_EQ(Parse({"--verify=all"})->config.verify(), v1::VERIFY_ALL);
  EXPECT_EQ(Parse({"--no-host-reserve"})->config.host_reserve(), v1::HOST_RESERVE_DISABLED);
  EXPECT_EQ(Parse({"--memory-limit=3GiB"})->config.memory_limit_bytes(), uint64_t{3} << 30);
  EXPECT_EQ(Parse({"--host-reserve=2GiB"})->config.host_reserve_bytes(), uint64_t{2} << 30);
}

TEST(FlagsTest, NoFlagsAreTheDefaults) {
  const auto line = Parse({});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.ByteSizeLong(), 0u);
  EXPECT_EQ(line->answer, "");
  EXPECT_FALSE(line->list_gpus);
  EXPECT_TRUE(Parse({"--list-gpus"})->list_gpus);
  EXPECT_TRUE(Parse({"--ask-gpus"})->ask_gpus);
}

TEST(FlagsTest, FlagsReplaceWhatTheFileSays) {
  const std::string path = std::string(getenv("TEST_TMPDIR")) + "/node.textproto";
  std::ofstream(path) << R"pb(
    socket_dir: "/file"
    device_pool_bytes: 1
    emulated_link { bytes_per_second: 5 }
    ssd_dirs: "/file1"
    ssd_dirs: "/file2"
    log_level: "error"
    ssd_written_per_day_bytes: 1
    ssd_endurance_bytes: 1
  )pb";
  const auto line =
      Parse({"--config", path, "--socket-dir=/flag", "--device-pool=2MiB", "--device-latency=3us",
             "--ssd-dir=/flag", "--ssd-written-per-day=2GiB", "--ssd-endurance=1TB"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.socket_dir(), "/flag");
  EXPECT_EQ(line->config.device_pool_bytes(), MiB(2).count());
  EXPECT_EQ(line->config.emulated_link().bytes_per_second(), 5u);
  EXPECT_EQ(line->config.emulated_link().latency().nanos(), 3000);
  ASSERT_EQ(line->config.ssd_dirs_size(), 1);
  EXPECT_EQ(line->config.ssd_dirs(0), "/flag");
  ASSERT_EQ(line->config.ssd_written_per_day_bytes_size(), 1);
  EXPECT_EQ(line->config.ssd_written_per_day_bytes(0), uint64_t{2} << 30);
  ASSERT_EQ(line->config.ssd_endurance_bytes_size(), 1);
  EXPECT_EQ(line->config.ssd_endurance_bytes(0), 1'000'000'000'000);
  EXPECT_EQ(line->config.log_level(), "error");
}

TEST(FlagsTest, ErrorsNameTheFlag) {
  const auto message = [](const std::vector<std::string>& arguments) {
    const absl::Status status = Parse(arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(message({"--host-pool=0"}).rfind("--host-pool: must not be zero", 0), 0u);
  EXPECT_EQ(message({"--host-pool=lots"}).rfind("--host-pool", 0), 0u);
  EXPECT_EQ(message({"--session-lease=-1s"}).rfind("--session-lease", 0), 0u);
  EXPECT_EQ(message({"--verify=some"}).rfind("--verify: \"some\"", 0), 0u);
  EXPECT_NE(message({"--lifeline-fd=x"}).find("--lifeline-fd"), std::string::npos);
  EXPECT_NE(message({"--hostpool=1GiB"}).find("--hostpool"), std::string::npos);
  EXPECT_NE(message({"stray"}).find("stray"), std::string::npos);
}

TEST(FlagsTest, AMissingFileIsNamed) {
  const absl::Status status = Parse({"--config=/not/there"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/not/there"), absl::string_view::npos) << status;
}

TEST(FlagsTest, AnswersQuestionsAboutItself) {
  EXPECT_EQ(Parse({"--version"})->answer, "memtided 1.2.3\n");
  const std::string help = Parse({"--help"})->answer;
  const google::protobuf::Descriptor& type = *v1::NodeConfig::descriptor();
  EXPECT_NE(help.find("--socket-dir"), std::string::npos);
  // All but quotas have one.
  EXPECT_EQ(type.field_count(), 22) << "a new field needs a flag, and a line in this test";
}

}  // namespace
}  // namespace memtide
