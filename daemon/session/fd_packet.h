// The packets of the fd socket, decoded and encoded: pure functions of bytes.
//
// The wire is proto/memtide/v1/session.proto: FdHello from the client, FdFrame to it. Nothing here
// touches a socket, so hostile bytes are tried on it by a fuzzer.
#ifndef MEMTIDE_DAEMON_SESSION_FD_PACKET_H_
#define MEMTIDE_DAEMON_SESSION_FD_PACKET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/memory_kind.h"
#include "daemon/engine/interface/effects.h"
#include "daemon/session/token_table.h"
#include "proto/protocol.h"

namespace memtide {

struct Hello {
  std::string program;  // At most kMaxProgramBytes, printable: safe to log.
};

// INVALID_ARGUMENT: not an FdHello, or too long. UNIMPLEMENTED: another version of the protocol.
absl::StatusOr<Hello> DecodeHello(absl::string_view packet);

struct Welcome {
  Token token;
  std::string boot_id;
  std::string grpc_target;
};
std::string EncodeWelcome(const Welcome& welcome);
// REQUIRES: reason is not OK.
std::string EncodeRefused(const absl::Status& reason);
// Its descriptor goes with the packet, not into it.
std::string EncodeRegion(RegionId region, const MemoryExport& memory);
std::string EncodeRegionGone(RegionId region, uint32_t device_slots, uint32_t lease_budget);
std::string EncodeLeaseBudget(const SendLeaseBudget& budget);
// REQUIRES: at most kMaxRevokedChunks of them.
std::string EncodeRevoke(uint32_t count, const std::vector<ChunkId>& chunks);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SESSION_FD_PACKET_H_
