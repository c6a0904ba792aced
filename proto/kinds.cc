#include "proto/kinds.h"

#include <iterator>
#include <utility>

namespace memtide {

namespace {

template <typename Word, typename Number>
using Pair = std::pair<Word, Number>;

constexpr Pair<ChunkKind, v1::ChunkKind> kChunkKindNumbers[] = {
    {ChunkKind::kOther, v1::CHUNK_KIND_UNSPECIFIED},
    {ChunkKind::kParameter, v1::CHUNK_KIND_PARAMETER},
    {ChunkKind::kGradient, v1::CHUNK_KIND_GRADIENT},
    {ChunkKind::kOptimizerState, v1::CHUNK_KIND_OPTIMIZER_STATE},
    {ChunkKind::kActivation, v1::CHUNK_KIND_ACTIVATION},
};
static_assert(std::size(kChunkKindNumbers) == kChunkKinds);

constexpr Pair<Access, v1::Access> kAccessNumbers[] = {
    {Access::kRead, v1::ACCESS_READ},
    {Access::kWrite, v1::ACCESS_WRITE},
};

constexpr Pair<Phase, v1::Phase> kPhaseNumbers[] = {
    {Phase::kOther, v1::PHASE_UNSPECIFIED},
    {Phase::kForward, v1::PHASE_FORWARD},
    {Phase::kBackward, v1::PHASE_BACKWARD},
    {Phase::kStep, v1::PHASE_STEP},
};

constexpr Pair<MemoryKind, v1::MemoryKind> kMemoryKindNumbers[] = {
    {MemoryKind::kSharedMemory, v1::MEMORY_KIND_SHARED_MEMORY},
    {MemoryKind::kCudaDescriptor, v1::MEMORY_KIND_CUDA_DESCRIPTOR},
    {MemoryKind::kCudaIpc, v1::MEMORY_KIND_CUDA_IPC},
};

template <typename Word, typename Number, size_t kSize>
Number NumberOf(const Pair<Word, Number> (&pairs)[kSize], Word word) {
  for (const auto& [known, number] : pairs) {
    if (known == word) return number;
  }
  return pairs[0].second;
}

template <typename Word, typename Number, size_t kSize>
Word WordOf(const Pair<Word, Number> (&pairs)[kSize], Number number) {
  for (const auto& [word, known] : pairs) {
    if (known == number) return word;
  }
  return pairs[0].first;
}

}  // namespace

v1::ChunkKind ToProto(ChunkKind kind) { return NumberOf(kChunkKindNumbers, kind); }
v1::Access ToProto(Access access) { return NumberOf(kAccessNumbers, access); }
v1::Phase ToProto(Phase phase) { return NumberOf(kPhaseNumbers, phase); }
v1::MemoryKind ToProto(MemoryKind kind) { return NumberOf(kMemoryKindNumbers, kind); }

ChunkKind FromProto(v1::ChunkKind kind) { return WordOf(kChunkKindNumbers, kind); }
Access FromProto(v1::Access access) { return WordOf(kAccessNumbers, access); }
Phase FromProto(v1::Phase phase) { return WordOf(kPhaseNumbers, phase); }
MemoryKind FromProto(v1::MemoryKind kind) { return WordOf(kMemoryKindNumbers, kind); }

}  // namespace memtide
