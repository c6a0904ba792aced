// The messages between RemoteDevice (the daemon) and DeviceServer (the device's process), each in
// one packet.
//
// On the control socket the process sends notices: first kOpened or kFailed, then warnings, and at
// most one kLost. The daemon sends packets with one descriptor each, the process's end of a
// channel. On a channel the daemon sends a request, and the next one when the answer is there. So a
// channel carries one call at a time, and a device has as many as it takes calls at once.
//
// Both sides are one program, so that messages are structures as they lie in memory. Decoding
// checks them all the same: the other process may be about to die. Value types.
#ifndef MEMTIDE_DAEMON_DEVICE_REMOTE_MESSAGES_H_
#define MEMTIDE_DAEMON_DEVICE_REMOTE_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/host_memory_use.h"
#include "base/memory_kind.h"
#include "daemon/device/remote/packet.h"

namespace memtide {

// Longer names, errors and log lines are cut.
inline constexpr size_t kMostMessageText = 4096;

// The fields that a call does not mention are zero.
enum class DeviceCall : uint32_t {
  kAllocate = 1,  // memory (its number from now on), size, kind, text: its name
  kFree,          // memory
  kShareHost,     // host (its number from now on), size, descriptor: all of a memfd
  kUnshareHost,   // host
  kAddHost,       // host, host_offset, size
  kRemoveHost,    // host, host_offset
  kCopyIn,        // memory, offset, host, host_offset, size
  kCopyOut,       // the same
  kZero,          // memory, offset, size
};

struct DeviceRequest {
  DeviceCall call = DeviceCall::kZero;
  MemoryKind kind = MemoryKind::kSharedMemory;
  uint64_t memory = 0, host = 0;
  Bytes offset, host_offset, size;
  std::string text;
  int descriptor = -1;  // See HelperPacket.
};

struct DeviceAnswer {
  absl::Status status;
  HostMemoryUse host_memory;  // After the call; without the node.
  std::string ipc_handle;     // After kAllocate of kCudaIpc.
  int descriptor = -1;        // After kAllocate of the other kinds.
};

struct DeviceNotice {
  enum class What : uint32_t { kOpened = 1, kFailed, kWarning, kLost };

  What what = What::kWarning;
  // kOpened: the description. kWarning: a log line. kFailed and kLost: the message of the error.
  std::string text;
  absl::StatusCode code = absl::StatusCode::kOk;  // kFailed, kLost.
  // kOpened.
  std::vector<MemoryKind> kinds;
  uint32_t copies_in_flight = 0;
  bool maps_under_work = true;
  HostMemoryUse host_memory;
};

// The packet has the descriptor of the message, which stays the caller's.
HelperPacket Encode(const DeviceRequest& request);
HelperPacket Encode(const DeviceAnswer& answer);
HelperPacket Encode(const DeviceNotice& notice);

// DATA_LOSS: the packet is no such message; its descriptor is closed. The message that is returned
// has the descriptor of the packet.
absl::StatusOr<DeviceRequest> DecodeRequest(HelperPacket packet);
absl::StatusOr<DeviceAnswer> DecodeAnswer(HelperPacket packet);
absl::StatusOr<DeviceNotice> DecodeNotice(HelperPacket packet);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_REMOTE_MESSAGES_H_
