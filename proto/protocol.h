// The numbers that proto/memtide/v1 promises. They cannot be sent as Limits are, because client and
// daemon need them before the first message.
#ifndef MEMTIDE_PROTO_PROTOCOL_H_
#define MEMTIDE_PROTO_PROTOCOL_H_

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace memtide {

// FdHello.protocol_version (session.proto).
inline constexpr uint32_t kProtocolVersion = 1;

// The largest gRPC messages (common.proto). A trace is the largest response: JobTrace bounds it.
inline constexpr int kMaxRequestBytes = 1 << 20;
inline constexpr int kMaxResponseBytes = 16 << 20;
// The largest packet of the fd socket, and the longest FdHello.program (session.proto).
inline constexpr size_t kMaxPacketBytes = 4096;
inline constexpr size_t kMaxProgramBytes = 256;

// The longest OpenRequest.job_name, and what is recorded of Moment.name (trace.proto).
inline constexpr size_t kMaxJobNameBytes = 128;
inline constexpr size_t kMaxMomentNameBytes = 64;

// The most sessions of one training (OpenRequest.ranks).
inline constexpr uint32_t kMaxRanks = 4096;

// The size of a chunk (OpenRequest.chunk_size_bytes).
inline constexpr Bytes kChunkAlignment = MiB(2);  // One huge page.
inline constexpr Bytes kMaxChunkSize = GiB(1);    // One registered io_uring buffer.

// The regions of a job that has one for each device slot (SessionService.Resize): each is a
// descriptor in a client.
inline constexpr uint32_t kMaxDeviceRegions = 4096;

// The details of an error (grpc-status-details-bin) after which a client makes the same call again:
// it has to wait on, for something that ends by itself.
inline constexpr char kCallAgain[] = "memtide: call again";

}  // namespace memtide

#endif  // MEMTIDE_PROTO_PROTOCOL_H_
