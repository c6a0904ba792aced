// Converts the client's values to protobuf; proto/kinds.h converts the enums. Pure functions.
#ifndef MEMTIDE_CLIENT_RPC_TO_PROTO_H_
#define MEMTIDE_CLIENT_RPC_TO_PROTO_H_

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/ids.h"
#include "client/memory/place.h"
#include "client/rpc/moment.h"
#include "google/protobuf/duration.pb.h"
#include "memtide/v1/trace.pb.h"
#include "proto/kinds.h"

namespace memtide::client {

void SetDuration(Duration duration, google::protobuf::Duration* field);

void AddMoments(absl::Span<const Moment> moments,
                google::protobuf::RepeatedPtrField<v1::Moment>* field);

template <typename Field>
void AddIds(absl::Span<const ChunkId> chunks, Field* field) {
  field->Reserve(static_cast<int>(chunks.size()));
  for (const ChunkId chunk : chunks) field->Add(chunk.value());
}

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_TO_PROTO_H_
