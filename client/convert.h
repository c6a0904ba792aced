// The client's values in the protocol's words, and back. Pure functions.
#ifndef MEMTIDE_CLIENT_CONVERT_H_
#define MEMTIDE_CLIENT_CONVERT_H_

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/memory_kind.h"
#include "client/types.h"
#include "client/use_log.h"
#include "google/protobuf/duration.pb.h"
#include "memtide/v1/common.pb.h"
#include "memtide/v1/trace.pb.h"

namespace memtide::client {

v1::Access ToProto(Access access);
v1::ChunkKind ToProto(ChunkKind kind);
v1::Phase ToProto(Moment::Phase phase);
v1::MemoryKind ToProto(MemoryKind kind);
// Of a newer daemon's kinds, none is known: shared memory, whose size will not be right.
MemoryKind FromProto(v1::MemoryKind kind);
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
