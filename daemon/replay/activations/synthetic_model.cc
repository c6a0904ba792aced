#include "daemon/replay/activations/synthetic_model.h"

#include <algorithm>
#include <cmath>
#include <set>
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
  explicit Maker(const ModelShape& shape)
      : shape_(shape), in_parts_(shape.step_in_backward && shape.step_on_host) {
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
    if (in_parts_) CutIntoParts();
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
    if (in_parts_) RenewGradients();
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

  // The number of a parameter's chunk in an arena.
  uint32_t ChunkOf(uint64_t parameter, size_t arena) const {
    return static_cast<uint32_t>(static_cast<double>(parameter) / InChunk(arena));
  }
  bool IsGradient(size_t arena) const { return shape_.arenas[arena].kind == ChunkKind::kGradient; }

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
    const uint32_t last =
        std::min(ChunkOf(span.end - 1, arena), first_[arena + 1] - first_[arena] - 1);
    for (uint32_t i = ChunkOf(span.begin, arena); i <= last; ++i) {
      model_.sequence.moments.back().events.push_back({first_[arena] + i, kind});
    }
  }

  // Adds the bytes that a part saves in this moment; their unpacked moments are not known yet.
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
        if (IsGradient(arena)) Use(part->trained, arena, Kind::kWrite);
      }
      for (v1::SavedBytes* const saved : all) {
        saved->set_first_unpacked_moment(moment());
        saved->set_last_unpacked_moment(moment());
      }
      if (!shape_.step_in_backward || micro_batch + 1 < shape_.micro_batches) continue;
      if (!in_parts_) {
        Step(part->trained);
        continue;
      }
      for (; !parts_.empty() && (i == 0 || IsComplete(parts_.back(), *part)); parts_.pop_back()) {
        StepUnit(parts_.back());
      }
    }
  }

  // Gradients end when the iteration begins, and their chunks are new where they are first written.
  void RenewGradients() {
    std::vector<PlayedMoment>& moments = model_.sequence.moments;
    std::set<uint32_t> renewed;
    for (PlayedMoment& moment : moments) {
      std::vector<ChunkEvent> events;
      for (const ChunkEvent& event : moment.events) {
        const bool is_gradient = model_.sequence.chunks[event.chunk].kind == ChunkKind::kGradient;
        if (is_gradient && renewed.insert(event.chunk).second) {
          events.push_back({event.chunk, Kind::kAllocate});
        }
        events.push_back(event);
      }
      moment.events = std::move(events);
    }
    std::vector<ChunkEvent>& first = moments.front().events;
    for (const uint32_t chunk : renewed) {
      first.insert(first.begin(), {chunk, Kind::kFree});
      model_.sequence.chunks[chunk].undefined = true;
    }
  }

  // Runs of parameters that begin with a chunk of the largest state.
  void CutIntoParts() {
    size_t largest = kWeights;
    for (size_t i = 0; i < shape_.arenas.size(); ++i) {
      if (!IsGradient(i) && InChunk(i) < InChunk(largest)) largest = i;
    }
    const auto border_after = [&](uint64_t begin) {
      const double border = std::ceil((ChunkOf(begin, largest) + 1) * InChunk(largest));
      return std::min(trained_, std::max(begin + 1, static_cast<uint64_t>(border)));
    };
    for (uint64_t begin = 0; begin < trained_;) {
      uint64_t end = border_after(begin);
      while (end < trained_ && ChunksOf({begin, border_after(end)}) <= kPartChunks) {
        end = border_after(end);
      }
      parts_.push_back({begin, end});
      begin = end;
    }
  }

  // The chunks of a part that computes these parameters, shadow chunks included.
  uint32_t ChunksOf(Span trained) const {
    const auto count = [this](Span span, size_t arena) {
      return ChunkOf(span.end - 1, arena) - ChunkOf(span.begin, arena) + 1;
    };
    uint32_t chunks = 0;
    for (const Span weights : WeightsOf(trained)) chunks += 2 * count(weights, kWeights);
    for (size_t i = 1; i < shape_.arenas.size(); ++i) {
      chunks += (IsGradient(i) ? 1 : 2) * count(trained, i);
    }
    return chunks;
  }

  // Whether no gradient is to come in the chunks of a part's first parameters, and of none of these
  // parameters, after the backward pass of `last`.
  bool IsComplete(Span trained, const PlacedPart& last) const {
    if (trained.begin < last.trained.begin) return false;
    const auto is_apart = [this](uint64_t parameter, uint64_t first, size_t arena) {
      return first == 0 || ChunkOf(parameter, arena) != ChunkOf(first - 1, arena);
    };
    for (size_t i = 1; i < shape_.arenas.size(); ++i) {
      if (IsGradient(i) && !is_apart(trained.begin, last.trained.begin, i)) return false;
    }
    const Span weights = WeightsOf({trained.begin, trained.begin + 1}).front();
    return is_apart(weights.begin, last.weights.begin, kWeights);
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
    PlayedMoment& moment = model_.sequence.moments.back();
    moment.on_host = shape_.step_on_host;
    moment.is_part = in_parts_;
    for (size_t i = 1; i < shape_.arenas.size(); ++i) {
      Use(trained, i, IsGradient(i) ? Kind::kRead : Kind::kWrite);
    }
    for (const Span weights : WeightsOf(trained)) Use(weights, kWeights, Kind::kWrite);
  }

  const ModelShape& shape_;
  const bool in_parts_;
  uint64_t parameters_ = 0, trained_ = 0;
  std::vector<PlacedBlock> placed_;  // By block.
  std::vector<uint32_t> first_;      // By arena: its first chunk; then the number of all chunks.
  uint32_t chunks_ = 0;
  std::vector<Span> parts_;  // Trained parameters that are still to be stepped in parts.
  SyntheticModel model_;
};

}  // namespace

Bytes StatesOf(const ModelShape& shape) { return shape.chunk_size * Maker(shape).chunks(); }

SyntheticModel MakeSyntheticModel(const ModelShape& shape) { return Maker(shape).Make(); }

}  // namespace memtide
