#include "daemon/replay/access_sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "proto/kinds.h"

namespace memtide {

namespace {

using Kind = ChunkEvent::Kind;

// Traces come from files, so each value that indexes or divides something is checked.
absl::Status CheckEnds(const v1::Trace& trace) {
  if (trace.iteration_ends().empty()) {
    return absl::FailedPreconditionError(
        "the trace has no complete iteration: the run took no step, or all of its chunks fitted, "
        "so "
        "that nothing was predicted; trace some steps with smaller pools (--device-pool, "
        "--host-pool)");
  }
  uint32_t before = 0;
  for (const uint32_t end : trace.iteration_ends()) {
    if (end <= before || end > static_cast<uint32_t>(trace.moments_size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("the trace ends an iteration at moment ", end, ", after one that ended at ",
                       before, "; it has ", trace.moments_size(), " moments"));
    }
    before = end;
  }
  return absl::OkStatus();
}

// At most 36 years, so that sums and differences of times cannot overflow.
constexpr int64_t kMostNanoseconds = int64_t{1} << 60;

bool IsTime(int64_t nanoseconds) { return nanoseconds >= 0 && nanoseconds <= kMostNanoseconds; }

absl::Status CheckTimes(const v1::Trace& trace) {
  for (int i = 0; i < trace.moments_size(); ++i) {
    if (IsTime(trace.moments(i).time_ns())) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "moment ", i, " of the trace has the invalid time of ", trace.moments(i).time_ns(), " ns"));
  }
  for (const v1::TracedStall& stall : trace.stalls()) {
    if (IsTime(stall.start_ns()) && IsTime(stall.duration_ns())) continue;
    return absl::InvalidArgumentError(absl::StrCat("the trace has a stall of ", stall.duration_ns(),
                                                   " ns at ", stall.start_ns(),
                                                   " ns, which cannot be"));
  }
  return absl::OkStatus();
}

// Follows which chunks exist; fills in which existed from the start.
class Existence {
 public:
  explicit Existence(std::vector<PlayedChunk>* chunks) : chunks_(*chunks) {}

  absl::Status Take(ChunkEvent event) {
    // The number indexes chunks_, so the limit bounds the memory that a damaged trace can claim.
    if (event.chunk >= Limits().chunks) {
      return absl::InvalidArgumentError(
          absl::StrCat("names chunk ", event.chunk, "; at most ", Limits().chunks, " exist"));
    }
    if (event.chunk >= chunks_.size()) chunks_.resize(event.chunk + 1);
    if (event.chunk >= states_.size()) states_.resize(chunks_.size(), State::kNew);
    State& state = states_[event.chunk];
    if (event.kind == Kind::kAllocate ? state == State::kThere : state == State::kGone) {
      return absl::InvalidArgumentError(absl::StrCat(
          event.kind == Kind::kAllocate ? "allocates chunk " : "uses chunk ", event.chunk,
          event.kind == Kind::kAllocate ? ", which exists already" : ", which does not exist"));
    }
    if (state == State::kNew && event.kind != Kind::kAllocate) {
      chunks_[event.chunk].from_start = true;
    }
    state = event.kind == Kind::kFree ? State::kGone : State::kThere;
    return absl::OkStatus();
  }

 private:
  enum class State : uint8_t { kNew, kThere, kGone };
  std::vector<PlayedChunk>& chunks_;
  std::vector<State> states_;
};

void SubtractStalls(const v1::Trace& trace, std::vector<PlayedMoment>* moments) {
  const auto begins_later = [](int64_t time, const v1::TracedMoment& moment) {
    return time < moment.time_ns();
  };
  for (const v1::TracedStall& stall : trace.stalls()) {
    // The stalls belong to the traced run: a replay, with another policy, has stalls of its own.
    const int64_t end = stall.start_ns() + stall.duration_ns();
    const auto after = std::upper_bound(trace.moments().begin(), trace.moments().end(),
                                        stall.start_ns(), begins_later);
    size_t i = std::max<ptrdiff_t>(1, after - trace.moments().begin()) - 1;
    for (; i < moments->size() && i + 1 < static_cast<size_t>(trace.moments_size()); ++i) {
      const int64_t from = std::max(stall.start_ns(), trace.moments(i).time_ns());
      const int64_t to = std::min(end, trace.moments(i + 1).time_ns());
      if (to <= from) break;
      Duration& compute = (*moments)[i].compute;
      compute = std::max(Duration(0), compute - Duration(to - from));
    }
  }
}

// Element i: chunk i exists before the first moment.
std::vector<bool> ThereFromStart(const AccessSequence& sequence) {
  std::vector<bool> there(sequence.chunks.size());
  for (size_t i = 0; i < there.size(); ++i) there[i] = sequence.chunks[i].from_start;
  return there;
}

void Follow(const PlayedMoment& moment, std::vector<bool>* there) {
  for (const ChunkEvent& event : moment.events) (*there)[event.chunk] = event.kind != Kind::kFree;
}

}  // namespace

absl::StatusOr<AccessSequence> ToAccessSequence(const v1::Trace& trace) {
  MEMTIDE_RETURN_IF_ERROR(CheckEnds(trace));
  MEMTIDE_RETURN_IF_ERROR(CheckTimes(trace));
  AccessSequence sequence;
  sequence.chunk_size = Bytes(trace.chunk_size_bytes());
  sequence.device_slots = trace.device_slots();
  sequence.host_slots = trace.host_slots();
  sequence.ssd_slots = trace.ssd_slots();
  sequence.iteration_ends.assign(trace.iteration_ends().begin(), trace.iteration_ends().end());
  // Later moments belong to an iteration of which the trace has only the beginning.
  const size_t moments = sequence.iteration_ends.back();
  Existence existence(&sequence.chunks);
  for (size_t i = 0; i < moments; ++i) {
    const v1::TracedMoment& traced = trace.moments(i);
    PlayedMoment moment;
    moment.phase = FromProto(traced.phase());
    moment.name = traced.name();
    moment.own_device = Bytes(traced.own_device_bytes());
    moment.own_host = Bytes(traced.own_host_bytes());
    if (i + 1 < static_cast<size_t>(trace.moments_size())) {
      const int64_t time = trace.moments(i + 1).time_ns() - traced.time_ns();
      moment.compute = Duration(std::max<int64_t>(0, time));
    }
    for (const uint32_t use : traced.uses()) {
      // TracedMoment packs the chunk's number and the operation: number * 4 + operation.
      const ChunkEvent event{use / 4, static_cast<Kind>(use % 4)};
      if (absl::Status status = existence.Take(event); !status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("moment ", i, " of the trace ", status.message()));
      }
      moment.events.push_back(event);
    }
    sequence.moments.push_back(std::move(moment));
  }
  for (const v1::TracedChunk& chunk : trace.chunks()) {
    // The chunk has no use in the complete iterations.
    if (chunk.number() >= sequence.chunks.size()) continue;
    sequence.chunks[chunk.number()].kind = FromProto(chunk.kind());
  }
  SubtractStalls(trace, &sequence.moments);
  return sequence;
}

std::vector<uint32_t> ShadowedChunks(const AccessSequence& sequence) {
  std::vector<bool> is_shadowed(sequence.chunks.size());
  for (const PlayedMoment& moment : sequence.moments) {
    if (!moment.is_part) continue;
    for (const ChunkEvent& event : moment.events) {
      if (event.kind == Kind::kWrite) is_shadowed[event.chunk] = true;
    }
  }
  std::vector<uint32_t> chunks;
  for (uint32_t chunk = 0; chunk < is_shadowed.size(); ++chunk) {
    if (is_shadowed[chunk]) chunks.push_back(chunk);
  }
  return chunks;
}

Duration ComputeTime(const AccessSequence& sequence) {
  Duration script{0}, parts{0};
  for (const PlayedMoment& moment : sequence.moments) {
    if (moment.is_part) {
      parts = std::max(parts, script) + moment.compute;
    } else {
      script += moment.compute;
    }
  }
  return std::max(script, parts);
}

// The largest number of chunks that exist at the same time.
uint32_t MostChunks(const AccessSequence& sequence) {
  auto now = static_cast<uint32_t>(ShadowedChunks(sequence).size());
  for (const PlayedChunk& chunk : sequence.chunks) now += chunk.from_start;
  uint32_t most = now;
  for (const PlayedMoment& moment : sequence.moments) {
    for (const ChunkEvent& event : moment.events) {
      if (event.kind == Kind::kAllocate) most = std::max(most, ++now);
      if (event.kind == Kind::kFree) --now;
    }
  }
  return most;
}

AccessSequence Repeated(const AccessSequence& sequence, size_t first, size_t times) {
  MEMTIDE_CHECK(first < sequence.iterations());
  const size_t begin = sequence.IterationBegin(first);
  const size_t end = sequence.moments.size();
  std::vector<bool> at_begin = ThereFromStart(sequence);
  for (size_t i = 0; i < begin; ++i) Follow(sequence.moments[i], &at_begin);
  // The repeated part may end with other chunks than it begins with. The seam frees and allocates
  // the difference.
  std::vector<bool> at_end = at_begin;
  for (size_t i = begin; i < end; ++i) Follow(sequence.moments[i], &at_end);
  // Frees come first, so that more chunks never exist in the seam than at either of its ends.
  std::vector<ChunkEvent> seam;
  for (uint32_t chunk = 0; chunk < at_begin.size(); ++chunk) {
    if (at_end[chunk] && !at_begin[chunk]) seam.push_back({chunk, Kind::kFree});
  }
  for (uint32_t chunk = 0; chunk < at_begin.size(); ++chunk) {
    if (at_begin[chunk] && !at_end[chunk]) seam.push_back({chunk, Kind::kAllocate});
  }

  AccessSequence repeated = sequence;
  repeated.moments.reserve(end + times * (end - begin));
  for (size_t time = 0; time < times; ++time) {
    for (size_t i = begin; i < end; ++i) {
      repeated.moments.push_back(sequence.moments[i]);
      if (i > begin) continue;
      std::vector<ChunkEvent>& events = repeated.moments.back().events;
      events.insert(events.begin(), seam.begin(), seam.end());
    }
    for (size_t i = first; i < sequence.iterations(); ++i) {
      repeated.iteration_ends.push_back(sequence.iteration_ends[i] + (time + 1) * (end - begin));
    }
  }
  return repeated;
}

}  // namespace memtide
