#include "daemon/replay/activations/activation_model.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace memtide {

namespace {

using Kind = ChunkEvent::Kind;

constexpr size_t kMostBlocks = 1 << 16, kMostSaved = 1 << 20;
// 2^50 bytes are more than a node has; sums of 2^12 of them cannot overflow.
constexpr uint64_t kMostBytes = uint64_t{1} << 50;
constexpr int64_t kMostNanoseconds = int64_t{1} << 50;

absl::StatusOr<Saved> ToSaved(const v1::SavedBytes& from, size_t moments, SavedPart part) {
  if (from.size_bytes() > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat("saves ", from.size_bytes(), " bytes at once"));
  }
  Saved saved;
  saved.part = part;
  saved.size = Bytes(from.size_bytes());
  saved.packed = from.packed_moment();
  saved.first_unpacked = from.first_unpacked_moment();
  saved.last_unpacked = from.last_unpacked_moment();
  saved.micro_batch = from.micro_batch();
  if (saved.last_unpacked >= moments) {
    return absl::InvalidArgumentError(absl::StrCat("unpacks in moment ", saved.last_unpacked,
                                                   "; the iteration has ", moments, " moments"));
  }
  if (saved.micro_batch >= moments) {
    return absl::InvalidArgumentError(absl::StrCat("has micro-batch ", saved.micro_batch,
                                                   " in an iteration of ", moments, " moments"));
  }
  if (saved.packed > saved.first_unpacked || saved.first_unpacked > saved.last_unpacked) {
    return absl::InvalidArgumentError(absl::StrCat(
        "packs in moment ", saved.packed, " and unpacks from moment ", saved.first_unpacked, " to ",
        saved.last_unpacked, ": the order of moments is packed, first unpacked, last unpacked"));
  }
  return saved;
}

absl::StatusOr<SavedPart> ToPart(v1::ActivationPart part) {
  switch (part) {
    case v1::ACTIVATION_PART_INPUT:
      return SavedPart::kInput;
    case v1::ACTIVATION_PART_ATTENTION:
      return SavedPart::kAttention;
    case v1::ACTIVATION_PART_REST:
      return SavedPart::kRest;
    default:
      return absl::InvalidArgumentError(absl::StrCat("saves the unknown part ", part));
  }
}

absl::Status ReadBlock(const v1::ActivationBlock& from, size_t moments, Block* block) {
  block->name = from.name();
  block->recomputable = from.recomputable();
  for (const int64_t time : {from.forward_ns(), from.forward_without_attention_ns()}) {
    if (time < 0 || time > kMostNanoseconds) {
      return absl::InvalidArgumentError(absl::StrCat("takes ", time, " ns, which cannot be"));
    }
  }
  if (from.forward_without_attention_ns() > from.forward_ns()) {
    return absl::InvalidArgumentError("takes more time without attention than with it");
  }
  block->forward = Duration(from.forward_ns());
  block->forward_without_attention = from.forward_without_attention_ns() == 0
                                         ? block->forward
                                         : Duration(from.forward_without_attention_ns());
  for (const v1::SavedBytes& each : from.saved()) {
    MEMTIDE_ASSIGN_OR_RETURN(const SavedPart part, ToPart(each.part()));
    MEMTIDE_ASSIGN_OR_RETURN(const Saved saved, ToSaved(each, moments, part));
    if (saved.size.IsZero()) continue;
    Bytes& sum = block->bytes[static_cast<size_t>(part)];
    if (sum.count() + saved.size.count() > kMostBytes) {
      return absl::InvalidArgumentError("saves more bytes than a node can have");
    }
    sum += saved.size;
    block->saved.push_back(saved);
  }
  return absl::OkStatus();
}

// One call for each micro-batch in which the block saves the rest or attention's results. Forward
// reaches from the end of the block before it to the last moment in which it saves something.
void FindCalls(std::map<uint32_t, uint32_t>* ends, Block* block) {
  std::map<uint32_t, BlockCall> calls;
  for (const Saved& saved : block->saved) {
    const auto [at, is_new] = calls.try_emplace(saved.micro_batch);
    BlockCall& call = at->second;
    if (is_new) {
      call = {saved.micro_batch, saved.packed, saved.packed, ~uint32_t{0}, ~uint32_t{0}};
    }
    call.forward_begin = std::min(call.forward_begin, saved.packed);
    call.forward_end = std::max(call.forward_end, saved.packed);
    if (saved.part == SavedPart::kInput) continue;
    call.attention_needed = std::min(call.attention_needed, saved.first_unpacked);
    if (saved.part == SavedPart::kRest) {
      call.rest_needed = std::min(call.rest_needed, saved.first_unpacked);
    }
  }
  for (auto& [micro_batch, call] : calls) {
    const auto [end, is_first] = ends->try_emplace(micro_batch, 0);
    if (!is_first && end->second < call.forward_end) call.forward_begin = end->second + 1;
    end->second = call.forward_end;
    for (Saved& saved : block->saved) {
      if (saved.micro_batch != micro_batch) continue;
      saved.call = static_cast<uint32_t>(block->calls.size());
    }
    block->calls.push_back(call);
  }
}

// The iteration, with the chunks that exist when it begins, and without those of activations.
AccessSequence OneIteration(const AccessSequence& sequence, size_t iteration) {
  AccessSequence one;
  one.chunk_size = sequence.chunk_size;
  one.device_slots = sequence.device_slots;
  one.host_slots = sequence.host_slots;
  one.ssd_slots = sequence.ssd_slots;
  one.chunks = sequence.chunks;
  const size_t begin = sequence.IterationBegin(iteration);
  for (size_t i = 0; i < begin; ++i) {
    for (const ChunkEvent& event : sequence.moments[i].events) {
      one.chunks[event.chunk].from_start = event.kind != Kind::kFree;
    }
  }
  for (size_t i = begin; i < sequence.iteration_ends[iteration]; ++i) {
    PlayedMoment moment;
    moment.phase = sequence.moments[i].phase;
    moment.compute = sequence.moments[i].compute;
    moment.on_host = sequence.moments[i].on_host;
    moment.is_part = sequence.moments[i].is_part;
    for (const ChunkEvent& event : sequence.moments[i].events) {
      if (one.chunks[event.chunk].kind == ChunkKind::kActivation) continue;
      moment.events.push_back(event);
    }
    one.moments.push_back(std::move(moment));
  }
  for (PlayedChunk& chunk : one.chunks) {
    if (chunk.kind == ChunkKind::kActivation) chunk.from_start = false;
  }
  one.iteration_ends = {one.moments.size()};
  return one;
}

void Scale(double factor, ActivationModel* model) {
  const auto scale = [factor](Duration* time) {
    *time = Duration(static_cast<int64_t>(static_cast<double>(time->count()) * factor));
  };
  for (PlayedMoment& moment : model->states.moments) scale(&moment.compute);
  for (Block& block : model->blocks) {
    scale(&block.forward);
    scale(&block.forward_without_attention);
  }
}

absl::StatusOr<size_t> ProfiledIteration(const AccessSequence& sequence, uint32_t moments) {
  for (size_t i = sequence.iterations(); i-- > 0;) {
    const size_t has = sequence.iteration_ends[i] - sequence.IterationBegin(i);
    if (moments == 0 || has == moments) return i;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the profile is of an iteration of ", moments, " moments, and none of the ",
                   sequence.iterations(), " iterations in the trace has as many"));
}

}  // namespace

absl::StatusOr<ActivationModel> ToActivationModel(const AccessSequence& sequence,
                                                  const v1::ActivationProfile& profile,
                                                  double compute_scale) {
  const auto blocks = static_cast<size_t>(profile.blocks_size());
  if (blocks == 0 || blocks > kMostBlocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the profile has ", blocks, " blocks; a plan is for 1 to ", kMostBlocks));
  }
  if (profile.budget_bytes() > kMostBytes || profile.least_slots() > Limits().chunks ||
      profile.fixed_slots() > Limits().chunks || sequence.chunk_size.IsZero()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the profile has a budget of ", profile.budget_bytes(), " bytes, at least ",
        profile.least_slots(), " slots and ", profile.fixed_slots(), " fixed slots, for chunks of ",
        FormatBytes(sequence.chunk_size), ", which cannot be"));
  }
  ActivationModel model;
  MEMTIDE_ASSIGN_OR_RETURN(const size_t iteration,
                           ProfiledIteration(sequence, profile.iteration_moments()));
  model.states = OneIteration(sequence, iteration);
  size_t saved = static_cast<size_t>(profile.others_size());
  for (const v1::ActivationBlock& block : profile.blocks()) {
    saved += static_cast<size_t>(block.saved_size());
  }
  if (saved > kMostSaved) {
    return absl::InvalidArgumentError(absl::StrCat("the profile has ", saved, " saved parts"));
  }
  std::map<uint32_t, uint32_t> ends;  // The block before ends there, by micro-batch.
  for (const v1::ActivationBlock& from : profile.blocks()) {
    Block block;
    if (absl::Status status = ReadBlock(from, model.moments(), &block); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", model.blocks.size(), " of the profile ", status.message()));
    }
    FindCalls(&ends, &block);
    model.blocks.push_back(std::move(block));
  }
  for (const v1::SavedBytes& each : profile.others()) {
    absl::StatusOr<Saved> other = ToSaved(each, model.moments(), SavedPart::kRest);
    if (!other.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("outside of blocks, the profile ", other.status().message()));
    }
    if (!other->size.IsZero()) model.others.push_back(*other);
  }
  model.budget = Bytes(profile.budget_bytes());
  model.least_slots = std::max(kMinSlots, profile.least_slots());
  model.fixed_slots = profile.fixed_slots();
  Scale(compute_scale, &model);
  return model;
}

absl::StatusOr<v1::ActivationProfile> LoadActivationProfile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError("the profile cannot be read");
  std::ostringstream read;
  read << file.rdbuf();
  const std::string text = read.str();
  v1::ActivationProfile profile;
  google::protobuf::util::JsonParseOptions options;
  // A newer client may say more.
  options.ignore_unknown_fields = true;
  const auto status = google::protobuf::util::JsonStringToMessage(text, &profile, options);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is not an activation profile: ", std::string(status.message())));
  }
  return profile;
}

}  // namespace memtide
