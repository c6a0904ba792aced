// ActivationModel: one training iteration and the activations that it saves, checked and in the
// planner's own types.
//
// The iteration is one of a trace, without the trace's own chunks of activations: the search makes
// others. A plan chooses for each part of each block; see ActivationPlan in activations.proto.
//
// Thread safety: thread-compatible plain values; pure functions.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_ACTIVATION_MODEL_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_ACTIVATION_MODEL_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/replay/access_sequence.h"
#include "memtide/v1/activations.pb.h"

namespace memtide {

enum class SavedPart : uint8_t { kInput, kAttention, kRest };
inline constexpr size_t kSavedParts = 3;

// Storages of one part that one call of a block saves. Moments count from the iteration's first.
struct Saved {
  SavedPart part = SavedPart::kRest;
  Bytes size;
  uint32_t packed = 0, first_unpacked = 0, last_unpacked = 0;
  uint32_t micro_batch = 0;
  uint32_t call = 0;  // Index in Block::calls.
};

// A forward pass of a block, and where backward needs its recomputed results first.
struct BlockCall {
  uint32_t micro_batch = 0;
  uint32_t forward_begin = 0, forward_end = 0;  // Moments; the last one belongs to it.
  // The first moment that unpacks the rest, and that unpacks the rest or attention's results.
  uint32_t rest_needed = 0, attention_needed = 0;
};

struct Block {
  std::string name;
  std::vector<Saved> saved;
  std::vector<BlockCall> calls;
  Duration forward{0}, forward_without_attention{0};
  bool recomputable = false;
  // By part: bytes that all calls save together.
  std::array<Bytes, kSavedParts> bytes;
};

struct ActivationModel {
  // One iteration; all chunks in it with `from_start` exist when it begins.
  AccessSequence states;
  std::vector<Block> blocks;
  std::vector<Saved> others;
  Bytes budget;
  uint32_t least_slots = 0;  // At least what the engine needs.
  uint32_t fixed_slots = 0;  // Zero: the plan divides the budget.

  size_t moments() const { return states.moments.size(); }
};

// INVALID_ARGUMENT names the block: moments out of the iteration or out of order, bytes that
// overflow, times that cannot be, no block at all. FAILED_PRECONDITION: no iteration of the
// sequence has the profile's number of moments. All times are multiplied by `compute_scale`.
absl::StatusOr<ActivationModel> ToActivationModel(const AccessSequence& sequence,
                                                  const v1::ActivationProfile& profile,
                                                  double compute_scale = 1);

// NOT_FOUND: cannot be read. INVALID_ARGUMENT: is no ActivationProfile in protobuf's JSON.
absl::StatusOr<v1::ActivationProfile> LoadActivationProfile(const std::string& path);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_ACTIVATION_MODEL_H_
