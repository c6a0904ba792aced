#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/config/validate.h"

namespace memtide {
namespace {

// Six tenths of a GPU's free memory. Programs need the rest for activations and workspaces.
Bytes DefaultGpuPool(Bytes free) { return Bytes(free.count() / 10 * 6); }

enum class Wish { kAuto, kNone, kEmulated, kCuda };

struct Device {
  Wish wish = Wish::kAuto;
  std::string gpu;  // The argument of Machine::inspect_gpu.
};

absl::StatusOr<Device> ToDevice(const std::string& text) {
  if (text.empty() || text == "auto") return Device{Wish::kAuto, ""};
  if (text == "none") return Device{Wish::kNone, ""};
  if (text == "emulated") return Device{Wish::kEmulated, ""};
  if (text == "cuda") return Device{Wish::kCuda, ""};
  if (absl::StartsWith(text, "GPU-") || absl::StartsWith(text, "MIG-")) {
    return Device{Wish::kCuda, text};
  }
  uint32_t ordinal;
  if (absl::StartsWith(text, "cuda:") && absl::SimpleAtoi(text.substr(5), &ordinal)) {
    return Device{Wish::kCuda, absl::StrCat(ordinal)};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "device: \"", text,
      "\"; must be \"auto\", \"none\", \"emulated\", \"cuda\", \"cuda:1\" (an ordinal) "
      "or \"GPU-...\" or \"MIG-...\" (a uuid, see nvidia-smi -L)"));
}

// The size must be given: an emulated device is host memory, of which no part is an obvious
// default.
absl::Status SetEmulated(const v1::NodeConfig& proto, Config* config) {
  if (proto.device_pool_bytes() == 0) {
    return absl::InvalidArgumentError(
        "device_pool_bytes: not given, and an emulated device has no default. Give its size "
        "(--device-pool)");
  }
  EmulatedDeviceConfig device;
  MEMTIDE_ASSIGN_OR_RETURN(device.capacity,
                           RoundPool("device_pool_bytes", Bytes(proto.device_pool_bytes())));
  device.bytes_per_second = Bytes(proto.emulated_link().bytes_per_second());
  MEMTIDE_ASSIGN_OR_RETURN(device.latency,
                           ToDuration("emulated_link.latency", proto.emulated_link().latency()));
  config->emulated_device = device;
  return absl::OkStatus();
}

absl::Status SetCuda(const v1::NodeConfig& proto, const Machine& machine, const Gpu& gpu,
                     Config* config) {
  const Bytes persisted = machine.persisted.device_pool;
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
  device.others = gpu.others;
  config->cuda_device = std::move(device);
  return absl::OkStatus();
}

// Takes a GPU if there is one and no emulated link is configured. Otherwise a device is emulated
// only if the settings give it a size.
absl::Status SetAuto(const v1::NodeConfig& proto, const Machine& machine, Config* config) {
  if (proto.has_emulated_link()) return SetEmulated(proto, config);
  const absl::StatusOr<Gpu> gpu = machine.inspect_gpu("");
  if (gpu.ok()) return SetCuda(proto, machine, *gpu, config);
  const bool emulated = proto.device_pool_bytes() != 0;
  // NOT_FOUND: there is no GPU to use. All other errors are about one that should work.
  if (!absl::IsNotFound(gpu.status())) {
    config->warnings.push_back(absl::StrCat(
        "the GPU is not used, ", emulated ? "a device is emulated" : "there is no device",
        " instead: ", gpu.status().message()));
  }
  return emulated ? SetEmulated(proto, config) : absl::OkStatus();
}

}  // namespace

absl::Status SetDevice(const v1::NodeConfig& proto, const Machine& machine, Config* config) {
  MEMTIDE_ASSIGN_OR_RETURN(const Device device, ToDevice(proto.device()));
  if (device.wish == Wish::kAuto) return SetAuto(proto, machine, config);
  if (device.wish == Wish::kEmulated) return SetEmulated(proto, config);
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
  const absl::StatusOr<Gpu> gpu = machine.inspect_gpu(device.gpu);
  if (gpu.ok()) return SetCuda(proto, machine, *gpu, config);
  // A GPU that the settings name is required: the daemon does not start without it.
  return absl::UnavailableError(
      absl::StrCat("device: \"", proto.device(), "\", but ", gpu.status().message()));
}

}  // namespace memtide
