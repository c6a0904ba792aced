#include "daemon/planner/activations/synthetic_model.h"

#include <algorithm>
#include <utility>

namespace memtide {

namespace {

using Kind = ChunkEvent::Kind;

constexpr uint32_t kArenas = 4;  // Parameters, gradients, and Adam's two moments.

// Parameters of one sub-layer, as a part of each arena.
struct Span {
  uint64_t begin = 0, end = 0;  // In elements.
};

class Maker {
 public:
  explicit Maker(const TransformerShape& shape) : shape_(shape) {
    const uint64_t width = shape.width, attentions = 1 + shape.cross_attention;
    attention_parameters_ =
        attentions * (2 * width * width + 2 * width * shape.key_value_width + width);
    mlp_parameters_ = shape.mlp_matrices * width * shape.mlp_width + width;
    embedding_ = Take(shape.vocabulary * width);
    for (uint32_t i = 0; i < shape.layers; ++i) {
      attentions_.push_back(Take(attention_parameters_));
      mlps_.push_back(Take(mlp_parameters_));
    }
    head_ = Take(shape.vocabulary * width);
  }

  uint64_t parameters() const { return parameters_; }

  SyntheticModel Make() {
    AccessSequence& sequence = model_.sequence;
    sequence.chunk_size = shape_.chunk_size;
    constexpr ChunkKind kKinds[kArenas] = {ChunkKind::kParameter, ChunkKind::kGradient,
                                           ChunkKind::kOptimizerState, ChunkKind::kOptimizerState};
    for (const ChunkKind kind : kKinds) {
      for (uint32_t i = 0; i < Chunks(); ++i) sequence.chunks.push_back({kind, true});
    }
    for (uint32_t i = 0; i < shape_.layers; ++i) AddBlock("layers." + std::to_string(i));
    for (uint32_t i = 0; i < shape_.micro_batches; ++i) RunMicroBatch(i);
    for (uint32_t i = 0; i < Chunks(); ++i) StepChunk(i);
    sequence.iteration_ends = {sequence.moments.size()};
    model_.profile.set_iteration_moments(static_cast<uint32_t>(sequence.moments.size()));
    return std::move(model_);
  }

 private:
  uint64_t tokens() const { return shape_.sequence * shape_.sequences; }
  uint32_t moment() const { return static_cast<uint32_t>(model_.sequence.moments.size()) - 1; }

  Span Take(uint64_t parameters) {
    const Span span{parameters_, parameters_ + parameters};
    parameters_ += parameters;
    return span;
  }

  uint32_t Chunks() const {
    const Bytes size(parameters_ * shape_.element_bytes);
    return static_cast<uint32_t>((size + shape_.chunk_size - Bytes(1)) / shape_.chunk_size);
  }

  void AddBlock(const std::string& name) {
    v1::ActivationBlock* const block = model_.profile.add_blocks();
    block->set_name(name);
    block->set_recomputable(true);
    const double all = SecondsOfAttention(true) + SecondsOfMlp();
    block->set_forward_ns(static_cast<int64_t>(all * 1e9));
    block->set_forward_without_attention_ns(
        static_cast<int64_t>((SecondsOfAttention(false) + SecondsOfMlp()) * 1e9));
  }

  // Causal attention computes half of the square.
  double SecondsOfAttention(bool with_kernel) const {
    const auto count = static_cast<double>(tokens());
    const double matrices = 2 * count * static_cast<double>(attention_parameters_);
    const double kernel = static_cast<double>(1 + shape_.cross_attention) * 2 * count *
                          static_cast<double>(shape_.sequence * shape_.width);
    return (matrices + (with_kernel ? kernel : 0)) / shape_.flops_per_second;
  }
  double SecondsOfMlp() const {
    return 2 * static_cast<double>(tokens() * mlp_parameters_) / shape_.flops_per_second;
  }
  double SecondsOfHead() const {
    return 2 * static_cast<double>(tokens() * shape_.vocabulary * shape_.width) /
           shape_.flops_per_second;
  }

  void Begin(Phase phase, double seconds) {
    PlayedMoment moment;
    moment.phase = phase;
    moment.compute = Duration(static_cast<int64_t>(seconds * 1e9));
    model_.sequence.moments.push_back(std::move(moment));
  }

  void Use(Span span, uint32_t arena, Kind kind) {
    const uint64_t chunk = shape_.chunk_size.count() / shape_.element_bytes;
    for (uint64_t i = span.begin / chunk; i <= (span.end - 1) / chunk; ++i) {
      model_.sequence.moments.back().events.push_back(
          {static_cast<uint32_t>(arena * Chunks() + i), kind});
    }
  }

  v1::SavedBytes* Save(v1::SavedBytes* saved, v1::ActivationPart part, uint64_t elements,
                       uint32_t micro_batch) {
    saved->set_part(part);
    saved->set_size_bytes(elements * shape_.element_bytes);
    saved->set_packed_moment(moment());
    saved->set_micro_batch(micro_batch);
    return saved;
  }

  // Sets when what the layer saved in `packed` is used.
  void Unpack(v1::ActivationBlock* block, uint32_t packed) const {
    for (v1::SavedBytes& saved : *block->mutable_saved()) {
      if (saved.packed_moment() != packed) continue;
      saved.set_first_unpacked_moment(moment());
      saved.set_last_unpacked_moment(moment());
    }
  }

  void SaveAttention(v1::ActivationBlock* block, uint32_t micro_batch) {
    const uint64_t count = tokens(), attentions = 1 + shape_.cross_attention;
    Save(block->add_saved(), v1::ACTIVATION_PART_INPUT, count * shape_.width, micro_batch);
    uint64_t results = count * shape_.width;
    if (shape_.heads > 0) results += count * shape_.sequence * shape_.heads;
    Save(block->add_saved(), v1::ACTIVATION_PART_ATTENTION, attentions * results, micro_batch);
    // Normalized, queries, and keys and values.
    Save(block->add_saved(), v1::ACTIVATION_PART_REST,
         attentions * count * 2 * (shape_.width + shape_.key_value_width), micro_batch);
  }
  void SaveMlp(v1::ActivationBlock* block, uint32_t micro_batch) {
    // The sum before it, normalized, and each matrix's result and its function.
    Save(block->add_saved(), v1::ACTIVATION_PART_REST,
         tokens() * (2 * shape_.width + shape_.mlp_matrices * shape_.mlp_width), micro_batch);
  }

  void RunMicroBatch(uint32_t micro_batch) {
    std::vector<uint32_t> attention_moments, mlp_moments;
    Begin(Phase::kForward, 0);
    Use(embedding_, 0, Kind::kRead);
    for (uint32_t i = 0; i < shape_.layers; ++i) {
      v1::ActivationBlock* const block = model_.profile.mutable_blocks(static_cast<int>(i));
      Begin(Phase::kForward, SecondsOfAttention(true));
      Use(attentions_[i], 0, Kind::kRead);
      SaveAttention(block, micro_batch);
      attention_moments.push_back(moment());
      Begin(Phase::kForward, SecondsOfMlp());
      Use(mlps_[i], 0, Kind::kRead);
      SaveMlp(block, micro_batch);
      mlp_moments.push_back(moment());
    }
    Begin(Phase::kForward, SecondsOfHead());
    Use(head_, 0, Kind::kRead);
    v1::SavedBytes* const last =
        Save(model_.profile.add_others(), v1::ACTIVATION_PART_REST,
             tokens() * (shape_.width + shape_.saves_logits * shape_.vocabulary), micro_batch);
    Backward(head_, 2 * SecondsOfHead());
    last->set_first_unpacked_moment(moment());
    last->set_last_unpacked_moment(moment());
    for (uint32_t i = shape_.layers; i-- > 0;) {
      v1::ActivationBlock* const block = model_.profile.mutable_blocks(static_cast<int>(i));
      Backward(mlps_[i], 2 * SecondsOfMlp());
      Unpack(block, mlp_moments[i]);
      Backward(attentions_[i], 2 * SecondsOfAttention(true));
      Unpack(block, attention_moments[i]);
    }
    Backward(embedding_, 0);
  }

  void Backward(Span span, double seconds) {
    Begin(Phase::kBackward, seconds);
    Use(span, 0, Kind::kRead);
    Use(span, 1, Kind::kWrite);
  }

  void StepChunk(uint32_t chunk) {
    // Each of seven streams of a chunk passes the device's memory once.
    Begin(Phase::kStep,
          7 * static_cast<double>(shape_.chunk_size.count()) / shape_.memory_bytes_per_second);
    std::vector<ChunkEvent>& events = model_.sequence.moments.back().events;
    events.push_back({Chunks() + chunk, Kind::kRead});
    for (const uint32_t arena : {2u, 3u, 0u}) {
      events.push_back({arena * Chunks() + chunk, Kind::kWrite});
    }
  }

  const TransformerShape& shape_;
  uint64_t attention_parameters_ = 0, mlp_parameters_ = 0;  // In a layer.
  uint64_t parameters_ = 0;
  Span embedding_, head_;
  std::vector<Span> attentions_, mlps_;  // By layer.
  SyntheticModel model_;
};

}  // namespace

Bytes StatesOf(const TransformerShape& shape) {
  return Bytes(Maker(shape).parameters() * shape.element_bytes * kArenas);
}

SyntheticModel MakeSyntheticModel(const TransformerShape& shape) { return Maker(shape).Make(); }

TransformerShape DemoGpt() {
  TransformerShape shape;
  shape.name = "demo GPT";
  shape.layers = 12;
  shape.width = shape.key_value_width = 512;
  shape.mlp_width = 2048;
  shape.vocabulary = 256;
  shape.sequence = 256;
  shape.sequences = 16;
  shape.element_bytes = 4;
  shape.saves_logits = 1;
  shape.flops_per_second = 8e12;
  shape.memory_bytes_per_second = 300e9;
  shape.chunk_size = MiB(4);
  return shape;
}

TransformerShape Llama8B() {
  TransformerShape shape;
  shape.name = "Llama 3 8B";
  shape.layers = 32;
  shape.width = 4096;
  shape.key_value_width = 1024;
  shape.mlp_width = 14336;
  shape.mlp_matrices = 3;
  shape.vocabulary = 128256;
  shape.sequence = 8192;
  shape.sequences = 2;
  shape.micro_batches = 8;
  shape.flops_per_second = 480e12;
  shape.memory_bytes_per_second = 3e12;
  shape.chunk_size = MiB(256);
  return shape;
}

TransformerShape WideShallow() {
  TransformerShape shape;
  shape.name = "wide and shallow";
  shape.layers = 6;
  shape.width = shape.key_value_width = 8192;
  shape.mlp_width = 32768;
  shape.vocabulary = 32000;
  shape.sequence = 4096;
  shape.sequences = 4;
  shape.micro_batches = 2;
  shape.flops_per_second = 300e12;
  shape.memory_bytes_per_second = 2e12;
  shape.chunk_size = MiB(128);
  return shape;
}

TransformerShape HeavyAttention() {
  TransformerShape shape;
  shape.name = "heavy attention";
  shape.layers = 24;
  shape.width = shape.key_value_width = 1024;
  shape.mlp_width = 4096;
  shape.vocabulary = 32000;
  shape.cross_attention = 1;
  shape.sequence = 1024;
  shape.sequences = 8;
  shape.heads = 16;
  shape.saves_logits = 1;
  shape.flops_per_second = 150e12;
  shape.memory_bytes_per_second = 1.5e12;
  shape.chunk_size = MiB(32);
  return shape;
}

}  // namespace memtide
