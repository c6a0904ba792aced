#include "base/cuda/fake/settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace memtide::fake_cuda {
namespace {

using Pair = std::pair<std::string, std::string>;

constexpr absl::string_view kCostPrefix = "cost_us:";

std::vector<Pair> Pairs(const char* text) {
  std::vector<Pair> pairs;
  if (text == nullptr) return pairs;
  for (const auto part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    pairs.push_back(absl::StrSplit(part, absl::MaxSplits('=', 1)));
  }
  return pairs;
}

Bytes Size(const std::string& text) {
  const absl::StatusOr<Bytes> size = ParseBytes(text);
  MEMTIDE_CHECK(size.ok()) << size.status();
  return *size;
}

uint64_t Number(const std::string& name, const std::string& text) {
  uint64_t number = 0;
  MEMTIDE_CHECK(absl::SimpleAtoi(text, &number)) << name << "=" << text;
  return number;
}

Driver DriverNamed(const std::string& name) {
  if (name == "no-context-events") return Driver::kNoContextEvents;
  if (name == "too-old") return Driver::kTooOld;
  if (name == "none") return Driver::kNone;
  if (name == "no-uvm") return Driver::kNoUvm;
  MEMTIDE_CHECK(name == "usable") << "driver=" << name;
  return Driver::kUsable;
}

CUcomputemode ModeNamed(const std::string& name) {
  if (name == "exclusive") return CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
  if (name == "prohibited") return CU_COMPUTEMODE_PROHIBITED;
  MEMTIDE_CHECK(name == "default") << "compute_mode=" << name;
  return CU_COMPUTEMODE_DEFAULT;
}

Tensors TensorsNamed(const std::string& name) {
  if (name == "backend") return Tensors::kOnBackend;
  MEMTIDE_CHECK(name == "cpu") << "tensors=" << name;
  return Tensors::kOnCpu;
}

// FNV-1a, but zero for an empty text. All processes must agree on it.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = text.empty() ? 0 : 14695981039346656037u;
  for (const char each : text) hash = (hash ^ static_cast<unsigned char>(each)) * 1099511628211u;
  return hash;
}

}  // namespace

Settings ReadSettings(const char* text) {
  Settings settings;
  for (const auto& [name, value] : Pairs(text)) {
    if (name == "dir") {
      settings.directory = value;
    } else if (name == "memory") {
      settings.memory = Size(value);
    } else if (name == "devices") {
      settings.devices = static_cast<int>(Number(name, value));
    } else if (name == "name") {
      settings.name = value;
    } else if (name == "driver") {
      settings.driver = DriverNamed(value);
    } else if (name == "descriptors") {
      settings.descriptors = value != "no";
    } else if (name == "mends") {
      settings.mends = value != "no";
    } else if (name == "legacy_ipc") {
      settings.legacy_ipc = value != "no";
    } else if (name == "compute_mode") {
      settings.compute_mode = ModeNamed(value);
    } else if (name == "mps") {
      settings.mps = value != "no";
    } else if (name == "mig") {
      settings.mig = value != "no";
    } else if (name == "coherent") {
      settings.coherent = value != "no";
    } else if (name == "import") {
      settings.import = value != "no";
    } else if (name == "open_ipc") {
      settings.open_ipc = value != "no";
    } else if (name == "maps_under_work") {
      settings.maps_under_work = value != "no";
    } else if (name == "time_slices") {
      settings.time_slices = value != "no";
    } else if (name == "card") {
      settings.card = value;
    } else if (name == "dilation") {
      settings.dilation = Number(name, value);
    } else if (name == "tensors") {
      settings.tensors = TensorsNamed(value);
    } else if (name == "pinned") {
      settings.pinned = Size(value);
    } else if (name == "pinned_mb_s") {
      settings.pinned_rate = Bytes(Number(name, value) * 1'000'000);
    } else if (name == "pageable_mb_s") {
      settings.pageable_rate = Bytes(Number(name, value) * 1'000'000);
    } else if (name == "numa_node") {
      settings.numa_node = static_cast<int>(Number(name, value));
    } else if (name == "pci") {
      settings.pci = value;
    } else if (name == "delay_us") {
      settings.delay = std::chrono::microseconds(Number(name, value));
    } else if (absl::StartsWith(name, kCostPrefix)) {
      settings.costs[name.substr(kCostPrefix.size())] =
          std::chrono::microseconds(Number(name, value));
    } else {
      MEMTIDE_CHECK(false) << "MEMTIDE_FAKE_CUDA: " << name;
    }
  }
  return settings;
}

std::vector<Fault> ReadFaults(const char* text) {
  std::vector<Fault> faults;
  for (const auto& [where, code] : Pairs(text)) {
    const Pair call = absl::StrSplit(where, absl::MaxSplits(':', 1));
    faults.push_back(
        {call.first, Number(where, call.second), static_cast<CUresult>(Number(where, code))});
  }
  return faults;
}

std::vector<int> VisibleDevices(const char* text, const Settings& settings) {
  std::vector<int> visible;
  // CUDA enumerates one MIG instance to a process, whatever it may use.
  const size_t most = settings.mig ? 1 : settings.devices;
  for (int device = 0; text == nullptr && visible.size() < most; ++device) {
    visible.push_back(device);
  }
  if (text == nullptr) return visible;
  for (const auto part : absl::StrSplit(text, ',')) {
    int device = -1;
    if (absl::StartsWith(part, "GPU-") || absl::StartsWith(part, "MIG-")) {
      for (int each = 0; each < settings.devices; ++each) {
        const std::string uuid = FormatCudaUuid(UuidOf(settings, each));
        if (absl::StartsWith(uuid.substr(4), part.substr(4))) device = each;
      }
    } else if (!absl::SimpleAtoi(part, &device)) {
      device = -1;
    }
    const bool seen = std::find(visible.begin(), visible.end(), device) != visible.end();
    if (device < 0 || device >= settings.devices || seen || visible.size() == most) break;
    visible.push_back(device);
  }
  return visible;
}

CudaUuid UuidOf(const Settings& settings, int device) {
  CudaUuid uuid = {'f', 'a', 'k', 'e', '-', 'c', 'u', 'd', 'a', '-', 'd', 'e', 'v', 'i', 'c', 0};
  // The first half is the same for all, so that tests can name a device by its beginning.
  uint64_t hash = HashOf(settings.directory);
  for (size_t i = 8; i < 15; ++i, hash >>= 8) uuid[i] = static_cast<char>(uuid[i] ^ (hash & 0xff));
  uuid[0] = static_cast<char>(0xfa + device);
  uuid[15] = static_cast<char>(device);
  return uuid;
}

}  // namespace memtide::fake_cuda
