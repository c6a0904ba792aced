#include "daemon/replay/activations/testing/random_chain.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "daemon/replay/activations/candidate.h"

namespace memtide {

namespace {

using Kind = ChunkEvent::Kind;

constexpr Bytes kChunk = MiB(2);

class Maker {
 public:
  Maker(uint64_t seed, uint32_t tasks) : random_(seed), blocks_((tasks - 1) / 2) {}

  RandomChain Make() {
    sequence_.chunk_size = kChunk;
    for (uint32_t i = 0; i < blocks_; ++i) AddForward(i);
    for (uint32_t i = blocks_; i-- > 0;) AddBackward(i);
    AddStep();
    sequence_.iteration_ends = {sequence_.moments.size()};
    profile_.set_iteration_moments(static_cast<uint32_t>(sequence_.moments.size()));
    RandomChain chain;
    SetBudget();
    auto model = ToActivationModel(sequence_, profile_);
    MEMTIDE_CHECK(model.ok()) << model.status();
    chain.model = *std::move(model);
    chain.options.device_slots = 1;
    chain.options.host_slots = 4096;
    const double seconds = std::chrono::duration<double>(compute_).count();
    const double speed = static_cast<double>(bytes_) / (seconds * Between(0.1, 3));
    chain.options.links.to_device.bytes_per_second = speed;
    chain.options.links.from_device.bytes_per_second = speed * Between(0.5, 1);
    return chain;
  }

 private:
  // Not one of the library's distributions, which differ among libraries.
  double Between(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() >> 11) * 0x1.0p-53;
  }
  uint64_t Integer(uint64_t low, uint64_t high) { return low + random_() % (high - low + 1); }

  PlayedMoment& Begin(Phase phase, double milliseconds) {
    PlayedMoment moment;
    moment.phase = phase;
    moment.compute = Duration(static_cast<int64_t>(milliseconds * 1e6));
    compute_ += moment.compute;
    sequence_.moments.push_back(std::move(moment));
    return sequence_.moments.back();
  }

  void AddForward(uint32_t number) {
    const double milliseconds = Between(2, 20);
    PlayedMoment& moment = Begin(Phase::kForward, milliseconds);
    std::vector<uint32_t> parameters;
    for (uint64_t i = Integer(0, 3); i > 0; --i) {
      parameters.push_back(static_cast<uint32_t>(sequence_.chunks.size()));
      sequence_.chunks.push_back({ChunkKind::kParameter, true});
      moment.events.push_back({parameters.back(), Kind::kRead});
      bytes_ += kChunk.count();
    }
    parameters_.push_back(parameters);
    forward_milliseconds_.push_back(milliseconds);
    v1::ActivationBlock* const block = profile_.add_blocks();
    block->set_name("layers." + std::to_string(number));
    block->set_recomputable(Integer(0, 4) > 0);
    block->set_forward_ns(static_cast<int64_t>(milliseconds * 1e6));
    Save(block, number, v1::ACTIVATION_PART_INPUT, 4);
    if (Integer(0, 1) > 0) {
      Save(block, number, v1::ACTIVATION_PART_ATTENTION, 6);
      block->set_forward_without_attention_ns(
          static_cast<int64_t>(milliseconds * Between(0.5, 1) * 1e6));
    }
    Save(block, number, v1::ACTIVATION_PART_REST, 16);
  }

  void Save(v1::ActivationBlock* block, uint32_t number, v1::ActivationPart part,
            uint64_t most_chunks) {
    const uint64_t size = Integer(kChunk.count() / 4, most_chunks * kChunk.count());
    v1::SavedBytes* const saved = block->add_saved();
    saved->set_part(part);
    saved->set_size_bytes(size);
    saved->set_packed_moment(number);
    saved->set_first_unpacked_moment(2 * blocks_ - 1 - number);
    saved->set_last_unpacked_moment(2 * blocks_ - 1 - number);
    bytes_ += size;
    saved_ += size;
  }

  void AddBackward(uint32_t number) {
    PlayedMoment& moment =
        Begin(Phase::kBackward, forward_milliseconds_[number] * Between(1.5, 2.5));
    for (const uint32_t chunk : parameters_[number]) {
      moment.events.push_back({chunk, Kind::kRead});
      gradients_.push_back(static_cast<uint32_t>(sequence_.chunks.size()));
      sequence_.chunks.push_back({ChunkKind::kGradient, true});
      moment.events.push_back({gradients_.back(), Kind::kWrite});
      bytes_ += kChunk.count();
    }
  }

  void AddStep() {
    PlayedMoment& moment = Begin(Phase::kStep, Between(1, 10));
    for (const uint32_t chunk : gradients_) moment.events.push_back({chunk, Kind::kRead});
    for (const std::vector<uint32_t>& chunks : parameters_) {
      for (const uint32_t chunk : chunks) moment.events.push_back({chunk, Kind::kWrite});
    }
  }

  void SetBudget() {
    const uint64_t least = kMinSlots * kChunk.count();
    const uint64_t all = saved_ + sequence_.chunks.size() * kChunk.count();
    profile_.set_budget_bytes(least +
                              static_cast<uint64_t>(Between(0, 1.1) * static_cast<double>(all)));
  }

  std::mt19937_64 random_;
  const uint32_t blocks_;
  AccessSequence sequence_;
  v1::ActivationProfile profile_;
  std::vector<double> forward_milliseconds_;       // By block.
  std::vector<std::vector<uint32_t>> parameters_;  // Chunks, by block.
  std::vector<uint32_t> gradients_;                // Chunks.
  Duration compute_{0};
  uint64_t bytes_ = 0, saved_ = 0;  // All chunks' and saved parts', and the latter's.
};

}  // namespace

RandomChain MakeRandomChain(uint64_t seed, uint32_t tasks) {
  MEMTIDE_CHECK(tasks >= 3);
  return Maker(seed, tasks).Make();
}

}  // namespace memtide
