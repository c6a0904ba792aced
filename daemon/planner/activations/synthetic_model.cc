#include "daemon/planner/activations/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace memtide {

namespace {

using Kind = ChunkEvent::Kind;

constexpr size_t kWeights = 0;  // The arena of weights.
constexpr v1::ActivationPart kParts[kSavedParts] = {
    v1::ACTIVATION_PART_INPUT, v1::ACTIVATION_PART_ATTENTION, v1::ACTIVATION_PART_REST};

// Parameters in a row, counted over all parts.
struct Span {
  uint64_t begin = 0, end = 0;

  bool empty() const { return begin == end; }
};

// A part, and where its parameters are among all, and among those that are trained.
struct PlacedPart {
  const PartShape* shape;
  Span weights, trained;
};

struct PlacedBlock {
  std::vector<PlacedPart> parts;
  v1::ActivationBlock* block = nullptr;  // Null: what it saves is saved outside of blocks.
};

class Maker {
 public:
  explicit Maker(const ModelShape& shape) : shape_(shape) {
    MEMTIDE_CHECK(!shape.arenas.empty() && !shape.chunk_size.IsZero());
    for (const BlockShape& block : shape.blocks) {
      placed_.emplace_back();
      for (const PartShape& part : block.parts) {
        MEMTIDE_CHECK(part.trained <= part.parameters);
        const Span weights{parameters_, parameters_ + part.parameters};
        const Span trained{trained_, trained_ + part.trained};
        placed_.back().parts.push_back({&part, weights, trained});
        parameters_ = weights.end;
        trained_ = trained.end;
      }
    }
    for (size_t arena = 0; arena < shape.arenas.size(); ++arena) {
      MEMTIDE_CHECK(shape.arenas[arena].bytes_per_parameter > 0);
      first_.push_back(chunks_);
      const uint64_t count = arena == kWeights ? parameters_ : trained_;
      chunks_ += static_cast<uint32_t>(std::ceil(static_cast<double>(count) / InChunk(arena)));
    }
    first_.push_back(chunks_);
  }

  uint32_t chunks() const { return chunks_; }

  SyntheticModel Make() {
    AccessSequence& sequence = model_.sequence;
    sequence.chunk_size = shape_.chunk_size;
    for (size_t arena = 0; arena < shape_.arenas.size(); ++arena) {
      const uint32_t count = first_[arena + 1] - first_[arena];
      sequence.chunks.insert(sequence.chunks.end(), count, {shape_.arenas[arena].kind, true});
    }
    for (size_t i = 0; i < shape_.blocks.size(); ++i) {
      if (shape_.blocks[i].recomputable) placed_[i].block = AddBlock(shape_.blocks[i]);
    }
    for (uint32_t i = 0; i < shape_.micro_batches; ++i) RunMicroBatch(i);
    if (!shape_.step_in_backward) Step({0, trained_});
    sequence.iteration_ends = {sequence.moments.size()};
    model_.profile.set_iteration_moments(static_cast<uint32_t>(sequence.moments.size()));
    return std::move(model_);
  }

 private:
  uint32_t moment() const { return static_cast<uint32_t>(model_.sequence.moments.size()) - 1; }
  double InChunk(size_t arena) const {
    return static_cast<double>(shape_.chunk_size.count()) /
           shape_.arenas[arena].bytes_per_parameter;
  }

  v1::ActivationBlock* AddBlock(const BlockShape& shape) {
    v1::ActivationBlock* const block = model_.profile.add_blocks();
    block->set_name(shape.name);
    block->set_recomputable(true);
    Duration all{0}, attention{0};
    for (const PartShape& part : shape.parts) {
      all += part.recompute;
      attention += part.attention;
    }
    block->set_forward_ns(all.count());
    block->set_forward_without_attention_ns((all - attention).count());
    return block;
  }

  void Begin(Phase phase, Duration compute) {
    PlayedMoment moment;
    moment.phase = phase;
    moment.compute = compute;
    model_.sequence.moments.push_back(std::move(moment));
  }

  void Use(Span span, size_t arena, Kind kind) {
    if (span.empty()) return;
    const auto chunk_of = [&](uint64_t parameter) {
      return static_cast<uint32_t>(static_cast<double>(parameter) / InChunk(arena));
    };
    const uint32_t last = std::min(chunk_of(span.end - 1), first_[arena + 1] - first_[arena] - 1);
    for (uint32_t i = chunk_of(span.begin); i <= last; ++i) {
      model_.sequence.moments.back().events.push_back({first_[arena] + i, kind});
    }
  }

  // What a part saves in this moment; its unpacked moments are not known yet.
  std::vector<v1::SavedBytes*> Save(const PartShape& part, v1::ActivationBlock* block,
                                    uint32_t micro_batch) {
    std::vector<v1::SavedBytes*> all;
    for (size_t i = 0; i < kSavedParts; ++i) {
      if (part.saved[i].IsZero()) continue;
      v1::SavedBytes* const saved =
          block != nullptr ? block->add_saved() : model_.profile.add_others();
      saved->set_part(block != nullptr ? kParts[i] : v1::ACTIVATION_PART_REST);
      saved->set_size_bytes(part.saved[i].count());
      saved->set_packed_moment(moment());
      saved->set_micro_batch(micro_batch);
      all.push_back(saved);
    }
    return all;
  }

  void RunMicroBatch(uint32_t micro_batch) {
    std::vector<std::pair<const PlacedPart*, std::vector<v1::SavedBytes*>>> ran;
    for (const PlacedBlock& placed : placed_) {
      for (const PlacedPart& part : placed.parts) {
        Begin(Phase::kForward, part.shape->forward);
        Use(part.weights, kWeights, Kind::kRead);
        ran.emplace_back(&part, Save(*part.shape, placed.block, micro_batch));
      }
    }
    for (size_t i = ran.size(); i-- > 0;) {
      const auto& [part, all] = ran[i];
      Begin(Phase::kBackward, part->shape->backward);
      Use(part->weights, kWeights, Kind::kRead);
      for (size_t arena = 0; arena < shape_.arenas.size(); ++arena) {
        if (shape_.arenas[arena].kind != ChunkKind::kGradient) continue;
        Use(part->trained, arena, Kind::kWrite);
      }
      for (v1::SavedBytes* const saved : all) {
        saved->set_first_unpacked_moment(moment());
        saved->set_last_unpacked_moment(moment());
      }
      if (shape_.step_in_backward && micro_batch + 1 == shape_.micro_batches) Step(part->trained);
    }
  }

  // The weights of trained parameters, which are the first ones of their parts.
  std::vector<Span> WeightsOf(Span trained) const {
    std::vector<Span> spans;
    for (const PlacedBlock& placed : placed_) {
      for (const PlacedPart& part : placed.parts) {
        const uint64_t begin = std::max(trained.begin, part.trained.begin);
        const uint64_t end = std::min(trained.end, part.trained.end);
        if (begin >= end) continue;
        const uint64_t before = part.weights.begin + (begin - part.trained.begin);
        if (!spans.empty() && spans.back().end == before) {
          spans.back().end += end - begin;
        } else {
          spans.push_back({before, before + (end - begin)});
        }
      }
    }
    return spans;
  }

  // In moments of as many parameters as have their largest state in one chunk.
  void Step(Span trained) {
    double fewest = InChunk(kWeights);
    for (size_t i = 0; i < shape_.arenas.size(); ++i) fewest = std::min(fewest, InChunk(i));
    const uint64_t unit = std::max<uint64_t>(1, static_cast<uint64_t>(fewest));
    for (uint64_t begin = trained.begin; begin < trained.end;) {
      const uint64_t end = std::min(trained.end, (begin / unit + 1) * unit);
      StepUnit({begin, end});
      begin = end;
    }
  }

  void StepUnit(Span trained) {
    const double nanoseconds =
        shape_.step_ns_per_parameter * static_cast<double>(trained.end - trained.begin);
    Begin(Phase::kStep, Duration(static_cast<int64_t>(nanoseconds)));
    model_.sequence.moments.back().on_host = shape_.step_on_host;
    for (size_t i = 1; i < shape_.arenas.size(); ++i) {
      const bool is_gradient = shape_.arenas[i].kind == ChunkKind::kGradient;
      Use(trained, i, is_gradient ? Kind::kRead : Kind::kWrite);
    }
    for (const Span weights : WeightsOf(trained)) Use(weights, kWeights, Kind::kWrite);
  }

  const ModelShape& shape_;
  uint64_t parameters_ = 0, trained_ = 0;
  std::vector<PlacedBlock> placed_;  // By block.
  std::vector<uint32_t> first_;      // By arena: its first chunk; then the number of all chunks.
  uint32_t chunks_ = 0;
  SyntheticModel model_;
};

}  // namespace

Bytes StatesOf(const ModelShape& shape) { return shape.chunk_size * Maker(shape).chunks(); }

SyntheticModel MakeSyntheticModel(const ModelShape& shape) { return Maker(shape).Make(); }

}  // namespace memtide
