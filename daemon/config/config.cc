#include "daemon/config/config.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/config/validate.h"
#include "daemon/engine/interface/types.h"
#include "daemon/settings/quota_text.h"

namespace memtide {
namespace {

constexpr std::chrono::seconds kDefaultSessionLease{60};
constexpr char kUsualAdminGroup[] = "memtide-admin";
// Clients renew three times a lease. With a shorter one, a short pause of a process would end its
// session.
constexpr std::chrono::seconds kLeastSessionLease{1};
// More than a program allocates until the daemon measures memory again and has written a few
// chunks.
constexpr Bytes kMostReserve = GiB(1);
// The largest chunk takes half of this budget.
// Four fifths of the free space, because a full file system is slow, and its other users fail.
Bytes DefaultSsdPool(Bytes free) { return Bytes(free.count() / 5 * 4); }

// `device` is the size of all emulated devices, whose memory is host memory as well.
absl::StatusOr<Bytes> ToHostPool(const v1::NodeConfig& proto, Bytes device, const Machine& machine,
                                 Config* config) {
  const Bytes available = machine.available_memory;
  if (device >= available) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device_pool_bytes: ", FormatBytes(device), " of an emulated device, but only ",
        FormatBytes(available), " of memory are available. Ask for less (--device-pool)"));
  }
  const Bytes left = available - device;
  if (proto.host_pool_bytes() == 0) {
    // The jobs of the last daemon must fit again, even where the default is smaller (decision 14).
    const Bytes usual(left.count() / 2);
    return RoundPool("host_pool_bytes", std::max(usual, RoomFor(machine.persisted.host_pool)));
  }
  const Bytes requested(proto.host_pool_bytes());
  if (requested <= left) return RoundPool("host_pool_bytes", requested);
  const absl::Status refusal = absl::FailedPreconditionError(
      absl::StrCat("host_pool_bytes: ", FormatBytes(requested), ", but only ", FormatBytes(left),
                   device.IsZero() ? " of memory are available"
                                   : " of memory are available besides the emulated device",
                   ". Ask for less (--host-pool), or end other programs"));
  return LessOrRefuse(refusal, left, machine.persisted.host_pool, machine, config);
}

absl::StatusOr<Bytes> ToHostReserve(const v1::NodeConfig& proto, const Machine& machine,
                                    Config* config) {
  const Bytes available = machine.available_memory;
  if (proto.host_reserve() == v1::HOST_RESERVE_DISABLED) return Bytes();
  const Bytes requested(proto.host_reserve_bytes());
  const Bytes whole = config->memory_limit.IsZero() ? available : config->memory_limit;
  const Bytes usual = std::min(Bytes(whole.count() / 16), kMostReserve);
  // A reserve that can never be reached would keep the balloon inflated.
  if (requested > available) {
    const absl::Status refusal = absl::FailedPreconditionError(absl::StrCat(
        "host_reserve_bytes: ", FormatBytes(requested), ", but only ", FormatBytes(available),
        " of memory are available now: the host pool could never be used whole. Reserve less "
        "(--host-reserve), or nothing (--no-host-reserve)"));
    return LessOrRefuse(refusal, usual, Bytes(), machine, config);
  }
  return requested.IsZero() ? usual : requested;
}

absl::StatusOr<std::vector<std::string>> ToSsdDirs(const v1::NodeConfig& proto,
                                                   const Machine& machine) {
  std::vector<std::string> dirs(proto.ssd_dirs().begin(), proto.ssd_dirs().end());
  if (dirs.empty()) dirs.push_back(machine.ssd_dir);
  for (std::string& dir : dirs) {
    if (dir.empty()) {
      return absl::InvalidArgumentError(
          "ssd_dirs: no directory is known, as neither XDG_CACHE_HOME nor HOME is set. Name one "
          "(--ssd-dir), or do without (--no-ssd)");
    }
    // Two spellings of one directory must compare equal below.
    dir = std::filesystem::absolute(dir).lexically_normal().string();
  }
  for (size_t i = 1; i < dirs.size(); ++i) {
    if (std::find(dirs.begin(), dirs.begin() + i, dirs[i]) != dirs.begin() + i) {
      return absl::InvalidArgumentError(
          absl::StrCat("ssd_dirs: \"", dirs[i], "\" is named twice; each may come once"));
    }
  }
  return dirs;
}

// The size of the largest pool that, striped evenly over `dirs`, fits on their file systems.
absl::StatusOr<Bytes> LargestSsdPool(const std::vector<std::string>& dirs, const Machine& machine) {
  std::map<uint64_t, std::pair<Bytes, uint64_t>> file_systems;  // Free space, dirs on it.
  for (const std::string& dir : dirs) {
    MEMTIDE_ASSIGN_OR_RETURN(const FreeSpace space, machine.free_space(dir));
    auto& [free, count] = file_systems[space.file_system];
    free = space.free;
    ++count;
  }
  Bytes largest(UINT64_MAX);
  for (const auto& [id, file_system] : file_systems) {
    const auto& [free, count] = file_system;
    // Stripes are dealt evenly, so the fullest directory bounds all of them.
    largest = std::min(largest, Bytes(free.count() / count) * dirs.size());
  }
  return largest;
}

absl::Status SetSsd(const v1::NodeConfig& proto, const Machine& machine, Config* config) {
  if (!v1::SsdPool_IsValid(proto.ssd_pool())) {
    return absl::InvalidArgumentError(
        absl::StrCat("ssd_pool: ", proto.ssd_pool(), " is not known; known: 0 to 2"));
  }
  if (proto.ssd_pool() == v1::SSD_POOL_DISABLED) {
    // Settings that contradict each other are refused, because one of them is a mistake.
    if (proto.ssd_dirs().empty() && proto.ssd_pool_bytes() == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "ssd_pool: DISABLED, but ssd_dirs or ssd_pool_bytes is given. Leave either out");
  }
  MEMTIDE_ASSIGN_OR_RETURN(config->ssd_dirs, ToSsdDirs(proto, machine));
  MEMTIDE_ASSIGN_OR_RETURN(const Bytes largest, LargestSsdPool(config->ssd_dirs, machine));
  const Bytes persisted = machine.persisted.ssd_pool;
  Bytes size(proto.ssd_pool_bytes());
  if (size.IsZero()) {
    size = std::max(DefaultSsdPool(largest), RoomFor(persisted));
  } else if (size > largest) {
    const absl::Status refusal = absl::FailedPreconditionError(
        absl::StrCat("ssd_pool_bytes: ", FormatBytes(size), ", but the directories have room for ",
                     FormatBytes(largest),
                     ". Ask for less (--ssd-pool), or name other directories (--ssd-dir)"));
    MEMTIDE_ASSIGN_OR_RETURN(size, LessOrRefuse(refusal, largest, persisted, machine, config));
  }
  MEMTIDE_ASSIGN_OR_RETURN(config->ssd_pool, RoundPool("ssd_pool_bytes", size));
  return absl::OkStatus();
}

// A value for each directory.
absl::StatusOr<std::vector<Bytes>> ForEachDir(
    absl::string_view field, const google::protobuf::RepeatedField<uint64_t>& values, size_t dirs) {
  const size_t given = static_cast<size_t>(values.size());
  if (given > 1 && given != dirs) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", given, " values for ", dirs,
                     " SSD directories; give one for all, or one for each"));
  }
  std::vector<Bytes> each(dirs);
  for (size_t i = 0; i < dirs && given > 0; ++i) {
    each[i] = Bytes(values[given == 1 ? 0 : static_cast<int>(i)]);
  }
  return each;
}

absl::Status CheckBudget(absl::string_view field, Bytes per_day) {
  if (per_day.IsZero() || per_day >= kLeastWrittenPerDay) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": ", FormatBytes(per_day), "; at least ", FormatBytes(kLeastWrittenPerDay),
      ", as the largest chunk could else not be written in a day"));
}

absl::Status SetSsdWrites(const v1::NodeConfig& proto, Config* config) {
  const bool given = proto.ssd_written_per_day_bytes_size() > 0 ||
                     proto.ssd_endurance_bytes_size() > 0 ||
                     proto.user_ssd_written_per_day_bytes() > 0;
  if (given && config->ssd_dirs.empty()) {
    return absl::InvalidArgumentError(
        "ssd_pool: DISABLED, but ssd_written_per_day_bytes, user_ssd_written_per_day_bytes or "
        "ssd_endurance_bytes is given. Leave either out");
  }
  const size_t dirs = config->ssd_dirs.size();
  MEMTIDE_ASSIGN_OR_RETURN(
      config->ssd_written_per_day,
      ForEachDir("ssd_written_per_day_bytes", proto.ssd_written_per_day_bytes(), dirs));
  MEMTIDE_ASSIGN_OR_RETURN(config->ssd_endurance,
                           ForEachDir("ssd_endurance_bytes", proto.ssd_endurance_bytes(), dirs));
  for (const Bytes per_day : config->ssd_written_per_day) {
    MEMTIDE_RETURN_IF_ERROR(CheckBudget("ssd_written_per_day_bytes", per_day));
  }
  config->user_ssd_written_per_day = Bytes(proto.user_ssd_written_per_day_bytes());
  return CheckBudget("user_ssd_written_per_day_bytes", config->user_ssd_written_per_day);
}

absl::StatusOr<v1::Verify> ToVerify(v1::Verify verify) {
  if (verify == v1::VERIFY_UNSPECIFIED) return v1::VERIFY_KEPT;
  if (v1::Verify_IsValid(verify)) return verify;
  return absl::InvalidArgumentError(
      absl::StrCat("verify: ", verify, " is not known; known: 0 to 3"));
}

absl::StatusOr<std::string> ToMetricsAddress(const std::string& address) {
  if (address.empty() || address == "off") return std::string();
  // An IPv6 address has colons of its own; the port comes after the last one.
  const size_t colon = address.rfind(':');
  uint32_t port;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics_address: \"", address,
                     "\"; must be host:port with a port of 0 (any free one) to 65535, or \"off\""));
  }
  return address;
}

absl::StatusOr<LogLevel> ToLogLevel(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name.empty() || name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return absl::InvalidArgumentError(absl::StrCat(
      "log_level: \"", name, "\"; must be \"debug\", \"info\", \"warning\" or \"error\""));
}

absl::StatusOr<Duration> ToSessionLease(const v1::NodeConfig& proto) {
  if (!proto.has_session_lease()) return Duration(kDefaultSessionLease);
  MEMTIDE_ASSIGN_OR_RETURN(const Duration lease,
                           ToDuration("session_lease", proto.session_lease()));
  if (lease >= kLeastSessionLease) return lease;
  return absl::InvalidArgumentError(absl::StrCat("session_lease: ", proto.session_lease().nanos(),
                                                 " ns; at least ", kLeastSessionLease.count(),
                                                 " s, or slow clients are cut off"));
}

// A user or group may be removed from the machine, after which the daemon must still start.
absl::Status SetQuotas(const v1::NodeConfig& proto, const Machine& machine, Config* config) {
  if (static_cast<uint32_t>(proto.quotas_size()) > Limits().quotas) {
    return absl::InvalidArgumentError(
        absl::StrCat("quotas: ", proto.quotas_size(), "; at most ", Limits().quotas));
  }
  std::map<std::pair<Quota::Kind, uint32_t>, std::string> subjects;
  for (const v1::Quota& each : proto.quotas()) {
    absl::StatusOr<Quota> quota = ToQuota(each, machine.accounts);
    const std::string problem = absl::StrCat("quotas: ", quota.status().message());
    if (absl::IsNotFound(quota.status())) {
      config->warnings.push_back(problem + ". The quota has no effect");
      continue;
    }
    if (!quota.ok()) return absl::InvalidArgumentError(problem);
    const auto [entry, added] = subjects.emplace(std::pair(quota->kind, quota->id), quota->name);
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat("quotas: \"", entry->second, "\" and \"",
                                                     quota->name,
                                                     "\" are one subject; name it once"));
    }
    config->quotas.push_back(*std::move(quota));
  }
  return absl::OkStatus();
}

void SetAdminGroup(const v1::NodeConfig& proto, const Machine& machine, Config* config) {
  const bool is_named = !proto.admin_group().empty();
  config->admin_group =
      machine.accounts.gid_of(is_named ? proto.admin_group() : std::string(kUsualAdminGroup));
  if (!is_named || config->admin_group) return;
  config->warnings.push_back(absl::StrCat("admin_group: the machine has no group \"",
                                          proto.admin_group(),
                                          "\", so that root alone administers the node"));
}

}  // namespace

Bytes Config::DevicePools() const {
  Bytes pools;
  for (const CudaDeviceConfig& device : cuda_devices) pools += device.pool;
  return emulated_device ? emulated_device->capacity * emulated_device->count : pools;
}

absl::StatusOr<Config> Validate(const v1::NodeConfig& proto, const Machine& machine) {
  Config config;
  config.socket_dir = proto.socket_dir().empty() ? machine.socket_dir : proto.socket_dir();
  if (config.socket_dir.empty()) {
    return absl::InvalidArgumentError(
        "socket_dir: not given, and XDG_RUNTIME_DIR is not set. Name one (--socket-dir)");
  }
  // The device comes first, because an emulated one takes its memory from what the host pool may
  // have.
  MEMTIDE_RETURN_IF_ERROR(SetDevice(proto, machine, &config));
  const Bytes emulated = config.emulated_device ? config.DevicePools() : Bytes();
  MEMTIDE_ASSIGN_OR_RETURN(config.host_pool, ToHostPool(proto, emulated, machine, &config));
  // The memory of an emulated device, and what programs keep on it, is the host's only here.
  if (!config.emulated_device) config.memory_limit = Bytes(proto.memory_limit_bytes());
  MEMTIDE_ASSIGN_OR_RETURN(config.host_reserve, ToHostReserve(proto, machine, &config));
  MEMTIDE_RETURN_IF_ERROR(SetSsd(proto, machine, &config));
  MEMTIDE_RETURN_IF_ERROR(SetSsdWrites(proto, &config));
  MEMTIDE_ASSIGN_OR_RETURN(config.verify, ToVerify(proto.verify()));
  MEMTIDE_ASSIGN_OR_RETURN(config.metrics_address, ToMetricsAddress(proto.metrics_address()));
  MEMTIDE_ASSIGN_OR_RETURN(config.log_level, ToLogLevel(proto.log_level()));
  if (proto.has_lifeline_fd() && proto.lifeline_fd() >= 0) config.lifeline_fd = proto.lifeline_fd();
  MEMTIDE_ASSIGN_OR_RETURN(config.session_lease, ToSessionLease(proto));
  MEMTIDE_RETURN_IF_ERROR(SetQuotas(proto, machine, &config));
  SetAdminGroup(proto, machine, &config);
  config.settings_dir = proto.settings_dir();
  return config;
}

}  // namespace memtide
