// An iteration of three blocks for tests that are worked out by hand.
//
// Moments 0 to 2 are the blocks' forward passes (10 ms each), 3 to 5 their backward passes in turn
// (20 ms each), 6 is the step (5 ms). Chunks have 2 MiB; chunk i is block i's parameters, read in
// both passes and written in the step. A block saves a chunk of input, one of attention's results
// and three of rest. It runs again in 10 ms, or 8 ms with attention's results kept.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TESTING_THREE_BLOCKS_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TESTING_THREE_BLOCKS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "daemon/replay/access_sequence.h"
#include "daemon/replay/activations/candidate.h"

namespace memtide {

inline constexpr Choice kKeep = Choice::kKeep, kMove = Choice::kMove, kAgain = Choice::kRecompute;
inline constexpr BlockChoice kKeepAll{kKeep, kKeep, kKeep};

// The bytes of `count` of its chunks.
constexpr Bytes Chunks(uint64_t count) { return MiB(2 * count); }

inline AccessSequence SequenceOfThreeBlocks() {
  using Kind = ChunkEvent::Kind;
  AccessSequence sequence;
  sequence.chunk_size = Chunks(1);
  for (int i = 0; i < 3; ++i) sequence.chunks.push_back({ChunkKind::kParameter, true});
  for (uint32_t i = 0; i < 7; ++i) {
    PlayedMoment moment;
    moment.phase = i < 3 ? Phase::kForward : i < 6 ? Phase::kBackward : Phase::kStep;
    moment.compute = std::chrono::milliseconds(i < 3 ? 10 : i < 6 ? 20 : 5);
    if (i < 6) moment.events.push_back({i < 3 ? i : 5 - i, Kind::kRead});
    for (uint32_t chunk = 0; i == 6 && chunk < 3; ++chunk) {
      moment.events.push_back({chunk, Kind::kWrite});
    }
    sequence.moments.push_back(std::move(moment));
  }
  sequence.iteration_ends = {7};
  return sequence;
}

inline v1::ActivationProfile ProfileOfThreeBlocks(Bytes budget) {
  v1::ActivationProfile profile;
  for (uint32_t i = 0; i < 3; ++i) {
    v1::ActivationBlock* const block = profile.add_blocks();
    block->set_name("layers." + std::to_string(i));
    block->set_recomputable(true);
    block->set_forward_ns(10'000'000);
    block->set_forward_without_attention_ns(8'000'000);
    for (const auto& [part, chunks] :
         {std::pair(v1::ACTIVATION_PART_INPUT, 1), std::pair(v1::ACTIVATION_PART_ATTENTION, 1),
          std::pair(v1::ACTIVATION_PART_REST, 3)}) {
      v1::SavedBytes* const saved = block->add_saved();
      saved->set_part(part);
      saved->set_size_bytes(Chunks(static_cast<uint64_t>(chunks)).count());
      saved->set_packed_moment(i);
      saved->set_first_unpacked_moment(5 - i);
      saved->set_last_unpacked_moment(5 - i);
    }
  }
  profile.set_budget_bytes(budget.count());
  profile.set_iteration_moments(7);
  return profile;
}

inline ActivationModel ThreeBlocks(Bytes budget) {
  auto model = ToActivationModel(SequenceOfThreeBlocks(), ProfileOfThreeBlocks(budget));
  MEMTIDE_CHECK(model.ok()) << model.status();
  return *std::move(model);
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TESTING_THREE_BLOCKS_H_
