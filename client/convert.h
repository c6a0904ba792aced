// The client's values in the protocol's words; proto/kinds.h has those it shares. Pure functions.
#ifndef MEMTIDE_CLIENT_CONVERT_H_
#define MEMTIDE_CLIENT_CONVERT_H_

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/ids.h"
#include "client/types.h"
#include "client/use_log.h"
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

#endif  // MEMTIDE_CLIENT_CONVERT_H_
