#include "daemon/opened_devices.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "daemon/device/emulated_device.h"
#include "daemon/device/open_cuda.h"

namespace memtide {
namespace {

std::vector<OpenedDevice> OpenEmulated(const EmulatedDeviceConfig& config) {
  EmulatedDeviceOptions options;
  options.capacity = config.capacity;
  options.bytes_per_second = config.bytes_per_second;
  options.latency = config.latency;
  std::vector<OpenedDevice> devices(config.count);
  for (OpenedDevice& opened : devices) {
    opened.device = std::make_unique<EmulatedDevice>(options);
    opened.pool = config.capacity;
  }
  return devices;
}

// Opens GPUs one after the other, and remembers what failed.
class GpuOpener {
 public:
  GpuOpener(const Config& config, const std::string& socket_dir, std::vector<std::string>* warnings)
      : config_(config), socket_dir_(socket_dir), warnings_(warnings) {}

  absl::StatusOr<std::vector<OpenedDevice>> Open() {
    std::vector<OpenedDevice> devices;
    for (const CudaDeviceConfig& gpu : config_.cuda_devices) {
      absl::StatusOr<OpenedDevice> opened = OpenOne(gpu);
      if (opened.ok()) {
        devices.push_back(*std::move(opened));
      } else {
        Failed(opened.status());
      }
    }
    if (!failure_.ok() && (devices.empty() || config_.cuda_devices_are_named)) return failure_;
    return devices;
  }

 private:
  absl::StatusOr<OpenedDevice> OpenOne(const CudaDeviceConfig& gpu) {
    // Before the GPU is asked what it can do, which would disturb another daemon's.
    MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<GpuOwnership> ownership, Own(gpu));
    MEMTIDE_ASSIGN_OR_RETURN(
        std::unique_ptr<Device> device,
        OpenCuda(gpu.uuid, [](const std::string& line) { spdlog::warn("{}", line); }));
    return OpenedDevice{std::move(ownership), std::move(device), gpu.pool, gpu.uuid};
  }
  absl::StatusOr<std::unique_ptr<GpuOwnership>> Own(const CudaDeviceConfig& gpu) {
    v1::GpuOwner owner;
    owner.set_pid(getpid());
    owner.set_service(!config_.lifeline_fd.has_value());
    owner.set_socket_dir(socket_dir_);
    owner.set_pool_bytes(gpu.pool.count());
    std::vector<std::string> notes;
    MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<GpuOwnership> ownership,
                             GpuOwnership::Take(gpu.uuid, owner, &notes));
    for (std::string& note : notes) Warn(std::move(note));
    return ownership;
  }
  void Failed(const absl::Status& status) {
    failure_.Update(status);
    // The only GPU's failure ends the daemon, which says so.
    if (config_.cuda_devices.size() > 1) {
      Warn(absl::StrCat("a GPU is not used: ", status.message()));
    }
  }
  void Warn(std::string line) {
    spdlog::warn("{}", line);
    warnings_->push_back(std::move(line));
  }

  const Config& config_;
  const std::string socket_dir_;
  std::vector<std::string>* const warnings_;
  absl::Status failure_;  // The first.
};

void LogDevices(const Config& config, const std::vector<OpenedDevice>& devices) {
  for (size_t i = 0; i < devices.size(); ++i) {
    const Device& device = *devices[i].device;
    spdlog::info("device/{} pool: {} of {}", i, FormatBytes(devices[i].pool), device.Describe());
    if (devices[i].uuid.empty() || device.kinds().front() == MemoryKind::kCudaDescriptor) continue;
    spdlog::info("the driver cannot export memory by descriptor; memtided uses legacy CUDA IPC");
  }
  for (const std::string& other : config.other_gpus) {
    spdlog::info("GPU {} is not used; --device selects it", other);
  }
}

}  // namespace

std::string OpenedDevice::UuidBytes() const {
  const std::string hex = absl::StrReplaceAll(uuid, {{"GPU-", ""}, {"MIG-", ""}, {"-", ""}});
  return absl::HexStringToBytes(hex);
}

absl::StatusOr<std::vector<OpenedDevice>> OpenDevices(const Config& config,
                                                      const std::string& socket_dir,
                                                      std::vector<std::string>* warnings) {
  std::vector<OpenedDevice> devices;
  if (config.emulated_device) devices = OpenEmulated(*config.emulated_device);
  if (!config.cuda_devices.empty()) {
    MEMTIDE_ASSIGN_OR_RETURN(devices, GpuOpener(config, socket_dir, warnings).Open());
  }
  LogDevices(config, devices);
  if (!devices.empty() && CommonKinds(devices).empty()) {
    return absl::FailedPreconditionError(
        "the GPUs have no way in common to pass memory to other processes. Choose some that have "
        "one (--device; memtided --ask-gpus shows what each does)");
  }
  return devices;
}

std::vector<MemoryKind> CommonKinds(const std::vector<OpenedDevice>& devices) {
  std::vector<MemoryKind> common = devices.front().device->kinds();
  for (const OpenedDevice& each : devices) {
    const std::vector<MemoryKind> kinds = each.device->kinds();
    const auto is_missing = [&kinds](MemoryKind kind) {
      return std::count(kinds.begin(), kinds.end(), kind) == 0;
    };
    common.erase(std::remove_if(common.begin(), common.end(), is_missing), common.end());
  }
  return common;
}

HostMemoryUse HostMemoryOf(const std::vector<OpenedDevice>& devices) {
  HostMemoryUse use;
  std::map<uint32_t, int> nodes;
  size_t working = 0;
  for (uint32_t number = 0; number < devices.size(); ++number) {
    const Device& device = *devices[number].device;
    const HostMemoryUse of_device = device.host_memory();
    use.staging += of_device.staging;
    // A lost device has none.
    if (!device.health().state.ok()) continue;
    // Each device pins all of the same memory, as far as it can.
    use.pinned = working == 0 ? of_device.pinned : std::min(use.pinned, of_device.pinned);
    use.unpinned = std::max(use.unpinned, of_device.unpinned);
    use.coherent = of_device.coherent;
    use.numa_node = of_device.numa_node;
    if (of_device.numa_node) nodes[number] = *of_device.numa_node;
    ++working;
  }
  const bool on_one = nodes.size() == working &&
                      std::all_of(nodes.begin(), nodes.end(), [&nodes](const auto& each) {
                        return each.second == nodes.begin()->second;
                      });
  if (!on_one) {
    use.numa_node.reset();
    use.numa_node_by_device = std::move(nodes);
  }
  return use;
}

}  // namespace memtide
