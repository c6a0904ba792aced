// Implements client/memtide.h: optimizer steps, commits, versions and chunk ids.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/abi/client_call.h"
#include "client/abi/structs.h"
#include "client/memtide.h"

namespace {

using memtide::ChunkId;
using memtide::client::Client;
using memtide::client::CopyText;
using memtide::client::LeaseClient;
using memtide::client::NullArgument;
using memtide::client::PlaceId;
using memtide::client::PlaceRange;
using memtide::client::Places;
using memtide::client::PlacesAt;
using memtide::client::ReadCommonFields;
using memtide::client::StepPart;
using memtide::client::WithClient;
using memtide::client::WithLeases;
using memtide::client::WithPlaces;
namespace v1 = memtide::v1;

// Adam with AMSGrad has three states.
constexpr size_t kMaxStates = 3;

// SetOptions() casts the program's numbers to the protocol's.
static_assert(MEMTIDE_FLOAT32 == static_cast<int>(v1::NUMBER_FORMAT_FLOAT32), "");
static_assert(MEMTIDE_BFLOAT16 == static_cast<int>(v1::NUMBER_FORMAT_BFLOAT16), "");
static_assert(MEMTIDE_FLOAT16 == static_cast<int>(v1::NUMBER_FORMAT_FLOAT16), "");

absl::Status SetRule(const memtide_step_options& options, v1::StepRequest* request) {
  switch (options.rule) {
    case MEMTIDE_ADAM:
    // The two rules differ only in where the weight decay is applied.
    case MEMTIDE_ADAMW: {
      v1::AdamRule* const adam = request->mutable_adam();
      adam->set_lr(options.lr);
      adam->set_beta1(options.beta1);
      adam->set_beta2(options.beta2);
      adam->set_eps(options.eps);
      adam->set_weight_decay(options.weight_decay);
      adam->set_decoupled_weight_decay(options.rule == MEMTIDE_ADAMW);
      adam->set_amsgrad(options.amsgrad != 0);
      adam->set_maximize(options.maximize != 0);
      return absl::OkStatus();
    }
    case MEMTIDE_SGD: {
      v1::SgdRule* const sgd = request->mutable_sgd();
      sgd->set_lr(options.lr);
      sgd->set_momentum(options.momentum);
      sgd->set_dampening(options.dampening);
      sgd->set_weight_decay(options.weight_decay);
      sgd->set_nesterov(options.nesterov != 0);
      sgd->set_maximize(options.maximize != 0);
      return absl::OkStatus();
    }
    case MEMTIDE_ADAGRAD: {
      v1::AdagradRule* const adagrad = request->mutable_adagrad();
      adagrad->set_lr(options.lr);
      adagrad->set_lr_decay(options.lr_decay);
      adagrad->set_weight_decay(options.weight_decay);
      adagrad->set_eps(options.eps);
      adagrad->set_maximize(options.maximize != 0);
      return absl::OkStatus();
    }
    case MEMTIDE_LION: {
      v1::LionRule* const lion = request->mutable_lion();
      lion->set_lr(options.lr);
      lion->set_beta1(options.beta1);
      lion->set_beta2(options.beta2);
      lion->set_weight_decay(options.weight_decay);
      lion->set_maximize(options.maximize != 0);
      return absl::OkStatus();
    }
    default:
      return absl::UnimplementedError(absl::StrCat("rule ", options.rule, " is not one of ",
                                                   MEMTIDE_ADAM, " to ", MEMTIDE_LION));
  }
}

absl::Status SetOptions(const memtide_step_options* given, v1::StepRequest* request) {
  MEMTIDE_ASSIGN_OR_RETURN(const memtide_step_options options, ReadCommonFields("options", given));
  MEMTIDE_RETURN_IF_ERROR(SetRule(options, request));
  request->set_step(options.step);
  request->set_gradient_factor(options.gradient_factor);
  request->set_fresh_states(options.fresh_states != 0);
  // The daemon refuses numbers that it does not know.
  request->set_parameter_format(static_cast<v1::NumberFormat>(options.parameter_format));
  request->set_gradient_format(static_cast<v1::NumberFormat>(options.gradient_format));
  request->set_count_non_finite_gradients(options.non_finite_gradients != nullptr);
  request->set_state_format(static_cast<v1::NumberFormat>(options.state_format));
  request->set_rounded_format(static_cast<v1::NumberFormat>(options.rounded_format));
  request->set_rounding_seed(options.rounding_seed);
  return absl::OkStatus();
}

// Converts addresses to chunk numbers and offsets. A request numbers the chunks that it reads
// before those that it writes, so the written ones get their final numbers in Finish.
class Numbering {
 public:
  explicit Numbering(const Client::Properties& properties) : properties_(properties) {}

  void Read(uint64_t address, v1::ChunkPlace* place) { Number(address, &read_, place); }
  void Write(uint64_t address, v1::ChunkPlace* place) {
    Number(address, &written_, place);
    later_.push_back(place);
  }

  // Fills `part` in. INVALID_ARGUMENT: an address is outside the range, or a chunk is read and
  // written.
  absl::Status Finish(StepPart* part) {
    MEMTIDE_RETURN_IF_ERROR(status_);
    part->reads = static_cast<uint32_t>(read_.size());
    part->places.resize(read_.size() + written_.size());
    for (const auto& [place, number] : read_) part->places[number] = PlaceId(place);
    for (const auto& [place, number] : written_) {
      part->places[part->reads + number] = PlaceId(place);
      // A step part that overwrote what it reads could not be repeated with the same result
      // (decision 13).
      if (read_.count(place) == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the chunk at place ", place,
                       " is to be read and written; new content goes to a chunk that is not read"));
    }
    for (v1::ChunkPlace* const place : later_) place->set_chunk(place->chunk() + part->reads);
    return absl::OkStatus();
  }

 private:
  using Numbers = std::map<uint32_t, uint32_t>;

  void Number(uint64_t address, Numbers* numbers, v1::ChunkPlace* place) {
    const uint64_t base = reinterpret_cast<uint64_t>(properties_.base);
    const uint64_t chunk = properties_.job.chunk_size.count();
    if (base == 0 || address < base || (address - base) / chunk >= properties_.places) {
      // The first error counts; Finish() returns it, so that callers of Read() and Write() need no
      // check.
      status_.Update(absl::InvalidArgumentError(
          absl::StrCat("address ", address, " is not in the client's range")));
      return;
    }
    const auto at = static_cast<uint32_t>((address - base) / chunk);
    // A chunk that is named again has its first number.
    const auto number = numbers->emplace(at, static_cast<uint32_t>(numbers->size())).first->second;
    place->set_chunk(number);
    place->set_offset_bytes((address - base) % chunk);
  }

  const Client::Properties& properties_;
  Numbers read_, written_;
  std::vector<v1::ChunkPlace*> later_;  // Places in written chunks, to be renumbered.
  absl::Status status_;
};

void AddPiece(const memtide_step_piece& piece, Numbering* numbering, v1::StepRequest* request) {
  v1::StepPiece* const added = request->add_pieces();
  added->set_elements(piece.elements);
  numbering->Read(piece.gradient, added->mutable_gradient());
  numbering->Read(piece.parameter, added->mutable_parameter());
  numbering->Write(piece.new_parameter, added->mutable_new_parameter());
  // new_state ends at the first zero, because no rule has a later state without the earlier ones.
  for (size_t i = 0; i < kMaxStates && piece.new_state[i] != 0; ++i) {
    // The daemon initializes fresh states itself, so that their chunks need not be fetched.
    if (!request->fresh_states()) numbering->Read(piece.state[i], added->add_states());
    numbering->Write(piece.new_state[i], added->add_new_states());
  }
  if (piece.new_rounded != 0) numbering->Write(piece.new_rounded, added->mutable_new_rounded());
  added->set_first_element(piece.first_element);
}

}  // namespace

extern "C" {

int memtide_step(memtide_client* client, const memtide_step_options* options,
                 const memtide_step_piece* pieces, size_t piece_count,
                 const memtide_copy_piece* copies, size_t copy_count) {
  return WithClient(client, [&](Client& opened) -> absl::Status {
    if (pieces == nullptr && piece_count > 0) return NullArgument("pieces");
    if (copies == nullptr && copy_count > 0) return NullArgument("copies");
    if (options == nullptr && piece_count > 0) return NullArgument("options");
    // The daemon refuses a part without chunks.
    if (piece_count + copy_count == 0) return absl::OkStatus();
    StepPart part;
    // Options may be missing where the part only copies.
    if (options != nullptr) MEMTIDE_RETURN_IF_ERROR(SetOptions(options, &part.request));
    MEMTIDE_RETURN_IF_ERROR(opened.CheckProcess());
    Numbering numbering(opened.properties());
    for (size_t i = 0; i < piece_count; ++i) AddPiece(pieces[i], &numbering, &part.request);
    for (size_t i = 0; i < copy_count; ++i) {
      v1::CopyPiece* const copy = part.request.add_copies();
      numbering.Read(copies[i].from, copy->mutable_from());
      numbering.Write(copies[i].to, copy->mutable_to());
      copy->set_size_bytes(copies[i].bytes);
    }
    MEMTIDE_RETURN_IF_ERROR(numbering.Finish(&part));
    MEMTIDE_ASSIGN_OR_RETURN(const uint64_t non_finite, opened.leases()->Step(part));
    if (part.request.count_non_finite_gradients()) *options->non_finite_gradients = non_finite;
    return absl::OkStatus();
  });
}

int memtide_commit(memtide_client* client, uint64_t step, const uint32_t* places,
                   const uint32_t* shadow_places, size_t count, const uint64_t* ids,
                   const uint64_t* versions, int how, const void* manifest, size_t manifest_bytes) {
  return WithPlaces(client, places, count, [&](LeaseClient& leases, Places at) -> absl::Status {
    if (shadow_places == nullptr && count > 0) return NullArgument("shadow_places");
    if (manifest == nullptr && manifest_bytes > 0) return NullArgument("manifest");
    memtide::client::CommitRequest commit;
    commit.committed.step = step;
    // The manifest is opaque here: the next process of the job reads it to resume.
    commit.committed.manifest.assign(static_cast<const char*>(manifest), manifest_bytes);
    commit.keep_old_content = (how & MEMTIDE_KEEP_OLD_CONTENT) != 0;
    commit.with_all_ranks = (how & MEMTIDE_WITH_ALL_RANKS) != 0;
    if ((ids == nullptr) != (versions == nullptr)) {
      return NullArgument(ids == nullptr ? "ids" : "versions");
    }
    for (size_t i = 0; ids != nullptr && i < count; ++i) {
      commit.unwritten.push_back({ChunkId(ids[i]), versions[i]});
    }
    return leases.Commit(commit, at, PlacesAt(shadow_places, count));
  });
}

int memtide_committed(memtide_client* client, uint64_t* step, char** manifest,
                      size_t* manifest_bytes) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    if (step == nullptr) return NullArgument("step");
    if (manifest == nullptr) return NullArgument("manifest");
    if (manifest_bytes == nullptr) return NullArgument("manifest_bytes");
    // A caller may free the text even after an error.
    *manifest = nullptr;
    const memtide::client::CommittedStep committed = leases.committed();
    *step = committed.step;
    *manifest_bytes = committed.manifest.size();
    return CopyText(committed.manifest, manifest);
  });
}

int memtide_versions(memtide_client* client, const uint32_t* places, size_t count, uint64_t* ids,
                     uint64_t* versions) {
  return WithPlaces(client, places, count, [&](LeaseClient& leases, Places at) -> absl::Status {
    if (ids == nullptr && count > 0) return NullArgument("ids");
    if (versions == nullptr && count > 0) return NullArgument("versions");
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<memtide::client::ChunkVersion> found,
                             leases.Versions(at));
    // A version says something only with its id: the place may have another chunk later.
    for (size_t i = 0; i < found.size(); ++i) {
      ids[i] = found[i].chunk.value();
      versions[i] = found[i].version;
    }
    return absl::OkStatus();
  });
}

int memtide_chunk_ids(memtide_client* client, uint32_t first_place, uint32_t count, uint64_t* ids) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    if (ids == nullptr && count > 0) return NullArgument("ids");
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks,
                             leases.ChunkIds(PlaceRange{PlaceId(first_place), count}));
    for (size_t i = 0; i < chunks.size(); ++i) ids[i] = chunks[i].value();
    return absl::OkStatus();
  });
}

int memtide_attach(memtide_client* client, const uint64_t* ids, uint32_t count,
                   uint32_t* first_place) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    if (ids == nullptr && count > 0) return NullArgument("ids");
    if (first_place == nullptr) return NullArgument("first_place");
    std::vector<ChunkId> chunks;
    for (uint32_t i = 0; i < count; ++i) chunks.emplace_back(ids[i]);
    MEMTIDE_ASSIGN_OR_RETURN(const PlaceRange range, leases.Attach(chunks));
    *first_place = range.first.value();
    return absl::OkStatus();
  });
}

}  // extern "C"
