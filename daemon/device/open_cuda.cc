#include "daemon/device/open_cuda.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/device/cuda_device.h"
#include "daemon/device/first_use/first_use.h"
#include "daemon/device/first_use/helper.h"
#include "daemon/device/gpu_owners.h"
#include "daemon/device/remote/device_server.h"
#include "daemon/device/remote/helper_process.h"
#include "daemon/device/remote/packet.h"
#include "daemon/device/remote/remote_device.h"

namespace memtide {
namespace {

std::string Describe(const CudaDeviceFacts& facts) {
  // The node is said only where there is a choice.
  const absl::optional<int> node = PlacementOf(facts, NumaTopology()).node;
  return absl::StrCat(facts.ordinal, " (", facts.name, ", ", FormatBytes(facts.memory), ", ",
                      facts.FormatUuid(), node ? absl::StrCat(", NUMA node ", *node) : "", ")");
}

// The parts of the program's processes besides those of first_use.
constexpr char kFactsFlag[] = "--gpu-facts", kUuidsFlag[] = "--gpu-uuids",
               kDeviceFlag[] = "--gpu-device";
// Making a context takes a second, and more while other processes make some.
constexpr Duration kPatience = std::chrono::seconds(60);

using Lines = std::vector<std::string>;

// The answer of a process to the one that has started it, in one packet: the code of the status,
// then the message or the lines.
int Answer(const absl::StatusOr<Lines>& lines) {
  const std::string text = absl::StrCat(
      static_cast<int>(lines.status().code()), "\n",
      lines.ok() ? absl::StrJoin(*lines, "\n") : std::string(lines.status().message()));
  return SendPacket(kHelperSocket, {text.substr(0, kMostPacketBytes), -1}).ok() ? 0 : 1;
}

// Asks another process, so that this one never has anything of the driver's: what it has would end
// with a GPU that fails.
absl::StatusOr<Lines> AskProcess(const char* flag, const std::string& argument) {
  MEMTIDE_ASSIGN_OR_RETURN(
      HelperProcess process,
      HelperProcess::Start(ThisProcess().program, {flag, argument}, kPatience));
  const absl::StatusOr<HelperPacket> received = ReceivePacket(process.socket(), kPatience);
  if (!received.ok()) {
    return absl::UnavailableError(
        absl::StrCat("a process that asks about the GPUs: ", received.status().message()));
  }
  const HelperPacket& packet = *received;
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(packet.text, absl::MaxSplits('\n', 1));
  int code = 0;
  if (packet.descriptor >= 0 || !absl::SimpleAtoi(parts.first, &code)) {
    return absl::UnavailableError("the answer of a process about the GPUs cannot be read");
  }
  if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
  return Lines(absl::StrSplit(parts.second, '\n'));
}

// As InspectGpu, in this process. The lines: uuid, description, free and total bytes, and the
// descriptions of the others.
absl::StatusOr<Lines> FactsOf(const std::string& device) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, CudaDevices());
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDeviceFacts chosen, ChooseCudaDevice(devices, device));
  MEMTIDE_RETURN_IF_ERROR(CheckComputeMode(chosen));
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  MEMTIDE_RETURN_IF_ERROR(UseGpu(chosen.ordinal));
  size_t free = 0, total = 0;
  MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver->MemGetInfo(&free, &total),
                                     absl::StrCat("cuMemGetInfo of GPU ", Describe(chosen))));
  Lines lines = {chosen.FormatUuid(), Describe(chosen), absl::StrCat(free), absl::StrCat(total)};
  for (const CudaDeviceFacts& facts : devices) {
    if (facts.ordinal != chosen.ordinal) lines.push_back(Describe(facts));
  }
  return lines;
}

absl::StatusOr<Lines> Uuids() {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, CudaDevices());
  Lines uuids;
  for (const CudaDeviceFacts& facts : devices) uuids.push_back(facts.FormatUuid());
  return uuids;
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
  MEMTIDE_ASSIGN_OR_RETURN(const Lines lines, AskProcess(kFactsFlag, device));
  uint64_t free = 0, total = 0;
  if (lines.size() < 4 || !absl::SimpleAtoi(lines[2], &free) ||
      !absl::SimpleAtoi(lines[3], &total)) {
    return absl::UnavailableError("the answer of a process about the GPUs cannot be read");
  }
  return Gpu{lines[0], lines[1], Bytes(free), Bytes(total), Lines(lines.begin() + 4, lines.end())};
}

absl::StatusOr<std::vector<std::string>> GpuUuids() { return AskProcess(kUuidsFlag, "all"); }

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

absl::optional<int> RunGpuProcess(const std::string& flag, const std::string& argument) {
  // CUDA enumerates one MIG instance to a process: the first, unless the variable names another.
  // Nothing has called CUDA yet, and no other thread runs.
  const bool opens = flag == kFactsFlag || flag == kDeviceFlag;
  if (opens && absl::StartsWith(argument, "MIG-")) {
    setenv("CUDA_VISIBLE_DEVICES", argument.c_str(), 1);
  }
  if (flag == kFactsFlag) return Answer(FactsOf(argument));
  if (flag == kUuidsFlag) return Answer(Uuids());
  if (flag == kDeviceFlag) {
    ServeDevice([&argument](const DeviceReports& reports) {
      CudaDeviceOptions options;
      options.device = argument;
      options.warn = reports.warn;
      options.lost = reports.lost;
      return OpenOne(options);
    });
  }
  int ordinal = 0;
  if (!absl::SimpleAtoi(argument, &ordinal)) return absl::nullopt;
  if (flag == kAskerFlag) return RunGpuAsker(ordinal);
  if (flag == kHelperFlag) return RunGpuHelper(ordinal);
  return absl::nullopt;
}

absl::StatusOr<std::unique_ptr<Device>> OpenCuda(
    const std::string& device, std::function<void(const std::string& line)> warn) {
  RemoteDeviceOptions options;
  options.process.program = ThisProcess().program;
  options.process.arguments = {kDeviceFlag, device};
  options.process.warn = std::move(warn);
  MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<RemoteDevice> opened, RemoteDevice::Open(options));
  return std::unique_ptr<Device>(std::move(opened));
}

}  // namespace memtide
