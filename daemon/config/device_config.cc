#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "daemon/config/validate.h"

namespace memtide {
namespace {

// Six tenths of a GPU's free memory. Programs need the rest for activations and workspaces.
Bytes DefaultGpuPool(Bytes free) { return Bytes(free.count() / 10 * 6); }

// Several emulated devices are for tests; the daemon has a few threads for each.
constexpr uint32_t kMostEmulated = 16;

enum class Wish { kAuto, kNone, kEmulated, kCuda };

struct Device {
  Wish wish = Wish::kAuto;
  uint32_t emulated = 1;          // How many devices are emulated.
  std::vector<std::string> gpus;  // Arguments of Machine::inspect_gpu. Empty: all GPUs.
};

absl::Status Unknown(const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "device: \"", text, "\"; must be \"auto\", \"none\", \"emulated\", \"emulated:2\" (at most ",
      kMostEmulated,
      "), \"cuda\", or GPUs, separated by commas: \"cuda:1\" (an ordinal), \"GPU-...\" or "
      "\"MIG-...\" (a uuid, see nvidia-smi -L)"));
}

// "cuda:1", "GPU-..." or "MIG-...", as Machine::inspect_gpu has it. nullopt: none of these.
absl::optional<std::string> ToGpu(const std::string& text) {
  if (absl::StartsWith(text, "GPU-") || absl::StartsWith(text, "MIG-")) return text;
  uint32_t ordinal;
  if (absl::StartsWith(text, "cuda:") && absl::SimpleAtoi(text.substr(5), &ordinal)) {
    return absl::StrCat(ordinal);
  }
  return absl::nullopt;
}

absl::StatusOr<Device> ToDevice(const std::string& text) {
  Device device;
  if (text.empty() || text == "auto") return device;
  device.wish = Wish::kNone;
  if (text == "none") return device;
  device.wish = Wish::kEmulated;
  if (text == "emulated") return device;
  if (absl::StartsWith(text, "emulated:")) {
    const bool is_number = absl::SimpleAtoi(text.substr(9), &device.emulated);
    if (!is_number || device.emulated == 0 || device.emulated > kMostEmulated) return Unknown(text);
    return device;
  }
  device.wish = Wish::kCuda;
  if (text == "cuda") return device;
  for (const absl::string_view each : absl::StrSplit(text, ',')) {
    absl::optional<std::string> gpu = ToGpu(std::string(each));
    if (!gpu.has_value()) return Unknown(text);
    device.gpus.push_back(*std::move(gpu));
  }
  return device;
}

// The size must be given: an emulated device is host memory, of which no part is an obvious
// default.
absl::Status SetEmulated(const v1::NodeConfig& proto, uint32_t count, Config* config) {
  if (proto.device_pool_bytes() == 0) {
    return absl::InvalidArgumentError(
        "device_pool_bytes: not given, and an emulated device has no default. Give its size "
        "(--device-pool)");
  }
  EmulatedDeviceConfig device;
  device.count = count;
  MEMTIDE_ASSIGN_OR_RETURN(device.capacity,
                           RoundPool("device_pool_bytes", Bytes(proto.device_pool_bytes())));
  // The sum of all is compared with the memory of the machine.
  if (device.capacity > Bytes(~uint64_t{0} / kMostEmulated)) {
    return absl::FailedPreconditionError(
        absl::StrCat("device_pool_bytes: ", FormatBytes(device.capacity),
                     " of an emulated device, which no machine has. Ask for less (--device-pool)"));
  }
  device.bytes_per_second = Bytes(proto.emulated_link().bytes_per_second());
  MEMTIDE_ASSIGN_OR_RETURN(device.latency,
                           ToDuration("emulated_link.latency", proto.emulated_link().latency()));
  config->emulated_device = device;
  return absl::OkStatus();
}

absl::Status AddCuda(const v1::NodeConfig& proto, const Machine& machine, const Gpu& gpu,
                     Config* config) {
  for (const CudaDeviceConfig& other : config->cuda_devices) {
    if (other.uuid != gpu.uuid) continue;
    return absl::InvalidArgumentError(absl::StrCat("device: \"", proto.device(), "\" names GPU ",
                                                   gpu.description, " twice; each may come once"));
  }
  const std::vector<Bytes>& jobs = machine.persisted.device_pools;
  const size_t number = config->cuda_devices.size();
  const Bytes persisted = number < jobs.size() ? jobs[number] : Bytes();
  Bytes requested = proto.device_pool_bytes() == 0
                        ? std::max(DefaultGpuPool(gpu.free), RoomFor(persisted))
                        : Bytes(proto.device_pool_bytes());
  if (requested > gpu.free) {
    const absl::Status refusal = absl::FailedPreconditionError(absl::StrCat(
        "device_pool_bytes: ", FormatBytes(requested), ", but only ", FormatBytes(gpu.free), " of ",
        FormatBytes(gpu.total), " are free on GPU ", gpu.description,
        ". Ask for less (--device-pool), or end what uses it (nvidia-smi)"));
    // Clients that outlived the last daemon may still map the missing memory, and return it when
    // they end.
    MEMTIDE_ASSIGN_OR_RETURN(requested, LessOrRefuse(refusal, std::min(requested, gpu.total),
                                                     persisted, machine, config));
  }
  CudaDeviceConfig device;
  MEMTIDE_ASSIGN_OR_RETURN(device.pool, RoundPool("device_pool_bytes", requested));
  device.uuid = gpu.uuid;
  config->cuda_devices.push_back(std::move(device));
  return absl::OkStatus();
}

// Takes the GPUs that the settings name. Each of them is required.
absl::Status SetNamed(const v1::NodeConfig& proto, const std::vector<std::string>& names,
                      const Machine& machine, Config* config) {
  config->cuda_devices_are_named = true;
  std::vector<std::string> chosen;
  for (const std::string& name : names) {
    const absl::StatusOr<Gpu> gpu = machine.inspect_gpu(name);
    if (!gpu.ok()) {
      return absl::UnavailableError(
          absl::StrCat("device: \"", proto.device(), "\", but ", gpu.status().message()));
    }
    MEMTIDE_RETURN_IF_ERROR(AddCuda(proto, machine, *gpu, config));
    chosen.push_back(gpu->description);
    config->other_gpus = gpu->others;
  }
  // other_gpus has all GPUs but the last chosen one, so the chosen ones before it go.
  std::vector<std::string>& others = config->other_gpus;
  others.erase(std::remove_if(others.begin(), others.end(),
                              [&chosen](const std::string& other) {
                                return std::count(chosen.begin(), chosen.end(), other) > 0;
                              }),
               others.end());
  return absl::OkStatus();
}

absl::Status AddAll(const v1::NodeConfig& proto, const Machine& machine,
                    const std::vector<Gpu>& gpus, Config* config) {
  for (const Gpu& gpu : gpus) MEMTIDE_RETURN_IF_ERROR(AddCuda(proto, machine, gpu, config));
  return absl::OkStatus();
}

// Every GPU that works, with a warning for each that does not. If none works, the error of the
// first.
absl::StatusOr<std::vector<Gpu>> UsableGpus(const Machine& machine, Config* config) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<std::string> uuids, machine.gpu_uuids());
  absl::Status first = absl::NotFoundError("there is no GPU");
  std::vector<Gpu> gpus;
  std::vector<std::string> warnings;
  for (const std::string& uuid : uuids) {
    absl::StatusOr<Gpu> gpu = machine.inspect_gpu(uuid);
    if (gpu.ok() && DefaultGpuPool(gpu->free) < kPoolAlignment) {
      gpu = absl::UnavailableError(
          absl::StrCat("only ", FormatBytes(gpu->free), " of ", FormatBytes(gpu->total),
                       " are free on GPU ", gpu->description, "; end what uses it (nvidia-smi)"));
    }
    if (gpu.ok()) {
      gpus.push_back(*std::move(gpu));
      continue;
    }
    if (warnings.empty()) first = gpu.status();
    warnings.push_back(absl::StrCat("a GPU is not used: ", gpu.status().message()));
  }
  if (gpus.empty()) return first;
  config->warnings.insert(config->warnings.end(), warnings.begin(), warnings.end());
  return gpus;
}

// Takes the GPUs if there are any and no emulated link is configured. Otherwise a device is
// emulated only if the settings give it a size.
absl::Status SetAuto(const v1::NodeConfig& proto, const Machine& machine, Config* config) {
  if (proto.has_emulated_link()) return SetEmulated(proto, 1, config);
  const absl::StatusOr<std::vector<Gpu>> gpus = UsableGpus(machine, config);
  if (gpus.ok()) return AddAll(proto, machine, *gpus, config);
  const bool emulated = proto.device_pool_bytes() != 0;
  // NOT_FOUND: there is no GPU to use. All other errors are about one that should work.
  if (!absl::IsNotFound(gpus.status())) {
    config->warnings.push_back(absl::StrCat(
        "the GPU is not used, ", emulated ? "a device is emulated" : "there is no device",
        " instead: ", gpus.status().message()));
  }
  return emulated ? SetEmulated(proto, 1, config) : absl::OkStatus();
}

}  // namespace

absl::Status SetDevice(const v1::NodeConfig& proto, const Machine& machine, Config* config) {
  MEMTIDE_ASSIGN_OR_RETURN(const Device device, ToDevice(proto.device()));
  if (device.wish == Wish::kAuto) return SetAuto(proto, machine, config);
  if (device.wish == Wish::kEmulated) return SetEmulated(proto, device.emulated, config);
  // A GPU or no device is wanted, so that a setting of an emulated link is a mistake.
  if (proto.has_emulated_link()) {
    return absl::InvalidArgumentError(absl::StrCat("emulated_link: given, but device is \"",
                                                   proto.device(), "\". Leave either out"));
  }
  if (device.wish == Wish::kNone) {
    if (proto.device_pool_bytes() == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "device: \"none\", but device_pool_bytes is given. Leave either out");
  }
  if (!device.gpus.empty()) return SetNamed(proto, device.gpus, machine, config);
  const absl::StatusOr<std::vector<Gpu>> gpus = UsableGpus(machine, config);
  if (gpus.ok()) return AddAll(proto, machine, *gpus, config);
  // A GPU is required: the daemon does not start without one.
  return absl::UnavailableError(
      absl::StrCat("device: \"", proto.device(), "\", but ", gpus.status().message()));
}

}  // namespace memtide
