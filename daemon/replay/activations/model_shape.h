// ModelShape: a model as a list of blocks, and how one step trains it, in times and bytes: what an
// iteration is made from without running it (synthetic_model.h).
//
// Thread safety: thread-compatible plain values.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_MODEL_SHAPE_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_MODEL_SHAPE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/kinds.h"
#include "daemon/replay/activations/activation_model.h"

namespace memtide {

// A part of a block is one moment of a forward pass, and one of its backward pass. Times and bytes
// are those of one micro-batch.
struct PartShape {
  uint64_t parameters = 0;
  uint64_t trained = 0;  // At most `parameters`: the others are frozen.
  // `recompute`: to compute again what backward needs, which is less than `forward` where the last
  // operation's result is not needed. `attention`: what attention's own kernels take of both.
  Duration forward{0}, recompute{0}, attention{0};
  Duration backward{0};
  std::array<Bytes, kSavedParts> saved;
};

struct BlockShape {
  std::string name;
  std::vector<PartShape> parts;
  // A plan may let it be computed again. Other blocks' tensors count as saved outside of blocks.
  bool recomputable = true;
};

// One of the values that each parameter has.
struct ArenaShape {
  ChunkKind kind = ChunkKind::kOther;
  double bytes_per_parameter = 0;
};

struct ModelShape {
  std::vector<BlockShape> blocks;  // In the order of forward passes.
  // The first one has the weights of all parameters; the others are of trained ones only.
  std::vector<ArenaShape> arenas;
  uint32_t micro_batches = 1;
  Bytes chunk_size;
  double step_ns_per_parameter = 0;
  // The optimizer computes what a part trains as soon as its gradient is complete, not after all
  // backward passes.
  bool step_in_backward = false;
  bool step_on_host = false;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_MODEL_SHAPE_H_
