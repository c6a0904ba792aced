#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/service/convert.h"
#include "daemon/service/request_parts.h"
#include "proto/digest_bytes.h"

namespace memtide {
namespace {

using optimizer::Format;
using optimizer::Place;

// An absent format means fp32.
absl::StatusOr<Format> ToFormat(absl::string_view field, v1::NumberFormat format) {
  MEMTIDE_RETURN_IF_ERROR(CheckKnown(field, format));
  switch (format) {
    case v1::NUMBER_FORMAT_BFLOAT16:
      return Format::kBfloat16;
    case v1::NUMBER_FORMAT_FLOAT16:
      return Format::kFloat16;
    default:
      return Format::kFloat32;
  }
}

absl::StatusOr<optimizer::Rule> ToRule(const v1::StepRequest& request) {
  if (request.has_adam()) {
    const v1::AdamRule& adam = request.adam();
    optimizer::AdamOptions rule = {adam.lr(), adam.beta1(), adam.beta2(), adam.eps(),
                                   adam.weight_decay()};
    if (adam.decoupled_weight_decay()) rule.decay = optimizer::WeightDecay::kDecoupled;
    rule.amsgrad = adam.amsgrad();
    rule.maximize = adam.maximize();
    return rule;
  }
  if (request.has_sgd()) {
    const v1::SgdRule& sgd = request.sgd();
    return optimizer::SgdOptions{sgd.lr(),           sgd.momentum(), sgd.dampening(),
                                 sgd.weight_decay(), sgd.nesterov(), sgd.maximize()};
  }
  if (request.has_adagrad()) {
    const v1::AdagradRule& adagrad = request.adagrad();
    optimizer::AdagradOptions rule;
    rule.lr = adagrad.lr();
    rule.lr_decay = adagrad.lr_decay();
    rule.weight_decay = adagrad.weight_decay();
    rule.eps = adagrad.eps();
    rule.maximize = adagrad.maximize();
    return rule;
  }
  if (request.has_lion()) {
    const v1::LionRule& lion = request.lion();
    return optimizer::LionOptions{lion.lr(), lion.beta1(), lion.beta2(), lion.weight_decay(),
                                  lion.maximize()};
  }
  if (request.pieces().empty()) return optimizer::SgdOptions();  // Copies only.
  return absl::InvalidArgumentError(
      "rule: none is given that is known here; known: adam, sgd, adagrad, lion");
}

Place ToPlace(const v1::ChunkPlace& place) { return {place.chunk(), place.offset_bytes()}; }

using ProtoPlaces = google::protobuf::RepeatedPtrField<v1::ChunkPlace>;

absl::Status ToStates(absl::string_view field, const ProtoPlaces& places,
                      std::array<absl::optional<Place>, optimizer::kMostStates>* states) {
  // The places are copied to an array of fixed size.
  if (places.size() > static_cast<int>(states->size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", places.size(), "; at most ", states->size()));
  }
  for (int i = 0; i < places.size(); ++i) (*states)[static_cast<size_t>(i)] = ToPlace(places[i]);
  return absl::OkStatus();
}

// Only counts and converts. optimizer::Validate() checks places and sizes, with the chunk size that
// the engine knows.
absl::StatusOr<optimizer::Work> ToWork(const v1::StepRequest& request, const Limits& limits) {
  // A message of two bytes makes a piece of two hundred.
  const int pieces = request.pieces_size() + request.copies_size();
  if (static_cast<uint32_t>(pieces) > limits.step_pieces) {
    return absl::InvalidArgumentError(
        absl::StrCat("pieces: ", pieces, " with copies; at most ", limits.step_pieces, " a call"));
  }
  optimizer::Work work;
  MEMTIDE_ASSIGN_OR_RETURN(work.rule, ToRule(request));
  work.step = request.step();
  // A part that only copies needs no number, but work counts steps from 1.
  if (work.step == 0 && request.pieces().empty()) work.step = 1;
  // An absent number reads as 0 in proto3; as a factor it would turn every gradient into zeros.
  work.gradient_factor = request.gradient_factor() == 0 ? 1 : request.gradient_factor();
  work.fresh_states = request.fresh_states();
  work.counts_non_finite = request.count_non_finite_gradients();
  MEMTIDE_ASSIGN_OR_RETURN(work.parameter_format,
                           ToFormat("parameter_format", request.parameter_format()));
  MEMTIDE_ASSIGN_OR_RETURN(work.gradient_format,
                           ToFormat("gradient_format", request.gradient_format()));
  MEMTIDE_ASSIGN_OR_RETURN(work.state_format, ToFormat("state_format", request.state_format()));
  if (request.rounded_format() != v1::NUMBER_FORMAT_UNSPECIFIED) {
    MEMTIDE_ASSIGN_OR_RETURN(work.rounded_format,
                             ToFormat("rounded_format", request.rounded_format()));
  }
  if (request.rounding_seed() != 0) work.rounding_seed = request.rounding_seed();
  work.pieces.reserve(static_cast<size_t>(request.pieces_size()));
  for (const v1::StepPiece& from : request.pieces()) {
    optimizer::Piece piece;
    piece.elements = from.elements();
    piece.gradient = ToPlace(from.gradient());
    piece.parameter = ToPlace(from.parameter());
    piece.new_parameter = ToPlace(from.new_parameter());
    MEMTIDE_RETURN_IF_ERROR(ToStates("states", from.states(), &piece.states));
    MEMTIDE_RETURN_IF_ERROR(ToStates("new_states", from.new_states(), &piece.new_states));
    if (from.has_new_rounded()) piece.new_rounded = ToPlace(from.new_rounded());
    piece.first_element = from.first_element();
    work.pieces.push_back(piece);
  }
  work.copies.reserve(static_cast<size_t>(request.copies_size()));
  for (const v1::CopyPiece& copy : request.copies()) {
    work.copies.push_back({ToPlace(copy.from()), ToPlace(copy.to()), copy.size_bytes()});
  }
  return work;
}

absl::StatusOr<Digest> ToDigest(absl::string_view field, absl::string_view bytes) {
  if (!bytes.empty() && bytes.size() != kDigestBytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": a digest of ", bytes.size(),
                                                   " bytes; it has ", kDigestBytes, ", or none"));
  }
  return FromProto(bytes);
}

// REQUIRES: the request names at most chunks_per_call chunks.
absl::StatusOr<absl::optional<PartContents>> ToContents(const v1::StartPartRequest& request) {
  PartContents contents;
  MEMTIDE_ASSIGN_OR_RETURN(contents.work, ToDigest("work_digest", request.work_digest()));
  if (!contents.work.is_set()) {
    if (request.read_digests().empty()) return {absl::nullopt};
    return absl::InvalidArgumentError("work_digest: not given; read_digests need it");
  }
  // `contents.reads` gets a digest for each, also if the request gives none.
  if (request.reads() > static_cast<uint32_t>(request.chunk_ids_size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("reads: ", request.reads(), " of ", request.chunk_ids_size(), " chunks"));
  }
  contents.reads.resize(request.reads());
  if (request.read_digests().empty()) return {std::move(contents)};
  if (static_cast<uint32_t>(request.read_digests_size()) != request.reads()) {
    return absl::InvalidArgumentError(absl::StrCat("read_digests: ", request.read_digests_size(),
                                                   "; must be none, or one for each of ",
                                                   request.reads(), " reads"));
  }
  for (int i = 0; i < request.read_digests_size(); ++i) {
    MEMTIDE_ASSIGN_OR_RETURN(contents.reads[static_cast<size_t>(i)],
                             ToDigest("read_digests", request.read_digests(i)));
  }
  return {std::move(contents)};
}

}  // namespace

absl::StatusOr<StepCall> ToEvent(const v1::StepRequest& request, const NodeDefaults& node) {
  StepCall event;
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  event.reads = request.reads();
  MEMTIDE_ASSIGN_OR_RETURN(optimizer::Work work, ToWork(request, node.limits));
  // The work is shared, because the engine passes it on to the threads that compute, without a
  // copy.
  event.work = std::make_shared<const optimizer::Work>(std::move(work));
  MEMTIDE_ASSIGN_OR_RETURN(event.moments, ToMoments(request.moments(), node.limits));
  MEMTIDE_ASSIGN_OR_RETURN(event.deadline,
                           ToDuration("deadline", request.deadline(), node.limits.max_wait));
  return event;
}

absl::StatusOr<StepCall> ToEvent(const v1::StartPartRequest& request, const NodeDefaults& node) {
  StepCall event;
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToSomeChunks(request.chunk_ids(), node.limits));
  event.reads = request.reads();
  event.part = request.part_id();
  MEMTIDE_ASSIGN_OR_RETURN(event.contents, ToContents(request));
  MEMTIDE_ASSIGN_OR_RETURN(event.moments, ToMoments(request.moments(), node.limits));
  MEMTIDE_ASSIGN_OR_RETURN(event.deadline,
                           ToDuration("deadline", request.deadline(), node.limits.max_wait));
  return event;
}

absl::StatusOr<EndPartCall> ToEvent(const v1::EndPartRequest& request, const NodeDefaults&) {
  EndPartCall event;
  event.part = request.part_id();
  event.computed = request.computed();
  event.non_finite_gradients = request.non_finite_gradients();
  return event;
}

absl::StatusOr<CommitCall> ToEvent(const v1::CommitRequest& request, const NodeDefaults& node) {
  CommitCall event;
  event.step = request.step();
  MEMTIDE_ASSIGN_OR_RETURN(event.chunks, ToChunks("chunk_ids", request.chunk_ids(), node.limits));
  MEMTIDE_ASSIGN_OR_RETURN(event.shadows,
                           ToChunks("shadow_chunk_ids", request.shadow_chunk_ids(), node.limits));
  if (request.versions_size() != 0 && request.versions_size() != request.chunk_ids_size()) {
    return absl::InvalidArgumentError(absl::StrCat("versions: ", request.versions_size(), " of ",
                                                   request.chunk_ids_size(), " chunks"));
  }
  for (const uint64_t version : request.versions()) event.versions.emplace_back(version);
  event.keep_old_content = request.keep_old_content();
  event.with_all_ranks = request.with_all_ranks();
  event.manifest = request.step_manifest();
  return event;
}

}  // namespace memtide
