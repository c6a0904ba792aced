#include "daemon/replay/question.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/activations/judge.h"
#include "daemon/replay/activations/plan_report.h"
#include "daemon/replay/activations/search.h"
#include "daemon/replay/activations/state_traffic.h"
#include "daemon/replay/activations/synthetic_model.h"
#include "proto/kinds.h"

namespace memtide {

namespace {

// The search plays iterations of at most kFew micro-batches. Where there are more, its plan is
// played with up to kMore, or kMoreQuick in a short search, and each further one takes as long as
// these.
constexpr uint32_t kFew = 3, kMore = 8, kMoreQuick = 5;
constexpr uint32_t kMostMicroBatches = 1 << 20;
constexpr uint64_t kMostParts = 1 << 14;
constexpr uint64_t kMostParameters = uint64_t{1} << 50, kMostBytes = uint64_t{1} << 50;
constexpr int64_t kMostPlannedNanoseconds = int64_t{1} << 50;

absl::Status CheckBlock(const v1::PlannedBlock& block) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("block \"", block.name(), "\" has ", what));
  };
  if (block.parameters() > kMostParameters) return wrong("too many parameters");
  if (block.trained_parameters() > block.parameters()) {
    return wrong("more parameters that are trained than parameters");
  }
  for (const int64_t time :
       {block.forward_ns(), block.recompute_ns(), block.attention_ns(), block.backward_ns()}) {
    if (time < 0 || time > kMostPlannedNanoseconds) return wrong("a time that cannot be");
  }
  if (block.attention_ns() > std::min(block.forward_ns(), block.recompute_ns())) {
    return wrong("more attention than forward time");
  }
  for (const uint64_t bytes : {block.input_bytes(), block.attention_bytes(), block.rest_bytes()}) {
    if (bytes > kMostBytes) return wrong("more saved bytes than a node can have");
  }
  return absl::OkStatus();
}

PartShape PartOf(const v1::PlannedBlock& block) {
  PartShape part;
  part.parameters = block.parameters();
  part.trained = block.trained_parameters();
  part.forward = Duration(block.forward_ns());
  part.recompute = Duration(block.recompute_ns());
  part.attention = Duration(block.attention_ns());
  part.backward = Duration(block.backward_ns());
  part.saved = {Bytes(block.input_bytes()), Bytes(block.attention_bytes()),
                Bytes(block.rest_bytes())};
  return part;
}

LinkSpeed SpeedOf(const v1::PlannedLink& link) {
  return {link.bytes_per_second(), Duration(link.latency_ns())};
}

absl::Status CheckLinks(const v1::PlanQuestion& question) {
  for (const v1::PlannedLink* link : {&question.to_device(), &question.from_device(),
                                      &question.drive_read(), &question.drive_write()}) {
    const double speed = link->bytes_per_second();
    if (!(speed >= 1e3 && speed <= 1e18) || link->latency_ns() < 0 ||
        link->latency_ns() > kMostPlannedNanoseconds) {
      return absl::InvalidArgumentError(
          absl::StrCat("a link has ", speed, " bytes a second, which cannot be"));
    }
  }
  return absl::OkStatus();
}

// The chunks that one moment needs at once, its saved activations included, and as many as the
// next one may bring meanwhile.
uint32_t LeastSlots(const SyntheticModel& made) {
  std::vector<uint64_t> saved(made.sequence.moments.size(), 0);
  for (const v1::ActivationBlock& block : made.profile.blocks()) {
    for (const v1::SavedBytes& each : block.saved()) {
      saved[each.packed_moment()] += each.size_bytes();
    }
  }
  uint64_t most = 0;
  for (size_t i = 0; i < saved.size(); ++i) {
    // Parts have their chunks by turns where they do not fit.
    if (made.sequence.moments[i].is_part) continue;
    std::set<uint32_t> used;
    for (const ChunkEvent& event : made.sequence.moments[i].events) {
      if (event.IsUse()) used.insert(event.chunk);
    }
    const uint64_t size = made.sequence.chunk_size.count();
    most = std::max<uint64_t>(most, used.size() + (saved[i] + size - 1) / size);
  }
  return static_cast<uint32_t>(std::min<uint64_t>(most + 2, Limits().chunks));
}

absl::StatusOr<ActivationModel> ModelOf(const ModelShape& shape, const v1::PlanQuestion& question) {
  SyntheticModel made = MakeSyntheticModel(shape);
  const bool has_device = question.device_bytes() > 0;
  made.profile.set_budget_bytes(has_device ? question.device_bytes() : question.host_bytes());
  made.profile.set_least_slots(LeastSlots(made));
  return ToActivationModel(made.sequence, made.profile);
}

absl::optional<Choice> ForcedBy(v1::ActivationChoice choice) {
  switch (choice) {
    case v1::ACTIVATION_CHOICE_KEEP:
      return Choice::kKeep;
    case v1::ACTIVATION_CHOICE_RECOMPUTE:
      return Choice::kRecompute;
    case v1::ACTIVATION_CHOICE_UNSPECIFIED:
      return absl::nullopt;
    default:
      return Choice::kMove;
  }
}

SearchOptions OptionsFor(const v1::PlanQuestion& question) {
  SearchOptions options;
  options.most_time = Duration::max();
  options.most_replays = question.replays();
  options.forced = ForcedBy(question.activations());
  options.replays_forced = question.replays() > 0;
  options.foreseen = question.foreseen();
  ReplayOptions& replay = options.replay;
  const uint64_t chunk = question.chunk_bytes();
  replay.device_slots = question.device_bytes() > 0 ? 1 : 0;
  replay.host_slots =
      static_cast<uint32_t>(std::min<uint64_t>(question.host_bytes() / chunk, Limits().chunks));
  replay.links.to_device = SpeedOf(question.to_device());
  replay.links.from_device = SpeedOf(question.from_device());
  replay.links.disk_read = SpeedOf(question.drive_read());
  replay.links.disk_write = SpeedOf(question.drive_write());
  return options;
}

double Seconds(Duration time) { return std::chrono::duration<double>(time).count(); }
double Number(Bytes bytes) { return static_cast<double>(bytes.count()); }

// Figures of an iteration that grow with its micro-batches.
v1::PlanReply FiguresOf(const ActivationModel& model, const Verdict& verdict) {
  v1::PlanReply reply;
  double compute = 0, step = 0;
  for (const PlayedMoment& moment : model.states.moments) {
    (moment.phase == Phase::kStep ? step : compute) += Seconds(moment.compute);
  }
  reply.set_elapsed_s(Seconds(verdict.elapsed));
  reply.set_compute_s(compute + Seconds(verdict.recomputed));
  reply.set_recompute_s(Seconds(verdict.recomputed));
  reply.set_stalled_s(Seconds(verdict.stalled));
  reply.set_step_s(step);
  reply.set_to_device_bytes(Number(verdict.moved.to_device));
  reply.set_from_device_bytes(Number(verdict.moved.from_device));
  reply.set_drive_read_bytes(Number(verdict.moved.disk_read));
  reply.set_drive_written_bytes(Number(verdict.moved.disk_written));
  return reply;
}

// Sets times and bytes of `reply` to those of `more` with `times` further micro-batches. Each adds
// an `apart`-th of the difference between `more` and `few`.
void Extrapolate(const v1::PlanReply& few, const v1::PlanReply& more, double apart, double times,
                 v1::PlanReply* reply) {
  using Reply = v1::PlanReply;
  const auto add = [&](double (Reply::*get)() const, void (Reply::*set)(double)) {
    const double difference = ((more.*get)() - (few.*get)()) / apart;
    (reply->*set)(std::max(0.0, (more.*get)() + times * difference));
  };
  add(&Reply::elapsed_s, &Reply::set_elapsed_s);
  add(&Reply::compute_s, &Reply::set_compute_s);
  add(&Reply::recompute_s, &Reply::set_recompute_s);
  add(&Reply::stalled_s, &Reply::set_stalled_s);
  add(&Reply::step_s, &Reply::set_step_s);
  add(&Reply::to_device_bytes, &Reply::set_to_device_bytes);
  add(&Reply::from_device_bytes, &Reply::set_from_device_bytes);
  add(&Reply::drive_read_bytes, &Reply::set_drive_read_bytes);
  add(&Reply::drive_written_bytes, &Reply::set_drive_written_bytes);
}

absl::StatusOr<absl::optional<Verdict>> VerdictOf(const ActivationModel& model,
                                                  const Candidate& candidate,
                                                  const SearchOptions& options) {
  Timeline timeline(model, options.replay, kForeseenSlots);
  if (options.foreseen) return Foreseen(model, candidate, &timeline);
  return Judge(model, options.replay)(candidate);
}

// States that the tier holds beside what passes, by Belady's rule.
double ResidentBytes(const ActivationModel& model, uint32_t slots) {
  const StateTraffic traffic = TrafficOf(model.states, std::max(1u, slots), Below::kHost);
  uint64_t reads = 0;
  for (const uint32_t each : traffic.reads) reads += each;
  std::set<uint32_t> used;
  for (const PlayedMoment& moment : model.states.moments) {
    for (const ChunkEvent& event : moment.events) {
      if (event.IsUse() && !moment.on_host) used.insert(event.chunk);
    }
  }
  const uint64_t chunks = used.size();
  return Number(model.states.chunk_size) * static_cast<double>(chunks - std::min(chunks, reads));
}

}  // namespace

absl::StatusOr<ModelShape> ShapeOf(const v1::PlanQuestion& question) {
  ModelShape shape;
  uint64_t parts = 0;
  double parameters = 0, bytes_per_parameter = 0;
  for (const v1::PlannedBlock& block : question.blocks()) {
    MEMTIDE_RETURN_IF_ERROR(CheckBlock(block));
    const uint32_t count = std::max(1u, block.count());
    parts += count;
    if (parts > kMostParts) break;
    parameters += static_cast<double>(count) * static_cast<double>(block.parameters());
    for (uint32_t i = 0; i < count; ++i) {
      const std::string name = count == 1 ? block.name() : absl::StrCat(block.name(), ".", i);
      shape.blocks.push_back({name, {PartOf(block)}, block.recomputable()});
    }
  }
  for (const v1::PlannedArena& arena : question.arenas()) {
    if (!(arena.bytes_per_parameter() > 0 && arena.bytes_per_parameter() <= 64)) {
      return absl::InvalidArgumentError("an arena has no bytes for each parameter, or too many");
    }
    shape.arenas.push_back({FromProto(arena.kind()), arena.bytes_per_parameter()});
    bytes_per_parameter += arena.bytes_per_parameter();
  }
  shape.micro_batches = std::max(1u, question.micro_batches());
  if (parts == 0 || parts > kMostParts || shape.arenas.empty() || parameters < 1 ||
      shape.micro_batches > kMostMicroBatches) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a question has 1 to ", kMostParts, " blocks, at least one arena and one parameter, and ",
        "at most ", kMostMicroBatches, " micro-batches"));
  }
  const double chunks =
      parameters * bytes_per_parameter / static_cast<double>(question.chunk_bytes());
  if (question.chunk_bytes() < 4096 || !(chunks < Limits().chunks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("with chunks of ", question.chunk_bytes(), " bytes there are ", chunks,
                     " chunks; a node has at most ", Limits().chunks));
  }
  if (!(question.step_ns_per_parameter() >= 0 && question.step_ns_per_parameter() < 1e9)) {
    return absl::InvalidArgumentError("the optimizer's time for a parameter cannot be");
  }
  MEMTIDE_RETURN_IF_ERROR(CheckLinks(question));
  shape.chunk_size = Bytes(question.chunk_bytes());
  shape.step_ns_per_parameter = question.step_ns_per_parameter();
  shape.step_in_backward = question.step_in_backward();
  shape.step_on_host = question.step_on_host();
  return shape;
}

absl::StatusOr<v1::PlanReply> ReplyTo(const v1::PlanQuestion& question) {
  MEMTIDE_ASSIGN_OR_RETURN(ModelShape shape, ShapeOf(question));
  const uint32_t all = shape.micro_batches;
  shape.micro_batches = std::min(all, kFew);
  const SearchOptions options = OptionsFor(question);
  MEMTIDE_ASSIGN_OR_RETURN(const ActivationModel model, ModelOf(shape, question));
  MEMTIDE_ASSIGN_OR_RETURN(const Found found, Search(model, options));
  v1::PlanReply reply;
  const bool has_device = question.device_bytes() > 0;
  if (found.verdict.has_value()) {
    reply = FiguresOf(model, *found.verdict);
    reply.set_resident_bytes(ResidentBytes(model, found.verdict->division.slots));
    reply.set_chunk_bytes_at_most(Number(found.verdict->chunks));
  }
  *reply.mutable_plan() = ToProto(model, found, has_device);
  if (!found.verdict.has_value() || all <= kFew) return reply;
  const uint32_t more = std::min(all, question.replays() == 0 ? kMoreQuick : kMore);
  shape.micro_batches = more;
  MEMTIDE_ASSIGN_OR_RETURN(const ActivationModel longer, ModelOf(shape, question));
  MEMTIDE_ASSIGN_OR_RETURN(const absl::optional<Verdict> verdict,
                           VerdictOf(longer, found.candidate, options));
  MEMTIDE_CHECK(verdict.has_value());
  Extrapolate(FiguresOf(model, *found.verdict), FiguresOf(longer, *verdict), more - kFew,
              all - more, &reply);
  return reply;
}

v1::PlanReplies ReplyToAll(const v1::PlanQuestions& questions, size_t threads) {
  v1::PlanReplies replies;
  for (int i = 0; i < questions.questions_size(); ++i) replies.add_replies();
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int i = next++; i < questions.questions_size(); i = next++) {
      absl::StatusOr<v1::PlanReply> reply = ReplyTo(questions.questions(i));
      v1::PlanReply* const to = replies.mutable_replies(i);
      if (reply.ok()) {
        *to = *std::move(reply);
      } else {
        to->set_error(std::string(reply.status().message()));
      }
    }
  };
  std::vector<std::thread> running;
  for (size_t i = 1; i < threads; ++i) running.emplace_back(work);
  work();
  for (std::thread& thread : running) thread.join();
  return replies;
}

absl::StatusOr<v1::PlanQuestions> ReadQuestions(const std::string& json) {
  v1::PlanQuestions questions;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &questions);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("these are no questions: ", std::string(status.message())));
  }
  return questions;
}

std::string AsJson(const v1::PlanReplies& replies) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(replies, &json, options);
  MEMTIDE_CHECK(status.ok()) << std::string(status.message());
  return json;
}

}  // namespace memtide
