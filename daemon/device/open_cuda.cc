#include "daemon/device/open_cuda.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/device/cuda_device.h"
#include "daemon/device/first_use/first_use.h"
#include "daemon/device/first_use/helper.h"
#include "daemon/device/gpu_owners.h"

namespace memtide {
namespace {

std::string Describe(const CudaDeviceFacts& facts) {
  // The node is said only where there is a choice.
  const absl::optional<int> node = PlacementOf(facts, NumaTopology()).node;
  return absl::StrCat(facts.ordinal, " (", facts.name, ", ", FormatBytes(facts.memory), ", ",
                      facts.FormatUuid(), node ? absl::StrCat(", NUMA node ", *node) : "", ")");
}

absl::StatusOr<std::unique_ptr<Device>> OpenOne(CudaDeviceOptions options) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, CudaDevices());
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDeviceFacts facts, ChooseCudaDevice(devices, options.device));
  MEMTIDE_RETURN_IF_ERROR(CheckComputeMode(facts));
  const absl::StatusOr<v1::GpuAnswers> answers = MeetGpu(facts, ThisProcess());
  if (answers.ok()) {
    options.descriptors = answers->descriptors();
    options.legacy_ipc = answers->legacy_ipc();
    options.maps_under_work = answers->maps_under_work();
    for (const std::string& line : Fallbacks(facts, *answers)) {
      options.warn(absl::StrCat("GPU ", Describe(facts), ": ", line));
    }
  } else {
    // A GPU at which a question hangs is used with care.
    options.maps_under_work = !absl::IsDeadlineExceeded(answers.status());
    options.warn(absl::StrCat("GPU ", Describe(facts),
                              " was not asked what it can do: ", answers.status().message()));
  }
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> opened, CudaDevice::Open(options));
  return std::unique_ptr<Device>(std::move(opened));
}

}  // namespace

std::string CudaOfThisBuild() { return "CUDA"; }

absl::StatusOr<Gpu> InspectGpu(const std::string& device) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, CudaDevices());
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDeviceFacts chosen, ChooseCudaDevice(devices, device));
  Gpu gpu;
  gpu.uuid = chosen.FormatUuid();
  gpu.description = Describe(chosen);
  for (const CudaDeviceFacts& facts : devices) {
    if (facts.ordinal != chosen.ordinal) gpu.others.push_back(Describe(facts));
  }
  MEMTIDE_RETURN_IF_ERROR(CheckComputeMode(chosen));
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  MEMTIDE_RETURN_IF_ERROR(UseGpu(chosen.ordinal));
  size_t free = 0, total = 0;
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver->MemGetInfo(&free, &total),
                                     absl::StrCat("cuMemGetInfo of GPU ", gpu.description)));
  gpu.free = Bytes(free);
  gpu.total = Bytes(total);
  return gpu;
}

absl::StatusOr<std::vector<std::string>> GpuUuids() {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, CudaDevices());
  std::vector<std::string> uuids;
  for (const CudaDeviceFacts& facts : devices) uuids.push_back(facts.FormatUuid());
  return uuids;
}

absl::StatusOr<std::vector<std::string>> ListGpus() {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, CudaDevices());
  std::vector<std::string> descriptions;
  for (const CudaDeviceFacts& facts : devices) {
    const absl::Status usable = CheckComputeMode(facts);
    descriptions.push_back(usable.ok()
                               ? Describe(facts)
                               : absl::StrCat(Describe(facts), ", not usable: ", usable.message()));
    const GpuOwners found = FindGpuOwners(facts.FormatUuid());
    for (const v1::GpuOwner& owner : found.owners) {
      descriptions.push_back(absl::StrCat("  ", Describe(owner)));
    }
    for (const std::string& problem : found.problems) {
      descriptions.push_back(absl::StrCat("  ", problem));
    }
  }
  return descriptions;
}

absl::StatusOr<std::vector<std::string>> AskGpus() {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, CudaDevices());
  std::vector<std::string> lines;
  for (const CudaDeviceFacts& facts : devices) {
    if (!CheckComputeMode(facts).ok()) continue;
    MEMTIDE_ASSIGN_OR_RETURN(const v1::GpuAnswers answers, MeetGpu(facts, ThisProcess()));
    lines.push_back(absl::StrCat(facts.ordinal, ": ", memtide::Describe(answers)));
    for (const std::string& line : Fallbacks(facts, answers)) {
      lines.push_back(absl::StrCat("  ", line));
    }
  }
  return lines;
}

absl::optional<int> RunPartOfAsking(const std::string& flag, const std::string& ordinal) {
  int number = 0;
  if (!absl::SimpleAtoi(ordinal, &number)) return absl::nullopt;
  if (flag == kAskerFlag) return RunGpuAsker(number);
  if (flag == kHelperFlag) return RunGpuHelper(number);
  return absl::nullopt;
}

std::vector<absl::StatusOr<std::unique_ptr<Device>>> OpenCuda(
    const std::vector<std::string>& devices, std::function<void(const std::string& line)> warn) {
  CudaDeviceOptions options;
  options.warn = std::move(warn);
  const absl::StatusOr<const CudaDriver*> driver = LoadCudaDriver();
  if (driver.ok()) options.host_memory = std::make_shared<CudaHostMemory>(*driver);
  std::vector<absl::StatusOr<std::unique_ptr<Device>>> opened;
  for (const std::string& device : devices) {
    options.device = device;
    opened.push_back(OpenOne(options));
  }
  return opened;
}

}  // namespace memtide
