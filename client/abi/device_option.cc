#include "client/abi/device_option.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "client/cuda/cuda_space.h"

namespace memtide::client {
namespace {

constexpr size_t kUuidDigits = 32;

bool IsHex(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
}

}  // namespace

absl::Status SetDevice(const std::string& device, v1::OpenRequest* request) {
  if (device.empty()) return absl::OkStatus();
  uint32_t number = 0;
  if (absl::SimpleAtoi(device, &number)) {
    request->set_device_number(number);
    return absl::OkStatus();
  }
  if (absl::StartsWith(device, "cuda:") && absl::SimpleAtoi(device.substr(5), &number)) {
    MEMTIDE_ASSIGN_OR_RETURN(*request->mutable_cuda_device_uuid(), CudaDeviceUuid(number));
    return absl::OkStatus();
  }
  if (absl::StartsWith(device, "GPU-") || absl::StartsWith(device, "MIG-")) {
    const std::string digits = absl::StrReplaceAll(device.substr(4), {{"-", ""}});
    if (digits.size() == kUuidDigits && IsHex(digits)) {
      request->set_cuda_device_uuid(absl::HexStringToBytes(digits));
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "device: \"", device, "\"; must be a number such as \"1\", \"cuda:1\", or a whole uuid, ",
      "\"GPU-...\" or \"MIG-...\" (see nvidia-smi -L)"));
}

}  // namespace memtide::client
