#include "daemon/config/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "daemon/config/config.h"

namespace memtide {
namespace {

// Throws CLI11's exception for a wrong value, which ParseCommandLine catches.
uint64_t ParseSize(const std::string& flag, const std::string& text, const std::string& if_zero) {
  const absl::StatusOr<Bytes> bytes = ParseBytes(text);
  if (!bytes.ok()) throw CLI::ValidationError(flag, std::string(bytes.status().message()));
  if (bytes->IsZero()) throw CLI::ValidationError(flag, "must not be zero; " + if_zero);
  return bytes->count();
}

// Throws as ParseSize does.
v1::Verify ParseVerify(const std::string& flag, const std::string& text) {
  if (text == "off") return v1::VERIFY_OFF;
  if (text == "kept") return v1::VERIFY_KEPT;
  if (text == "all") return v1::VERIFY_ALL;
  throw CLI::ValidationError(
      flag, absl::StrCat("\"", text, "\" is not known; known: \"off\", \"kept\", \"all\""));
}

// Throws as ParseSize does. The form of `text` is that of absl::ParseDuration.
void ParseTime(const std::string& flag, const std::string& text,
               google::protobuf::Duration* duration) {
  absl::Duration value;
  if (!absl::ParseDuration(text, &value) || value < absl::ZeroDuration() ||
      value > absl::Hours(24)) {
    throw CLI::ValidationError(
        flag, absl::StrCat("\"", text, "\" is not a time from 0 to 24h, such as 20us or 1m30s"));
  }
  duration->set_seconds(absl::ToInt64Seconds(value));
  duration->set_nanos(
      static_cast<int32_t>((value - absl::Seconds(duration->seconds())) / absl::Nanoseconds(1)));
}

// Zero would mean the default in the NodeConfig, so that each flag says what to use instead.
void AddSize(CLI::App* app, const std::string& flag, const std::string& help,
             const std::string& if_zero, std::function<void(uint64_t)> set) {
  app->add_option_function<std::string>(
         flag,
         [flag, if_zero, set](const std::string& text) { set(ParseSize(flag, text, if_zero)); },
         help)
      ->type_name("SIZE");
}

// One for all directories, or one for each.
void AddSizes(CLI::App* app, const std::string& flag, const std::string& help,
              const std::string& if_zero, std::function<void(uint64_t)> add) {
  app->add_option_function<std::vector<std::string>>(
         flag,
         [flag, if_zero, add](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) add(ParseSize(flag, text, if_zero));
         },
         help)
      ->type_name("SIZE")
      ->allow_extra_args(false);
}

void AddDeviceFlags(CLI::App* app, v1::NodeConfig* flags) {
  app->add_option_function<std::string>(
         "--device", [flags](const std::string& device) { flags->set_device(device); },
         "auto, none, emulated, emulated:COUNT, cuda (all GPUs), or GPUs as cuda:N, GPU-<uuid> or "
         "MIG-<uuid>, separated by commas [auto: all GPUs that work, else emulated if "
         "--device-pool is given]")
      ->type_name("DEVICE");
  AddSize(app, "--device-pool",
          "Memory of each device for chunks, such as 96MiB [of a GPU, 60% of what is free]",
          "use --device=none for no device",
          [flags](uint64_t bytes) { flags->set_device_pool_bytes(bytes); });
  AddSize(app, "--device-bandwidth",
          "Bytes a second to and from an emulated device, such as 4GB; else as memory",
          "leave it out for the speed of memory",
          [flags](uint64_t bytes) { flags->mutable_emulated_link()->set_bytes_per_second(bytes); });
  app->add_option_function<std::string>(
         "--device-latency",
         [flags](const std::string& text) {
           ParseTime("--device-latency", text, flags->mutable_emulated_link()->mutable_latency());
         },
         "Added to each copy to and from it, such as 20us")
      ->type_name("TIME");
}

void AddHostFlags(CLI::App* app, v1::NodeConfig* flags) {
  AddSize(app, "--host-pool", "Host memory for chunks [half of what is available]",
          "leave it out for the default",
          [flags](uint64_t bytes) { flags->set_host_pool_bytes(bytes); });
  AddSize(app, "--host-reserve",
          "Memory kept available for programs: while the machine has less, it gets what jobs can "
          "spare of the host pool [a 16th of what is available, at most 1GiB]",
          "use --no-host-reserve for never",
          [flags](uint64_t bytes) { flags->set_host_reserve_bytes(bytes); });
  AddSize(app, "--memory-limit",
          "Memory that this daemon and the process that starts it may use together; the host pool "
          "shrinks for it [no limit]",
          "leave it out for no limit",
          [flags](uint64_t bytes) { flags->set_memory_limit_bytes(bytes); });
  app->add_flag_callback(
      "--no-host-reserve", [flags] { flags->set_host_reserve(v1::HOST_RESERVE_DISABLED); },
      "The host pool stays what it is");
}

void AddSsdFlags(CLI::App* app, v1::NodeConfig* flags) {
  app->add_option_function<std::vector<std::string>>(
         "--ssd-dir",
         [flags](const std::vector<std::string>& dirs) {
           for (const std::string& dir : dirs) flags->add_ssd_dirs(dir);
         },
         "Directory for the SSD pool; may be repeated, chunks are striped by the speed of the "
         "drives "
         "[/var/lib/memtide, or ~/.cache/memtide/store]")
      ->type_name("DIR")
      // Otherwise an option with a vector would take all arguments that follow it.
      ->allow_extra_args(false);
  AddSize(app, "--ssd-pool", "Space for chunks over all of them [80% of what is free]",
          "use --no-ssd for none", [flags](uint64_t bytes) { flags->set_ssd_pool_bytes(bytes); });
  app->add_flag_callback(
      "--no-ssd", [flags] { flags->set_ssd_pool(v1::SSD_POOL_DISABLED); }, "No SSD pool");
  app->add_option_function<std::string>(
         "--verify",
         [flags](const std::string& what) { flags->set_verify(ParseVerify("--verify", what)); },
         "Which chunks on SSD have checksums: off, kept (of named jobs) or all [kept]")
      ->type_name("WHICH");
}

void AddWriteBudgetFlags(CLI::App* app, v1::NodeConfig* flags) {
  AddSizes(app, "--ssd-written-per-day",
           "Most that is written to each SSD directory in 24 hours, such as 500GB, by which "
           "evictions wait; may be repeated, for each directory [no budget]",
           "leave it out for no budget",
           [flags](uint64_t bytes) { flags->add_ssd_written_per_day_bytes(bytes); });
  AddSizes(app, "--ssd-endurance",
           "Bytes that can be written to each drive in its life, such as 600TB; may be repeated "
           "[unknown]",
           "leave it out if it is not known",
           [flags](uint64_t bytes) { flags->add_ssd_endurance_bytes(bytes); });
  AddSize(app, "--user-ssd-written-per-day",
          "Most that the jobs of one user write to SSD in 24 hours [no budget]",
          "leave it out for no budget",
          [flags](uint64_t bytes) { flags->set_user_ssd_written_per_day_bytes(bytes); });
}

void AddServiceFlags(CLI::App* app, v1::NodeConfig* flags) {
  const auto add_text = [app](const std::string& flag, const std::string& type,
                              const std::string& help,
                              std::function<void(const std::string&)> set) {
    app->add_option_function<std::string>(flag, set, help)->type_name(type);
  };
  add_text("--socket-dir", "DIR",
           "Where the sockets live [/run/memtide, or $XDG_RUNTIME_DIR/memtide]",
           [flags](const std::string& dir) { flags->set_socket_dir(dir); });
  add_text("--metrics-address", "HOST:PORT",
           "serve metrics to everyone, without memtide-metrics; port 0 for any free one [off]",
           [flags](const std::string& address) { flags->set_metrics_address(address); });
  add_text("--log-level", "LEVEL", "debug, info, warning or error [info]",
           [flags](const std::string& level) { flags->set_log_level(level); });
  add_text("--admin-group", "GROUP",
           "Its members, beside root, may end jobs, drain the node and set quotas [memtide-admin, "
           "if there is such a group]",
           [flags](const std::string& group) { flags->set_admin_group(group); });
  add_text("--settings-dir", "DIR",
           "Where quotas that are set while the daemon runs are kept [nowhere]",
           [flags](const std::string& dir) { flags->set_settings_dir(dir); });
  app->add_option_function<int32_t>(
         "--lifeline-fd", [flags](int32_t fd) { flags->set_lifeline_fd(fd); },
         "End when this descriptor reports end-of-file")
      ->type_name("FD");
  app->add_option_function<std::string>(
         "--session-lease",
         [flags](const std::string& text) {
           ParseTime("--session-lease", text, flags->mutable_session_lease());
         },
         "End sessions that are not renewed for this long [60s]")
      ->type_name("TIME");
}

// Overwrites the file's settings with the flags'. A repeated flag replaces the whole list.
void Override(const v1::NodeConfig& flags, v1::NodeConfig* config) {
  if (!flags.ssd_dirs().empty()) config->clear_ssd_dirs();
  if (!flags.ssd_written_per_day_bytes().empty()) config->clear_ssd_written_per_day_bytes();
  if (!flags.ssd_endurance_bytes().empty()) config->clear_ssd_endurance_bytes();
  config->MergeFrom(flags);
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const std::string& version) {
  CLI::App app("memtided lends this node's device, host and SSD memory to training processes.",
               "memtided");
  v1::NodeConfig flags;
  std::string file;
  CommandLine line;
  app.set_version_flag("--version", "memtided " + version);
  app.add_flag("--list-gpus", line.list_gpus, "Print what GPUs there are, and end");
  app.add_flag("--ask-gpus", line.ask_gpus,
               "Print what each GPU does of what memtide relies on, and end");
  app.add_option("--config", file, "Settings in protobuf text format (NodeConfig); flags go first")
      ->type_name("FILE");
  AddServiceFlags(&app, &flags);
  AddDeviceFlags(&app, &flags);
  AddHostFlags(&app, &flags);
  AddSsdFlags(&app, &flags);
  AddWriteBudgetFlags(&app, &flags);
  try {
    // CLI11 expects arguments in reverse order.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    line.answer = app.help();
    return line;
  } catch (const CLI::CallForVersion&) {
    line.answer = app.version() + "\n";
    return line;
  } catch (const CLI::ParseError& error) {
    // CLI11 reports all errors by exceptions, which end here.
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see --help)"));
  }
  if (!file.empty()) {
    MEMTIDE_ASSIGN_OR_RETURN(line.config, ReadConfigFile(file));
  }
  Override(flags, &line.config);
  return line;
}

}  // namespace memtide
