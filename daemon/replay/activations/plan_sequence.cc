#include "daemon/replay/activations/plan_sequence.h"

#include <algorithm>
#include <set>
#include <utility>

namespace memtide {

namespace {

using Kind = ChunkEvent::Kind;

// Bytes that leave together.
struct Piece {
  Bytes size;
  uint32_t micro_batch = 0, packed = 0, needed = 0, last = 0;
};

void AddOnce(uint32_t moment, std::vector<uint32_t>* moments) {
  const auto at = std::lower_bound(moments->begin(), moments->end(), moment);
  if (at == moments->end() || *at != moment) moments->insert(at, moment);
}

std::vector<Piece> MovedPieces(const ActivationModel& model, const Candidate& candidate) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    const BlockChoice& choice = candidate.blocks[i];
    for (const Saved& saved : model.blocks[i].saved) {
      if (choice.of(saved.part) != Choice::kMove) continue;
      uint32_t needed = saved.first_unpacked;
      if (choice.rest == Choice::kRecompute) {
        // The block runs forward again from what was moved.
        needed = std::min(needed, RecomputedFrom(model.blocks[i].calls[saved.call], choice));
      }
      pieces.push_back({saved.size, saved.micro_batch, saved.packed, needed, saved.last_unpacked});
    }
  }
  if (candidate.others == Choice::kMove) {
    for (const Saved& saved : model.others) {
      pieces.push_back(
          {saved.size, saved.micro_batch, saved.packed, saved.first_unpacked, saved.last_unpacked});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.micro_batch, a.packed) < std::pair(b.micro_batch, b.packed);
  });
  return pieces;
}

// Numbers from zero, each of one chunk at a time: a client's arena fills the chunks again whose
// content has ended.
std::vector<uint32_t> NumbersOf(const std::vector<MovedChunk>& moved) {
  std::vector<uint32_t> numbers;
  std::set<uint32_t> unused;
  std::set<std::pair<uint32_t, uint32_t>> in_use;  // Freed after this moment, number.
  for (const MovedChunk& chunk : moved) {
    while (!in_use.empty() && in_use.begin()->first < chunk.writes.front()) {
      unused.insert(in_use.begin()->second);
      in_use.erase(in_use.begin());
    }
    if (unused.empty()) unused.insert(static_cast<uint32_t>(in_use.size()));
    numbers.push_back(*unused.begin());
    unused.erase(unused.begin());
    in_use.insert({chunk.freed, numbers.back()});
  }
  return numbers;
}

// The forward moments of a call, once more.
struct RunAgain {
  const BlockCall* call;
  Duration time{0};
};

class Builder {
 public:
  Builder(const ActivationModel& model, const Candidate& candidate)
      : model_(model), again_(model.moments()) {
    for (size_t i = 0; i < model.blocks.size(); ++i) {
      const Block& block = model.blocks[i];
      const BlockChoice& choice = candidate.blocks[i];
      if (choice.rest != Choice::kRecompute) continue;
      const Duration time =
          choice.attention == Choice::kRecompute ? block.forward : block.forward_without_attention;
      for (const BlockCall& call : block.calls) {
        const uint32_t from = RecomputedFrom(call, choice);
        if (from < model.moments()) again_[from].push_back({&call, time});
      }
    }
    FindLasting();
  }

  AccessSequence Build(const std::vector<MovedChunk>& moved) {
    const AccessSequence& states = model_.states;
    AccessSequence sequence;
    sequence.chunk_size = states.chunk_size;
    sequence.ssd_slots = states.ssd_slots;
    sequence.chunks = states.chunks;
    const auto first = static_cast<uint32_t>(states.chunks.size());
    before_.resize(states.moments.size());
    after_.resize(states.moments.size());
    const std::vector<uint32_t> numbers = NumbersOf(moved);
    for (size_t i = 0; i < moved.size(); ++i) {
      if (first + numbers[i] == sequence.chunks.size()) {
        sequence.chunks.push_back({ChunkKind::kActivation, false});
      }
      Place(moved[i], first + numbers[i]);
    }

    PlayedMoment fill;
    for (uint32_t chunk = 0; chunk < first; ++chunk) {
      if (states.chunks[chunk].from_start) fill.events.push_back({chunk, Kind::kWrite});
    }
    sequence.moments.push_back(std::move(fill));
    sequence.iteration_ends.push_back(sequence.moments.size());
    for (size_t i = 0; i < states.moments.size(); ++i) {
      for (const RunAgain& again : again_[i]) Recompute(again, i, &sequence.moments);
      PlayedMoment moment = states.moments[i];
      moment.events.insert(moment.events.begin(), before_[i].begin(), before_[i].end());
      moment.events.insert(moment.events.end(), after_[i].begin(), after_[i].end());
      sequence.moments.push_back(std::move(moment));
    }
    sequence.iteration_ends.push_back(sequence.moments.size());
    return sequence;
  }

 private:
  // Chunks that exist during the whole iteration can be read once more anywhere in it.
  void FindLasting() {
    lasting_.reserve(model_.states.chunks.size());
    for (const PlayedChunk& chunk : model_.states.chunks) lasting_.push_back(chunk.from_start);
    for (const PlayedMoment& moment : model_.states.moments) {
      for (const ChunkEvent& event : moment.events) {
        if (!event.IsUse()) lasting_[event.chunk] = false;
      }
    }
  }

  void Place(const MovedChunk& chunk, uint32_t number) {
    after_[chunk.writes.front()].push_back({number, Kind::kAllocate});
    for (const uint32_t moment : chunk.writes) after_[moment].push_back({number, Kind::kWrite});
    for (const uint32_t moment : chunk.reads) {
      if (moment > chunk.writes.front()) before_[moment].push_back({number, Kind::kRead});
    }
    after_[chunk.freed].push_back({number, Kind::kFree});
  }

  void Recompute(const RunAgain& again, size_t needed_at, std::vector<PlayedMoment>* moments) {
    // The moved input of the block is read first.
    std::vector<ChunkEvent> start = std::exchange(before_[needed_at], {});
    Duration measured{0};
    for (uint32_t i = again.call->forward_begin; i <= again.call->forward_end; ++i) {
      measured += model_.states.moments[i].compute;
    }
    Duration left = again.time;
    for (uint32_t i = again.call->forward_begin; i <= again.call->forward_end; ++i) {
      const PlayedMoment& forward = model_.states.moments[i];
      PlayedMoment moment;
      moment.phase = Phase::kBackward;
      moment.events = std::exchange(start, {});
      for (const ChunkEvent& event : forward.events) {
        if (event.kind != Kind::kRead || !lasting_[event.chunk]) continue;
        moment.events.push_back(event);
      }
      const bool is_last = i == again.call->forward_end;
      const double share = measured.count() == 0 ? 0
                                                 : static_cast<double>(forward.compute.count()) /
                                                       static_cast<double>(measured.count());
      moment.compute = is_last
                           ? left
                           : std::min(left, Duration(static_cast<int64_t>(
                                                share * static_cast<double>(again.time.count()))));
      left -= moment.compute;
      moments->push_back(std::move(moment));
    }
  }

  const ActivationModel& model_;
  std::vector<std::vector<RunAgain>> again_;             // By moment that needs the results.
  std::vector<std::vector<ChunkEvent>> before_, after_;  // The moment's own events.
  std::vector<bool> lasting_;                            // By chunk.
};

}  // namespace

std::vector<MovedChunk> MovedChunks(const ActivationModel& model, const Candidate& candidate) {
  std::vector<MovedChunk> chunks;
  Bytes room;
  uint32_t micro_batch = 0;
  for (const Piece& piece : MovedPieces(model, candidate)) {
    if (piece.micro_batch != std::exchange(micro_batch, piece.micro_batch)) room = Bytes(0);
    Bytes left = piece.size;
    while (!left.IsZero()) {
      if (room.IsZero()) {
        chunks.emplace_back();
        room = model.states.chunk_size;
      }
      MovedChunk& chunk = chunks.back();
      AddOnce(piece.packed, &chunk.writes);
      AddOnce(piece.needed, &chunk.reads);
      chunk.freed = std::max(chunk.freed, piece.last);
      const Bytes taken = std::min(left, room);
      left -= taken;
      room -= taken;
    }
  }
  return chunks;
}

AccessSequence SequenceOf(const ActivationModel& model, const Candidate& candidate) {
  return Builder(model, candidate).Build(MovedChunks(model, candidate));
}

}  // namespace memtide
