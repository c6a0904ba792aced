#include "daemon/planner/simulated_node.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace memtide {

namespace {

constexpr Duration kTickPeriod = std::chrono::milliseconds(100);
// An engine without transfers in flight retries failed ones in less time than this.
constexpr Duration kStuck = std::chrono::seconds(10);

}  // namespace

SimulatedNode::SimulatedNode(const EngineOptions& options, const LinkOptions& links)
    : engine_(options), links_(links) {}

absl::Status SimulatedNode::Open(Bytes chunk_size) {
  Post(ClientConnected{session(), 1000, 1});
  OpenCall open;
  open.call = NextCall();
  open.session = session();
  open.chunk_size = chunk_size;
  return Call(open).status();
}

absl::StatusOr<Reply> SimulatedNode::Call(const Event& event) {
  reply_.reset();
  Post(event);
  // Only transfers and ticks can serve a call that waits. `moved` is when a transfer was last on
  // its way.
  Instant moved = now_;
  while (!reply_.has_value() && closed_.ok()) {
    if (links_.NextDone().has_value()) moved = now_;
    if (now_ - moved > kStuck) {
      return absl::InternalError(
          absl::StrCat("a call waits, nothing is on its way, and none came in ",
                       std::chrono::duration_cast<std::chrono::seconds>(kStuck).count(), " s"));
    }
    Step(Instant::max());
  }
  if (!closed_.ok()) return closed_;
  if (!reply_->status.ok()) return reply_->status;
  return *std::move(reply_);
}

void SimulatedNode::Pass(Duration time) {
  const Instant until = now_ + time;
  while (now_ < until) Step(until);
}

void SimulatedNode::Step(Instant until) {
  const absl::optional<Instant> done = links_.NextDone();
  // The clock jumps to the next thing that happens.
  now_ = std::max(now_, std::min({until, next_tick_, done.value_or(until)}));
  if (done.has_value() && *done <= now_) {
    Post(TransferDone{links_.TakeDone(), absl::OkStatus()});
  } else if (next_tick_ <= now_) {
    next_tick_ = now_ + kTickPeriod;
    Post(Tick{});
  }
}

void SimulatedNode::Post(const Event& event) {
  // Events that effects cause wait in following_, because Handle must not run inside itself.
  following_.push_back(event);
  while (!following_.empty()) {
    const Event next = std::move(following_.front());
    following_.pop_front();
    effects_.clear();
    engine_.Handle(now_, next, &effects_);
    for (Effect& effect : effects_) Take(std::move(effect));
  }
}

void SimulatedNode::Take(Effect effect) {
  if (auto* reply = std::get_if<Reply>(&effect)) {
    reply_ = std::move(*reply);
  } else if (const auto* transfer = std::get_if<StartTransfer>(&effect)) {
    links_.Start(now_, *transfer);
  } else if (const auto* region = std::get_if<MakeRegion>(&effect)) {
    following_.push_back(RegionMade{region->region, absl::OkStatus()});
  } else if (const auto* store = std::get_if<MakeStore>(&effect)) {
    following_.push_back(StoreMade{store->store, absl::OkStatus()});
  } else if (const auto* dropped = std::get_if<DropRegion>(&effect)) {
    following_.push_back(RegionDropped{dropped->region});
  } else if (const auto* gone = std::get_if<DropStore>(&effect)) {
    following_.push_back(StoreDropped{gone->store});
  } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
    closed_ = close->reason;
  }
}

}  // namespace memtide
