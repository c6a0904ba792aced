// The size of chunks, where nobody says it. Pure.
//
// Why these parts of the pools: docs/decisions/0011-chunk-size-from-the-parameters.md.
#ifndef MEMTIDE_CLIENT_DEFAULT_CHUNK_SIZE_H_
#define MEMTIDE_CLIENT_DEFAULT_CHUNK_SIZE_H_

#include "base/bytes.h"
#include "client/lender.h"
#include "memtide/v1/admin.pb.h"

namespace memtide::client {

// As JobOptions has it: of the shares that are asked for, else of what the node has free.
Bytes DefaultChunkSize(const JobOptions& options, const v1::InspectNodeResponse& node);

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_DEFAULT_CHUNK_SIZE_H_
