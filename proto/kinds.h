// The shared words (base/kinds.h, base/memory_kind.h) in the protocol's numbers, and back.
//
// A number that is not known here, as a newer peer may send it, and "unspecified" become the first
// of the type; who must tell them apart looks at the number first. Pure functions.
#ifndef MEMTIDE_PROTO_KINDS_H_
#define MEMTIDE_PROTO_KINDS_H_

#include "base/kinds.h"
#include "base/memory_kind.h"
#include "memtide/v1/common.pb.h"
#include "memtide/v1/trace.pb.h"

namespace memtide {

v1::ChunkKind ToProto(ChunkKind kind);
v1::Access ToProto(Access access);
v1::Phase ToProto(Phase phase);
v1::MemoryKind ToProto(MemoryKind kind);

ChunkKind FromProto(v1::ChunkKind kind);
Access FromProto(v1::Access access);
Phase FromProto(v1::Phase phase);
MemoryKind FromProto(v1::MemoryKind kind);

}  // namespace memtide

#endif  // MEMTIDE_PROTO_KINDS_H_
