// TransformerShape: the shapes of transformers for tests and benchmarks.
//
// Times are FLOPs by a rate; sizes are those of a layer with normalization, fused attention and an
// MLP of two or three matrices, in which each result that autograd needs is saved once. A layer has
// two parts, attention and MLP. Adam steps on the device.
//
// Thread safety: thread-compatible plain values; pure functions.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TRANSFORMER_SHAPE_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TRANSFORMER_SHAPE_H_

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "daemon/replay/activations/model_shape.h"

namespace memtide {

struct TransformerShape {
  std::string name;
  uint32_t layers = 0;
  uint64_t width = 0, key_value_width = 0, mlp_width = 0, vocabulary = 0;
  uint64_t mlp_matrices = 2;     // 3: with a gate.
  uint64_t cross_attention = 0;  // Further attentions of each layer, as a decoder has.
  uint64_t sequence = 0;         // Tokens of one sequence.
  uint64_t sequences = 1;        // In one micro-batch.
  uint32_t micro_batches = 1;
  uint64_t heads = 0;          // Not zero: each attention saves its weights, a square a head.
  uint64_t element_bytes = 2;  // In all tensors.
  uint64_t saves_logits = 0;   // 1: the loss saves a value for each token and word.
  double flops_per_second = 0, memory_bytes_per_second = 0;
  Bytes chunk_size;
};

ModelShape ShapeOf(const TransformerShape& transformer);

// Shapes of the benchmark: the demo's GPT, Llama 3 with 8 billion parameters, a wide and shallow
// one, and one whose attention saves its weights.
TransformerShape DemoGpt();
TransformerShape Llama8B();
TransformerShape WideShallow();
TransformerShape HeavyAttention();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TRANSFORMER_SHAPE_H_
