#include "daemon/replay/activations/lower_bound.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "daemon/replay/activations/numbers.h"
#include "daemon/replay/activations/state_traffic.h"

namespace memtide {

namespace {

// The bytes that a block's forward pass makes again, and its time.
struct Again {
  double bytes = 0, seconds = 0;
};

struct MicroBatch {
  uint32_t forward_end = 0, backward_end = 0;  // Moments: the last pack, and the last unpack.
  double bytes = 0;                            // Bytes that are saved when forward ends.
  std::vector<Again> again;                    // The cheapest byte first.
};

bool IsNeededAfter(const Saved& saved, uint32_t moment) { return saved.first_unpacked > moment; }

void AddBlock(const Block& block, std::map<uint32_t, MicroBatch>* micro_batches) {
  for (const BlockCall& call : block.calls) {
    MicroBatch& of = (*micro_batches)[call.micro_batch];
    double rest = 0, attention = 0;
    for (const Saved& saved : block.saved) {
      if (saved.micro_batch != call.micro_batch) continue;
      if (!IsNeededAfter(saved, of.forward_end)) continue;
      of.bytes += Number(saved.size);
      if (saved.part == SavedPart::kRest) rest += Number(saved.size);
      if (saved.part == SavedPart::kAttention) attention += Number(saved.size);
    }
    if (!block.recomputable) continue;
    of.again.push_back({rest, Seconds(block.forward_without_attention)});
    of.again.push_back({attention, Seconds(block.forward - block.forward_without_attention)});
  }
}

std::vector<MicroBatch> MicroBatches(const ActivationModel& model) {
  std::map<uint32_t, MicroBatch> found;
  const auto see = [&found](const Saved& saved) {
    MicroBatch& of = found[saved.micro_batch];
    of.forward_end = std::max(of.forward_end, saved.packed);
    of.backward_end = std::max(of.backward_end, saved.last_unpacked);
  };
  for (const Block& block : model.blocks) {
    for (const Saved& saved : block.saved) see(saved);
  }
  for (const Block& block : model.blocks) AddBlock(block, &found);
  std::vector<MicroBatch> micro_batches;
  for (auto& [number, of] : found) {
    std::sort(of.again.begin(), of.again.end(), [](const Again& a, const Again& b) {
      return a.seconds * b.bytes < b.seconds * a.bytes;
    });
    micro_batches.push_back(std::move(of));
  }
  std::sort(micro_batches.begin(), micro_batches.end(),
            [](const MicroBatch& a, const MicroBatch& b) { return a.forward_end < b.forward_end; });
  return micro_batches;
}

// One boundary between tiers.
struct Boundary {
  double above = 0;  // Bytes that fit above it.
  uint32_t slots = 0;
  double in_bytes_a_second = 0, out_bytes_a_second = 0;
  bool one_at_a_time = false;
};

class Bound {
 public:
  Bound(const ActivationModel& model, const Boundary& boundary)
      : model_(model), boundary_(boundary), micro_batches_(MicroBatches(model)) {
    step_ = model.moments();
    while (step_ > 0 && model.states.moments[step_ - 1].phase == Phase::kStep) --step_;
  }

  double SecondsOfAll() const {
    size_t begin = 0;
    double sum = 0;
    for (const MicroBatch& of : micro_batches_) {
      const size_t middle = of.forward_end + size_t{1}, end = of.backward_end + size_t{1};
      // Micro-batches that overlap have no window of their own.
      if (of.forward_end < begin || end > step_) continue;
      sum += Least(of, begin, middle, end);
      begin = end;
    }
    if (begin < step_) sum += Window(begin, step_, 0, 0, 0);
    return sum + Window(step_, model_.moments(), 0, 0, 0);
  }

 private:
  // Over all amounts of recomputed bytes. The time is convex in the time that recomputing takes.
  double Least(const MicroBatch& of, size_t begin, size_t middle, size_t end) const {
    const auto time = [&](double again) {
      const double left = of.bytes - BytesIn(of, again);
      return Window(begin, middle, 0, 0, left - boundary_.above) +
             Window(middle, end, again, left, 0);
    };
    double low = 0, high = 0;
    for (const Again& each : of.again) high += each.seconds;
    for (int i = 0; i < 60; ++i) {
      const double first = low + (high - low) / 3, second = high - (high - low) / 3;
      (time(first) <= time(second) ? high : low) = time(first) <= time(second) ? second : first;
    }
    return std::min(time(low), time(0));
  }

  static double BytesIn(const MicroBatch& of, double seconds) {
    double bytes = 0;
    for (const Again& each : of.again) {
      if (each.seconds >= seconds) {
        return bytes + (each.seconds > 0 ? each.bytes * seconds / each.seconds : each.bytes);
      }
      bytes += each.bytes;
      seconds -= each.seconds;
    }
    return bytes;
  }

  // The moments from `begin` to before `end`, in which `again` seconds are recomputed, `saved`
  // bytes are used that existed before, and `out` bytes leave.
  double Window(size_t begin, size_t end, double again, double saved, double out) const {
    const auto key = std::pair(begin, end);
    auto at = windows_.find(key);
    if (at == windows_.end()) {
      double compute = 0;
      for (size_t i = begin; i < end; ++i) {
        // Parts compute beside the other moments, in whatever window.
        const PlayedMoment& moment = model_.states.moments[i];
        if (!moment.is_part) compute += Seconds(moment.compute);
      }
      const double reads =
          Number(model_.states.chunk_size) *
          static_cast<double>(LeastReads(model_.states, begin, end, boundary_.slots,
                                         boundary_.one_at_a_time ? Below::kDisk : Below::kHost));
      at = windows_.emplace(key, std::pair(compute, reads)).first;
    }
    const auto [compute, reads] = at->second;
    const double in = std::max(0.0, reads + saved - boundary_.above) / boundary_.in_bytes_a_second;
    const double leaves = std::max(0.0, out) / boundary_.out_bytes_a_second;
    const double links = boundary_.one_at_a_time ? in + leaves : std::max(in, leaves);
    return std::max(compute + again, links);
  }

  const ActivationModel& model_;
  const Boundary boundary_;
  const std::vector<MicroBatch> micro_batches_;
  size_t step_ = 0;  // The first moment of the optimizer's step.
  // Compute and bytes read from an empty tier, by first and last moment.
  mutable std::map<std::pair<size_t, size_t>, std::pair<double, double>> windows_;
};

}  // namespace

Duration LowerBound(const ActivationModel& model, const ReplayOptions& options) {
  const double chunk = Number(model.states.chunk_size);
  double seconds = 0;
  for (const PlayedMoment& moment : model.states.moments) {
    // Parts are computed one after another.
    if (moment.is_part) seconds += Seconds(moment.compute);
  }
  const auto add = [&](double above, const LinkSpeed& in, const LinkSpeed& out, bool is_disk) {
    Boundary boundary;
    boundary.above = above;
    boundary.slots = static_cast<uint32_t>(
        std::max(1.0, std::min<double>(Limits().chunks, std::ceil(above / chunk))));
    boundary.in_bytes_a_second = in.bytes_per_second;
    boundary.out_bytes_a_second = out.bytes_per_second;
    boundary.one_at_a_time = is_disk;
    seconds = std::max(seconds, Bound(model, boundary).SecondsOfAll());
  };
  double above = Number(model.budget);
  const LinkOptions& links = options.links;
  if (options.device_slots > 0) {
    add(above, links.to_device, links.from_device, false);
    above += chunk * options.host_slots;
  }
  add(above, links.disk_read, links.disk_write, true);
  return Duration(static_cast<int64_t>(seconds * 1e9));
}

Bytes LeastBudget(const ActivationModel& model) {
  // All can be moved, and what is moved is in chunks.
  return model.states.chunk_size * std::max(model.least_slots, model.fixed_slots);
}

}  // namespace memtide
