#include "daemon/replay/simulated_node.h"

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

absl::Status SimulatedNode::PassUntil(const std::function<bool()>& is_so) {
  // Only transfers, timers and ticks can serve a call that waits. `moved` is when a transfer was
  // last on its way, or a timer set.
  Instant moved = now_;
  while (!is_so() && closed_.ok()) {
    if (links_.NextDone().has_value() || !timers_.empty()) moved = now_;
    if (now_ - moved > kStuck) {
      return absl::InternalError(
          absl::StrCat("a call waits, nothing is on its way, and none came in ",
                       std::chrono::duration_cast<std::chrono::seconds>(kStuck).count(), " s"));
    }
    Step(Instant::max());
  }
  return closed_;
}

void SimulatedNode::Pass(Duration time) {
  const Instant until = now_ + time;
  while (now_ < until) Step(until);
}

void SimulatedNode::Step(Instant until) {
  const absl::optional<Instant> done = links_.NextDone();
  // The clock jumps to the next thing that happens.
  const Instant timer = timers_.empty() ? until : timers_.begin()->first;
  now_ = std::max(now_, std::min({until, next_tick_, timer, done.value_or(until)}));
  if (done.has_value() && *done <= now_) {
    Post(TransferDone{links_.TakeDone(), absl::OkStatus()});
  } else if (next_tick_ <= now_) {
    next_tick_ = now_ + kTickPeriod;
    Post(Tick{});
  } else if (!timers_.empty() && timer <= now_) {
    const std::function<void()> what = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    what();
  }
}

void SimulatedNode::Post(const Event& event) {
  // Events that effects and replies cause wait in following_, because Handle must not run inside
  // itself.
  following_.push_back(event);
  if (std::exchange(is_posting_, true)) return;
  while (!following_.empty() || !replies_.empty()) {
    if (following_.empty()) {
      PassOnReply();
      continue;
    }
    const Event next = std::move(following_.front());
    following_.pop_front();
    effects_.clear();
    engine_.Handle(now_, next, &effects_);
    for (Effect& effect : effects_) Take(std::move(effect));
  }
  is_posting_ = false;
}

void SimulatedNode::PassOnReply() {
  const Reply reply = std::move(replies_.front());
  replies_.pop_front();
  const auto found = waiting_.find(reply.call);
  if (found == waiting_.end()) return;
  const auto then = std::move(found->second);
  waiting_.erase(found);
  then(reply);
}

void SimulatedNode::Take(Effect effect) {
  if (auto* reply = std::get_if<Reply>(&effect)) {
    replies_.push_back(std::move(*reply));
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
