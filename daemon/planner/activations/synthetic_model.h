// SyntheticModel: the iteration that a transformer of some shape would have, for tests and
// benchmarks: its trace and its activation profile, without running it.
//
// Times are FLOPs by a rate; sizes are those of a layer with normalization, fused attention and an
// MLP of two or three matrices, in which each result that autograd needs is saved once. Parameters,
// gradients and moments are in arenas of their own, in the order of layers. A micro-batch runs
// forward and backward; the step follows the last one.
//
// Thread safety: thread-compatible plain values; pure functions.
#ifndef MEMTIDE_DAEMON_PLANNER_ACTIVATIONS_SYNTHETIC_MODEL_H_
#define MEMTIDE_DAEMON_PLANNER_ACTIVATIONS_SYNTHETIC_MODEL_H_

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "daemon/planner/access_sequence.h"
#include "memtide/v1/activations.pb.h"

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

// Parameters, gradients and two moments.
Bytes StatesOf(const TransformerShape& shape);

struct SyntheticModel {
  AccessSequence sequence;        // One iteration.
  v1::ActivationProfile profile;  // Without a budget.
};
SyntheticModel MakeSyntheticModel(const TransformerShape& shape);

// Shapes of the benchmark: the demo's GPT, Llama 3 with 8 billion parameters, a wide and shallow
// one, and one whose attention saves its weights.
TransformerShape DemoGpt();
TransformerShape Llama8B();
TransformerShape WideShallow();
TransformerShape HeavyAttention();

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_PLANNER_ACTIVATIONS_SYNTHETIC_MODEL_H_
