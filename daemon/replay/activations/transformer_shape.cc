#include "daemon/replay/activations/transformer_shape.h"

#include <utility>

namespace memtide {

namespace {

Duration Nanoseconds(double seconds) { return Duration(static_cast<int64_t>(seconds * 1e9)); }

class Shaper {
 public:
  explicit Shaper(const TransformerShape& of) : of_(of) {}

  ModelShape Make() const {
    ModelShape shape;
    const auto bytes = static_cast<double>(of_.element_bytes);
    shape.arenas = {{ChunkKind::kParameter, bytes},
                    {ChunkKind::kGradient, bytes},
                    {ChunkKind::kOptimizerState, bytes},
                    {ChunkKind::kOptimizerState, bytes}};
    shape.micro_batches = of_.micro_batches;
    shape.chunk_size = of_.chunk_size;
    // Each of seven streams of a parameter passes the device's memory once.
    shape.step_ns_per_parameter = 7 * bytes / of_.memory_bytes_per_second * 1e9;

    PartShape embedding;
    embedding.parameters = embedding.trained = of_.vocabulary * of_.width;
    shape.blocks.push_back({"embedding", {embedding}, false});
    for (uint32_t i = 0; i < of_.layers; ++i) {
      shape.blocks.push_back({"layers." + std::to_string(i), {Attention(), Mlp()}, true});
    }
    PartShape head = OfMatrices(of_.vocabulary * of_.width);
    SavedOf(&head, SavedPart::kRest) =
        Elements(tokens() * (of_.width + of_.saves_logits * of_.vocabulary));
    shape.blocks.push_back({"head", {head}, false});
    return shape;
  }

 private:
  uint64_t tokens() const { return of_.sequence * of_.sequences; }
  Bytes Elements(uint64_t count) const { return Bytes(count * of_.element_bytes); }
  static Bytes& SavedOf(PartShape* part, SavedPart which) {
    return part->saved[static_cast<size_t>(which)];
  }

  PartShape OfMatrices(uint64_t parameters, double attention_seconds = 0) const {
    const double seconds =
        2 * static_cast<double>(tokens()) * static_cast<double>(parameters) / of_.flops_per_second;
    PartShape part;
    part.parameters = part.trained = parameters;
    part.forward = Nanoseconds(seconds + attention_seconds);
    part.recompute = part.forward;
    part.attention = part.forward - Nanoseconds(seconds);
    part.backward = Nanoseconds(2 * (seconds + attention_seconds));
    return part;
  }

  PartShape Attention() const {
    const uint64_t width = of_.width, attentions = 1 + of_.cross_attention, count = tokens();
    // Causal attention computes half of the square.
    const double kernel = static_cast<double>(attentions) * 2 * static_cast<double>(count) *
                          static_cast<double>(of_.sequence * width) / of_.flops_per_second;
    PartShape part = OfMatrices(
        attentions * (2 * width * width + 2 * width * of_.key_value_width + width), kernel);
    uint64_t results = count * width;
    if (of_.heads > 0) results += count * of_.sequence * of_.heads;
    SavedOf(&part, SavedPart::kInput) = Elements(count * width);
    SavedOf(&part, SavedPart::kAttention) = Elements(attentions * results);
    // Normalized, queries, and keys and values.
    SavedOf(&part, SavedPart::kRest) =
        Elements(attentions * count * 2 * (width + of_.key_value_width));
    return part;
  }

  PartShape Mlp() const {
    PartShape part = OfMatrices(of_.mlp_matrices * of_.width * of_.mlp_width + of_.width);
    // The sum before it, normalized, and each matrix's result and its function.
    SavedOf(&part, SavedPart::kRest) =
        Elements(tokens() * (2 * of_.width + of_.mlp_matrices * of_.mlp_width));
    return part;
  }

  const TransformerShape& of_;
};

}  // namespace

ModelShape ShapeOf(const TransformerShape& transformer) { return Shaper(transformer).Make(); }

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
