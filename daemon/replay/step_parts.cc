#include "daemon/replay/step_parts.h"

#include <algorithm>
#include <utility>

#include "daemon/replay/access_sequence.h"

namespace memtide {

namespace {

// While a part computes, another one reads its chunks and a third waits for room, as in a client.
constexpr uint32_t kMostUnderWay = 3;

// As the client divides host memory (_optimizer_step/executor.py): half of what may be leased is
// for a part. Where chunks are leased at a device, only those that pass need room beside parts.
uint32_t MostChunksOfATurn(const StepParts::Options& options) {
  const uint32_t slots = std::max(2u, options.host_slots);
  const uint32_t others = options.device_slots > 0 ? 1 : std::max(1u, slots / 4);
  return std::clamp((slots - others) / 2, 1u, kPartChunks);
}

}  // namespace

StepParts::StepParts(SimulatedNode* node, Options options)
    : node_(*node),
      options_(std::move(options)),
      most_chunks_(MostChunksOfATurn(options_)),
      // At least half of the slots stay free.
      most_under_way_(std::clamp(options_.host_slots / 2 / most_chunks_, 1u, kMostUnderWay)) {}

void StepParts::Add(StepPart part) {
  waiting_.push_back(std::move(part));
  BeginWaiting();
}

absl::Status StepParts::Await() {
  const absl::Status status = node_.PassUntil([this] { return under_way_ == 0 || !status_.ok(); });
  return status_.ok() ? status : status_;
}

StepParts::Turns StepParts::TurnsOf(const StepPart& part) const {
  Turns turns;
  if (part.reads.size() + part.writes.size() <= most_chunks_) {
    turns.push_back({part.reads, static_cast<uint32_t>(part.reads.size()), part.compute});
    turns.back().chunks.insert(turns.back().chunks.end(), part.writes.begin(), part.writes.end());
    return turns;
  }
  for (const std::vector<ChunkId>* const all : {&part.reads, &part.writes}) {
    for (size_t first = 0; first < all->size(); first += most_chunks_) {
      const size_t last = std::min<size_t>(all->size(), first + most_chunks_);
      Turn turn;
      turn.chunks = {all->begin() + static_cast<ptrdiff_t>(first),
                     all->begin() + static_cast<ptrdiff_t>(last)};
      turn.reads = all == &part.reads ? static_cast<uint32_t>(last - first) : 0;
      turns.push_back(std::move(turn));
    }
  }
  // The part is computed while the last turn has its chunks.
  turns.back().compute = part.compute;
  return turns;
}

void StepParts::BeginWaiting() {
  while (!waiting_.empty() && under_way_ < most_under_way_) {
    Turns turns = TurnsOf(waiting_.front());
    waiting_.pop_front();
    ++under_way_;
    Begin(std::move(turns));
  }
}

void StepParts::Begin(Turns turns) {
  StepCall call;
  call.call = node_.NextCall();
  call.session = node_.session();
  call.chunks = turns.front().chunks;
  call.reads = turns.front().reads;
  call.part = ++last_number_;
  call.moments = options_.take_moments();
  node_.Start(call, [this, number = call.part, turns = std::move(turns)](const Reply& reply) {
    status_.Update(reply.status);
    if (reply.status.ok()) Compute(number, turns);
  });
}

void StepParts::Compute(uint64_t number, Turns turns) {
  const Duration compute = turns.front().compute;
  if (compute == Duration(0)) return End(number, std::move(turns));
  computed_ = std::max(computed_, node_.now()) + compute;
  node_.At(computed_, [this, number, turns = std::move(turns)] { End(number, turns); });
}

void StepParts::End(uint64_t number, Turns turns) {
  const EndPartCall call{node_.NextCall(), node_.session(), number, /*computed=*/true};
  node_.Start(call, [this](const Reply& reply) { status_.Update(reply.status); });
  turns.pop_front();
  if (!turns.empty()) return Begin(std::move(turns));
  --under_way_;
  BeginWaiting();
}

}  // namespace memtide
