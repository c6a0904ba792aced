#include "daemon/replay/activations/state_traffic.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "base/check.h"

namespace memtide {

namespace {

using Kind = ChunkEvent::Kind;

constexpr uint32_t kNever = ~uint32_t{0};

struct Step {
  uint32_t chunk = 0, moment = 0;
  Kind kind = Kind::kRead;
  bool is_below = false;   // The use is below the boundary.
  bool is_commit = false;  // The chunk gets the content of its shadow chunk.
  uint32_t next = kNever;  // Index of the chunk's next step.
};

// The shadow chunks of `shadowed` have the numbers behind all chunks, in the same order.
uint32_t ShadowOf(const AccessSequence& iteration, uint32_t chunk) {
  return static_cast<uint32_t>(iteration.chunks.size()) + chunk;
}

// The events of `rounds` repetitions of the moments, each with the chunk's next one. `shadowed`:
// the chunks that parts do not write in place.
std::vector<Step> Steps(const AccessSequence& iteration, size_t begin, size_t end, int rounds,
                        Below below, const std::vector<uint32_t>& shadowed) {
  std::vector<Step> steps;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = begin; i < end; ++i) {
      const PlayedMoment& moment = iteration.moments[i];
      const auto at = static_cast<uint32_t>(i);
      const bool is_below = below == Below::kHost && moment.on_host;
      for (const ChunkEvent& event : moment.events) {
        if (moment.is_part && event.kind == Kind::kWrite && !shadowed.empty()) {
          steps.push_back({event.chunk, at, Kind::kRead});
          steps.push_back({ShadowOf(iteration, event.chunk), at, Kind::kWrite});
        } else {
          steps.push_back({event.chunk, at, event.kind, is_below});
        }
      }
    }
    for (const uint32_t chunk : shadowed) {
      steps.push_back({chunk, static_cast<uint32_t>(end - 1), Kind::kWrite, false, true});
    }
  }
  std::vector<uint32_t> later(2 * iteration.chunks.size(), kNever);
  for (size_t i = steps.size(); i-- > 0;) {
    Step& step = steps[i];
    if (step.is_commit) {
      // The chunk's next use is one of the shadow chunk's content; the chunk's own ends.
      later[ShadowOf(iteration, step.chunk)] = std::exchange(later[step.chunk], kNever);
    } else {
      step.next = std::exchange(later[step.chunk], static_cast<uint32_t>(i));
    }
  }
  return steps;
}

// The chunks above a boundary.
class Upper {
 public:
  Upper(const AccessSequence& iteration, uint32_t slots) : chunks_(2 * iteration.chunks.size()) {
    free_ = slots;
    for (size_t i = 0; i < iteration.chunks.size(); ++i) {
      chunks_[i].has_content = iteration.chunks[i].from_start;
    }
  }

  struct Moved {
    uint32_t reads = 0, writes = 0;
  };
  Moved Take(const Step& step) {
    State& chunk = chunks_[step.chunk];
    Moved moved;
    if (step.is_commit) {
      free_ += chunk.is_here;
      chunk = std::exchange(chunks_[chunks_.size() / 2 + step.chunk], State());
      if (chunk.is_here) queue_.push({chunk.next, step.chunk});
      return moved;
    }
    if (step.kind == Kind::kFree) {
      free_ += std::exchange(chunk.is_here, false);
      chunk = State();
      return moved;
    }
    if (step.kind == Kind::kAllocate) return moved;
    if (step.is_below) {
      chunk.has_content = true;
      moved.writes += chunk.is_here && std::exchange(chunk.is_dirty, false);
      if (step.kind == Kind::kWrite) free_ += std::exchange(chunk.is_here, false);
      return moved;
    }
    if (!chunk.is_here) {
      moved.reads += chunk.has_content;
      moved.writes += MakeRoom();
      chunk.is_here = true;
    }
    chunk.has_content = true;
    chunk.is_dirty |= step.kind == Kind::kWrite;
    chunk.next = step.next;
    queue_.push({step.next, step.chunk});
    return moved;
  }

 private:
  struct State {
    bool is_here = false, has_content = false, is_dirty = false;
    uint32_t next = kNever;
  };

  // Whether the victim has to be written back.
  bool MakeRoom() {
    if (free_ > 0) {
      --free_;
      return false;
    }
    while (true) {
      MEMTIDE_CHECK(!queue_.empty());
      const auto [next, number] = queue_.top();
      queue_.pop();
      State& victim = chunks_[number];
      // The entry is out of date: the chunk was used meanwhile, or left.
      if (!victim.is_here || victim.next != next) continue;
      victim.is_here = false;
      return std::exchange(victim.is_dirty, false);
    }
  }

  std::vector<State> chunks_;
  uint32_t free_ = 0;
  std::priority_queue<std::pair<uint32_t, uint32_t>> queue_;  // Next step, chunk.
};

}  // namespace

StateTraffic TrafficOf(const AccessSequence& iteration, uint32_t slots, Below below) {
  MEMTIDE_CHECK(slots > 0);
  const size_t moments = iteration.moments.size();
  // The first round fills the slots, the last one shows what the second one's chunks do next.
  const std::vector<uint32_t> shadowed =
      below == Below::kDisk ? ShadowedChunks(iteration) : std::vector<uint32_t>();
  const std::vector<Step> steps = Steps(iteration, 0, moments, 3, below, shadowed);
  StateTraffic traffic{std::vector<uint32_t>(moments, 0), std::vector<uint32_t>(moments, 0)};
  Upper upper(iteration, slots);
  const size_t length = steps.size() / 3;
  for (size_t i = 0; i < 2 * length; ++i) {
    const Upper::Moved moved = upper.Take(steps[i]);
    if (i < length) continue;
    traffic.reads[steps[i].moment] += moved.reads;
    traffic.writes[steps[i].moment] += moved.writes;
  }
  return traffic;
}

uint64_t LeastReads(const AccessSequence& iteration, size_t begin, size_t end, uint32_t slots,
                    Below below) {
  MEMTIDE_CHECK(slots > 0);
  const std::vector<Step> steps = Steps(iteration, begin, end, 1, below, {});
  Upper upper(iteration, slots);
  uint64_t reads = 0;
  for (const Step& step : steps) reads += upper.Take(step).reads;
  return reads;
}

}  // namespace memtide
