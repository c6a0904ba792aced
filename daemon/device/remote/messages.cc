#include "daemon/device/remote/messages.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace memtide {
namespace {

constexpr size_t kMostKinds = 3;
constexpr uint8_t kNoKind = 0xFF;

// The messages without their texts, as they are sent.
struct WireHostMemory {
  uint64_t pinned, unpinned, staging, coherent;
  int64_t numa_node;  // Negative: none.
};
struct WireRequest {
  uint32_t call, kind;
  uint64_t memory, host, offset, host_offset, size;
};
struct WireAnswer {
  uint32_t code, is_handle;
  WireHostMemory host_memory;
};
struct WireNotice {
  uint32_t what, code, copies_in_flight, maps_under_work;
  uint8_t kinds[kMostKinds + 1];
  uint8_t unused[4];
  WireHostMemory host_memory;
};
static_assert(std::is_trivially_copyable_v<WireRequest> && sizeof(WireRequest) == 48);
static_assert(std::is_trivially_copyable_v<WireAnswer> && sizeof(WireAnswer) == 48);
static_assert(std::is_trivially_copyable_v<WireNotice> && sizeof(WireNotice) == 64);

WireHostMemory ToWire(const HostMemoryUse& use) {
  return {use.pinned.count(), use.unpinned.count(), use.staging.count(), use.coherent,
          use.numa_node.value_or(-1)};
}

HostMemoryUse FromWire(const WireHostMemory& wire) {
  HostMemoryUse use;
  use.pinned = Bytes(wire.pinned);
  use.unpinned = Bytes(wire.unpinned);
  use.staging = Bytes(wire.staging);
  use.coherent = wire.coherent != 0;
  if (wire.numa_node >= 0) use.numa_node = static_cast<int>(wire.numa_node);
  return use;
}

template <typename Wire>
HelperPacket Pack(const Wire& wire, absl::string_view text, int descriptor) {
  HelperPacket packet;
  packet.text.assign(reinterpret_cast<const char*>(&wire), sizeof(wire));
  packet.text.append(text.data(), std::min(text.size(), kMostMessageText));
  packet.descriptor = descriptor;
  return packet;
}

// The parts of a packet. Closes its descriptor unless it was taken.
template <typename Wire>
class Unpacked {
 public:
  explicit Unpacked(HelperPacket packet) : packet_(std::move(packet)) {
    if (packet_.text.size() < sizeof(Wire)) return;
    if (packet_.text.size() > sizeof(Wire) + kMostMessageText) return;
    std::memcpy(&wire_, packet_.text.data(), sizeof(Wire));
    is_whole_ = true;
  }
  ~Unpacked() {
    if (packet_.descriptor >= 0) close(packet_.descriptor);
  }
  Unpacked(const Unpacked&) = delete;
  Unpacked& operator=(const Unpacked&) = delete;

  bool is_whole() const { return is_whole_; }
  const Wire* operator->() const { return &wire_; }
  std::string text() const { return packet_.text.substr(sizeof(Wire)); }
  bool has_descriptor() const { return packet_.descriptor >= 0; }
  int TakeDescriptor() { return std::exchange(packet_.descriptor, -1); }

 private:
  HelperPacket packet_;
  Wire wire_ = {};
  bool is_whole_ = false;
};

absl::Status NoMessage(const char* what) {
  return absl::DataLossError(absl::StrCat("a packet is no ", what));
}

bool IsKind(uint64_t kind) { return kind <= static_cast<uint64_t>(MemoryKind::kCudaIpc); }
bool IsCode(uint64_t code) {
  return code <= static_cast<uint64_t>(absl::StatusCode::kUnauthenticated);
}

}  // namespace

HelperPacket Encode(const DeviceRequest& request) {
  WireRequest wire = {};
  wire.call = static_cast<uint32_t>(request.call);
  wire.kind = static_cast<uint32_t>(request.kind);
  wire.memory = request.memory;
  wire.host = request.host;
  wire.offset = request.offset.count();
  wire.host_offset = request.host_offset.count();
  wire.size = request.size.count();
  return Pack(wire, request.text, request.descriptor);
}

absl::StatusOr<DeviceRequest> DecodeRequest(HelperPacket packet) {
  Unpacked<WireRequest> wire(std::move(packet));
  const bool is_call =
      wire.is_whole() && wire->call >= 1 && wire->call <= static_cast<uint32_t>(DeviceCall::kZero);
  if (!is_call || !IsKind(wire->kind)) return NoMessage("request");
  DeviceRequest request;
  request.call = static_cast<DeviceCall>(wire->call);
  if (wire.has_descriptor() != (request.call == DeviceCall::kShareHost)) {
    return NoMessage("request");
  }
  request.kind = static_cast<MemoryKind>(wire->kind);
  request.memory = wire->memory;
  request.host = wire->host;
  request.offset = Bytes(wire->offset);
  request.host_offset = Bytes(wire->host_offset);
  request.size = Bytes(wire->size);
  request.text = wire.text();
  request.descriptor = wire.TakeDescriptor();
  return request;
}

HelperPacket Encode(const DeviceAnswer& answer) {
  WireAnswer wire = {};
  wire.code = static_cast<uint32_t>(answer.status.code());
  wire.is_handle = answer.ipc_handle.empty() ? 0 : 1;
  wire.host_memory = ToWire(answer.host_memory);
  return Pack(wire, answer.ipc_handle.empty() ? answer.status.message() : answer.ipc_handle,
              answer.descriptor);
}

absl::StatusOr<DeviceAnswer> DecodeAnswer(HelperPacket packet) {
  Unpacked<WireAnswer> wire(std::move(packet));
  if (!wire.is_whole() || !IsCode(wire->code)) return NoMessage("answer");
  const bool is_ok = wire->code == 0, is_handle = wire->is_handle != 0;
  // Only the answer to a call that succeeded has something to pass on, in one of two ways.
  if (!is_ok && (is_handle || wire.has_descriptor())) return NoMessage("answer");
  if (is_handle && wire.has_descriptor()) return NoMessage("answer");
  DeviceAnswer answer;
  answer.host_memory = FromWire(wire->host_memory);
  if (is_handle) answer.ipc_handle = wire.text();
  if (!is_ok) answer.status = absl::Status(static_cast<absl::StatusCode>(wire->code), wire.text());
  answer.descriptor = wire.TakeDescriptor();
  return answer;
}

HelperPacket Encode(const DeviceNotice& notice) {
  WireNotice wire = {};
  wire.what = static_cast<uint32_t>(notice.what);
  wire.code = static_cast<uint32_t>(notice.code);
  wire.copies_in_flight = notice.copies_in_flight;
  wire.maps_under_work = notice.maps_under_work ? 1 : 0;
  std::fill(std::begin(wire.kinds), std::end(wire.kinds), kNoKind);
  for (size_t i = 0; i < std::min(kMostKinds, notice.kinds.size()); ++i) {
    wire.kinds[i] = static_cast<uint8_t>(notice.kinds[i]);
  }
  wire.host_memory = ToWire(notice.host_memory);
  return Pack(wire, notice.text, -1);
}

absl::StatusOr<DeviceNotice> DecodeNotice(HelperPacket packet) {
  Unpacked<WireNotice> wire(std::move(packet));
  const bool is_notice = wire.is_whole() && wire->what >= 1 &&
                         wire->what <= static_cast<uint32_t>(DeviceNotice::What::kLost);
  if (!is_notice || !IsCode(wire->code) || wire.has_descriptor()) return NoMessage("notice");
  DeviceNotice notice;
  notice.what = static_cast<DeviceNotice::What>(wire->what);
  notice.code = static_cast<absl::StatusCode>(wire->code);
  notice.text = wire.text();
  for (size_t i = 0; i < kMostKinds && wire->kinds[i] != kNoKind; ++i) {
    if (!IsKind(wire->kinds[i])) return NoMessage("notice");
    notice.kinds.push_back(static_cast<MemoryKind>(wire->kinds[i]));
  }
  notice.copies_in_flight = wire->copies_in_flight;
  notice.maps_under_work = wire->maps_under_work != 0;
  notice.host_memory = FromWire(wire->host_memory);
  const bool is_error =
      notice.what == DeviceNotice::What::kFailed || notice.what == DeviceNotice::What::kLost;
  if (is_error == (notice.code == absl::StatusCode::kOk)) return NoMessage("notice");
  // Each copy in flight is a thread of the daemon's.
  constexpr uint32_t kMostCopies = 16;
  if (notice.what == DeviceNotice::What::kOpened &&
      (notice.kinds.empty() || notice.copies_in_flight == 0 ||
       notice.copies_in_flight > kMostCopies)) {
    return NoMessage("notice");
  }
  return notice;
}

}  // namespace memtide
