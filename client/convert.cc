#include "client/convert.h"

namespace memtide::client {

v1::Access ToProto(Access access) {
  return access == Access::kWrite ? v1::ACCESS_WRITE : v1::ACCESS_READ;
}

v1::ChunkKind ToProto(ChunkKind kind) {
  switch (kind) {
    case ChunkKind::kOther:
      return v1::CHUNK_KIND_UNSPECIFIED;
    case ChunkKind::kParameter:
      return v1::CHUNK_KIND_PARAMETER;
    case ChunkKind::kGradient:
      return v1::CHUNK_KIND_GRADIENT;
    case ChunkKind::kOptimizerState:
      return v1::CHUNK_KIND_OPTIMIZER_STATE;
    case ChunkKind::kActivation:
      return v1::CHUNK_KIND_ACTIVATION;
  }
  return v1::CHUNK_KIND_UNSPECIFIED;
}

v1::MemoryKind ToProto(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kSharedMemory:
      return v1::MEMORY_KIND_SHARED_MEMORY;
    case MemoryKind::kCudaDescriptor:
      return v1::MEMORY_KIND_CUDA_DESCRIPTOR;
    case MemoryKind::kCudaIpc:
      return v1::MEMORY_KIND_CUDA_IPC;
  }
  return v1::MEMORY_KIND_UNSPECIFIED;
}

MemoryKind FromProto(v1::MemoryKind kind) {
  switch (kind) {
    case v1::MEMORY_KIND_CUDA_DESCRIPTOR:
      return MemoryKind::kCudaDescriptor;
    case v1::MEMORY_KIND_CUDA_IPC:
      return MemoryKind::kCudaIpc;
    default:
      return MemoryKind::kSharedMemory;
  }
}

v1::Phase ToProto(Moment::Phase phase) {
  switch (phase) {
    case Moment::Phase::kForward:
      return v1::PHASE_FORWARD;
    case Moment::Phase::kBackward:
      return v1::PHASE_BACKWARD;
    case Moment::Phase::kStep:
      return v1::PHASE_STEP;
    case Moment::Phase::kOther:
      break;
  }
  return v1::PHASE_UNSPECIFIED;
}

void AddMoments(absl::Span<const Moment> moments,
                google::protobuf::RepeatedPtrField<v1::Moment>* field) {
  for (const Moment& moment : moments) {
    v1::Moment* const proto = field->Add();
    proto->set_phase(ToProto(moment.phase));
    proto->set_name(moment.name);
    proto->set_own_device_bytes(moment.own_device.count());
    proto->set_own_host_bytes(moment.own_host.count());
    for (const Moment::Use& use : moment.uses) {
      v1::Use* const used = proto->add_uses();
      used->set_chunk_id(use.chunk.value());
      used->set_access(ToProto(use.access));
    }
    proto->set_continues(moment.continues);
    proto->set_ends_iteration(moment.ends_iteration);
  }
}

void SetDuration(Duration duration, google::protobuf::Duration* field) {
  field->set_seconds(duration / std::chrono::seconds(1));
  field->set_nanos(static_cast<int32_t>((duration % std::chrono::seconds(1)).count()));
}

}  // namespace memtide::client
