// The default chunk size, for callers that specify none. Pure function.
//
// Decision 11 (docs/decisions/0011-chunk-size-from-the-parameters.md) explains the fractions.
#ifndef MEMTIDE_CLIENT_RPC_DEFAULT_CHUNK_SIZE_H_
#define MEMTIDE_CLIENT_RPC_DEFAULT_CHUNK_SIZE_H_

#include "base/bytes.h"
#include "memtide/v1/admin.pb.h"
#include "memtide/v1/session.pb.h"

namespace memtide::client {

// Computes the chunk size for shares of these sizes; zero means that there is none.
Bytes DefaultChunkSize(Bytes device_share, Bytes host_share);
// Computes the chunk size from the shares in `request`, or from the free memory of `node` where
// `request` names no share.
Bytes DefaultChunkSize(const v1::OpenRequest& request, const v1::InspectNodeResponse& node);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_DEFAULT_CHUNK_SIZE_H_
