#include "daemon/replay/activations/timeline.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/types/optional.h"
#include "base/check.h"
#include "daemon/replay/activations/numbers.h"
#include "daemon/replay/activations/state_traffic.h"

namespace memtide {

namespace {

// Traffic of states is computed for this many numbers of slots at most between zero and all.
constexpr uint32_t kDistinctSlots = 64;

}  // namespace

Timeline::Timeline(const ActivationModel& model, const ReplayOptions& options,
                   const TransferSlots& transfers)
    : model_(model),
      options_(options),
      transfers_(transfers),
      chunks_(MostChunks(model.states)),
      shadows_(static_cast<uint32_t>(ShadowedChunks(model.states).size())) {}

LinkBytes Timeline::BytesOf(const Candidate& candidate) {
  const absl::optional<Division> division = Divide(model_, MostKept(model_, candidate));
  MEMTIDE_CHECK(division.has_value());
  const auto sum = [](const std::vector<double>& bytes) {
    return Bytes(static_cast<uint64_t>(std::accumulate(bytes.begin(), bytes.end(), 0.0)));
  };
  LinkBytes moved;
  const bool has_device = options_.device_slots > 0;
  if (has_device) {
    const Flow flow = FlowOf(candidate, BoundaryOf(division->slots, false));
    moved.to_device = sum(flow.in);
    moved.from_device = sum(flow.out);
    if (options_.host_slots >= chunks_) return moved;
  }
  const Flow flow = FlowOf(
      candidate,
      BoundaryOf(has_device ? division->slots + options_.host_slots : division->slots, true));
  moved.disk_read = sum(flow.in);
  moved.disk_written = sum(flow.out);
  return moved;
}

double Timeline::SecondsOf(const Candidate& candidate) {
  const absl::optional<Division> division = Divide(model_, MostKept(model_, candidate));
  if (!division.has_value()) return std::numeric_limits<double>::infinity();
  SetCompute(candidate);
  const bool has_device = options_.device_slots > 0;
  double seconds = 0;
  if (has_device) {
    const Boundary boundary = BoundaryOf(division->slots, false);
    seconds = Play(FlowOf(candidate, boundary), boundary);
    // Host memory may hold all that is not on the device.
    if (options_.host_slots >= chunks_) return seconds;
  }
  const Boundary disk =
      BoundaryOf(has_device ? division->slots + options_.host_slots : division->slots, true);
  return std::max(seconds, Play(FlowOf(candidate, disk), disk));
}

Timeline::Boundary Timeline::BoundaryOf(uint32_t slots, bool is_disk) const {
  Boundary boundary;
  const double all = slots, chunk = Number(model_.states.chunk_size);
  boundary.slots =
      static_cast<uint32_t>(std::max(1.0, all - std::max(1.0, all * transfers_.aside)));
  boundary.in_window = chunk * std::max(1.0, all * transfers_.read_ahead);
  boundary.out_window = chunk * std::max(1.0, all * transfers_.waiting);
  const LinkOptions& links = options_.links;
  boundary.in_bytes_a_second = (is_disk ? links.disk_read : links.to_device).bytes_per_second;
  boundary.out_bytes_a_second = (is_disk ? links.disk_write : links.from_device).bytes_per_second;
  boundary.one_at_a_time = is_disk;
  return boundary;
}

const Timeline::Flow& Timeline::StatesOf(const Boundary& boundary) {
  const uint32_t slots = boundary.slots, chunks = ChunksAbove(boundary);
  const uint32_t step = std::max(1u, chunks / kDistinctSlots);
  // All numbers above the count of chunks are alike, and those below are rounded down.
  const uint32_t key = slots >= chunks ? chunks : std::max(1u, slots / step * step);
  const bool is_disk = boundary.one_at_a_time;
  const auto [at, is_new] = states_.try_emplace({is_disk, std::max(1u, key)});
  Flow& flow = at->second;
  if (!is_new) return flow;
  const StateTraffic traffic =
      TrafficOf(model_.states, std::max(1u, key), is_disk ? Below::kDisk : Below::kHost);
  const double size = Number(model_.states.chunk_size);
  for (const uint32_t reads : traffic.reads) flow.in.push_back(size * reads);
  for (const uint32_t writes : traffic.writes) flow.out.push_back(size * writes);
  return flow;
}

Timeline::Flow Timeline::FlowOf(const Candidate& candidate, const Boundary& boundary) {
  Flow flow = StatesOf(boundary);
  flow.after.assign(model_.moments(), 0);
  // Slots that states leave free hold what is needed again soonest: what was saved last.
  std::vector<double> room;  // By micro-batch.
  const uint32_t chunks = ChunksAbove(boundary);
  const double spare =
      boundary.slots > chunks ? Number(model_.states.chunk_size) * (boundary.slots - chunks) : 0;
  const auto move = [&](const Saved& saved, uint32_t needed) {
    if (saved.micro_batch >= room.size()) room.resize(saved.micro_batch + 1, spare);
    double& left = room[saved.micro_batch];
    const double stays = std::min(left, Number(saved.size));
    left -= stays;
    flow.out[saved.packed] += Number(saved.size) - stays;
    flow.in[needed] += Number(saved.size) - stays;
    if (stays < Number(saved.size) && saved.packed < needed) {
      flow.after[needed] = std::max(flow.after[needed], saved.packed + size_t{1});
    }
  };
  if (candidate.others == Choice::kMove) {
    for (const Saved& saved : model_.others) move(saved, saved.first_unpacked);
  }
  for (size_t i = model_.blocks.size(); i-- > 0;) {
    const Block& block = model_.blocks[i];
    const BlockChoice& choice = candidate.blocks[i];
    for (const Saved& saved : block.saved) {
      if (choice.of(saved.part) != Choice::kMove) continue;
      const bool again = choice.rest == Choice::kRecompute;
      move(saved,
           again ? std::min(saved.first_unpacked, RecomputedFrom(block.calls[saved.call], choice))
                 : saved.first_unpacked);
    }
  }
  return flow;
}

void Timeline::SetCompute(const Candidate& candidate) {
  compute_.clear();
  for (const PlayedMoment& moment : model_.states.moments) {
    compute_.push_back(Seconds(moment.compute));
  }
  for (size_t i = 0; i < model_.blocks.size(); ++i) {
    const Block& block = model_.blocks[i];
    const BlockChoice& choice = candidate.blocks[i];
    if (choice.rest != Choice::kRecompute) continue;
    const bool all = choice.attention == Choice::kRecompute;
    const double again = Seconds(all ? block.forward : block.forward_without_attention);
    for (const BlockCall& call : block.calls) {
      const uint32_t from = RecomputedFrom(call, choice);
      if (from < compute_.size()) compute_[from] += again;
    }
  }
}

double Timeline::Play(const Flow& flow, const Boundary& boundary) {
  const size_t moments = compute_.size();
  const double in_cost = 1 / boundary.in_bytes_a_second;
  const double out_cost = 1 / boundary.out_bytes_a_second;
  // Two rounds: the first one ends as the second one begins.
  // The values at the beginning, and after each moment.
  std::vector<double> ends{0}, in_sums{0}, outs{0}, out_sums{0};
  for (std::vector<double>* const each : {&ends, &in_sums, &outs, &out_sums}) {
    each->reserve(2 * moments + 1);
  }
  double in_done = 0, out_done = 0, end = 0, half = 0, in_sum = 0, out_sum = 0;
  double parts_end = 0;  // When all parts until now have been computed.
  size_t in_from = 0, out_from = 0;
  for (size_t i = 0; i < 2 * moments; ++i) {
    const size_t at = i % moments;
    if (i == moments) half = end;
    in_sum += flow.in[at];
    // The slots set aside hold what is read ahead, so the read begins when enough earlier moments
    // have ended.
    while (in_from < i && in_sum - in_sums[in_from] > boundary.in_window) ++in_from;
    if (flow.in[at] > 0) {
      if (boundary.one_at_a_time) in_done = std::max(in_done, out_done);
      if (flow.after[at] > 0) in_done = std::max(in_done, outs[i - at + flow.after[at]]);
      in_done = std::max(in_done, ends[in_from]) + flow.in[at] * in_cost;
    }
    while (out_from < i && out_sum - out_sums[out_from] > boundary.out_window) ++out_from;
    const bool is_part = model_.states.moments[at].is_part;
    double begin = std::max(end, outs[out_from]);
    if (is_part) begin = std::max(begin, parts_end);
    if (flow.in[at] > 0) begin = std::max(begin, in_done);
    const double at_end = begin + compute_[at];
    (is_part ? parts_end : end) = at_end;
    if (at + 1 == moments) end = std::max(end, parts_end);
    out_sum += flow.out[at];
    if (flow.out[at] > 0) {
      if (boundary.one_at_a_time) out_done = std::max(out_done, in_done);
      out_done = std::max(out_done, at_end) + flow.out[at] * out_cost;
    }
    ends.push_back(at_end);
    in_sums.push_back(in_sum);
    outs.push_back(out_done);
    out_sums.push_back(out_sum);
  }
  return end - half;
}

}  // namespace memtide
