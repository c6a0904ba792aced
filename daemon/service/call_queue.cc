#include "daemon/service/call_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {
namespace {

// More than this no call costs: the engine refuses what is larger without a look at it.
constexpr uint64_t kMostCost = 32768;

uint64_t Uses(const std::vector<MomentReport>& moments) {
  uint64_t uses = moments.size();
  for (const MomentReport& moment : moments) uses += moment.uses.size();
  return uses;
}

// About how much the engine looks at for an event, in chunks.
struct Cost {
  uint64_t operator()(const AllocateCall& call) const { return call.count; }
  uint64_t operator()(const FetchCall& call) const {
    return call.chunks.size() + call.releases.size() + Uses(call.moments);
  }
  uint64_t operator()(const ReportCall& call) const { return Uses(call.moments); }
  uint64_t operator()(const StepCall& call) const {
    const uint64_t work =
        call.work == nullptr ? 0 : call.work->pieces.size() + call.work->copies.size();
    return call.chunks.size() + work + Uses(call.moments);
  }
  uint64_t operator()(const CommitCall& call) const {
    return call.chunks.size() + call.shadows.size();
  }
  uint64_t operator()(const ReleaseCall& call) const { return call.chunks.size(); }
  uint64_t operator()(const EvictCall& call) const { return call.chunks.size(); }
  uint64_t operator()(const PrefetchCall& call) const { return call.chunks.size(); }
  uint64_t operator()(const FreeCall& call) const { return call.chunks.size(); }
  uint64_t operator()(const DescribeCall& call) const { return call.chunks.size(); }
  uint64_t operator()(const DiscardCall& call) const { return call.chunks.size(); }
  uint64_t operator()(const OfferCall& call) const { return call.chunks.size(); }
  uint64_t operator()(const DuplicateCall& call) const {
    return call.chunks.size() * (uint64_t{1} + call.copies);
  }
  uint64_t operator()(const InspectCall& call) const { return call.max_chunks; }
  template <typename OtherEvent>
  uint64_t operator()(const OtherEvent&) const {
    return 0;
  }
};

absl::optional<SessionId> SessionIn(const Event& event) {
  return std::visit([](const auto& one) { return SessionOf<std::decay_t<decltype(one)>>::In(one); },
                    event);
}

}  // namespace

bool CallQueue::Takes(const Event& event) {
  return SessionIn(event).has_value() || std::holds_alternative<InspectCall>(event) ||
         std::holds_alternative<TraceCall>(event) || std::holds_alternative<DrainCall>(event) ||
         std::holds_alternative<EndJobCall>(event) || std::holds_alternative<SetQuotasCall>(event);
}

CallQueue::User CallQueue::UserOf(Session session) const {
  if (!session.has_value()) return absl::nullopt;
  const auto found = uids_.find(*session);
  return found == uids_.end() ? User() : User(found->second);
}

absl::Status CallQueue::CheckRoom(absl::optional<SessionId> session) const {
  const size_t of_user = users_.size(UserOf(session));
  if (of_user + size() < most_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      of_user, " calls of the user wait to be handled, and ", size(), " of all users; a user may ",
      "have as many as there is room left of ", most_, "; make fewer calls at a time"));
}

void CallQueue::Push(Event event) {
  const Session session = SessionIn(event);
  if (const auto* connected = std::get_if<ClientConnected>(&event)) {
    uids_[connected->session] = connected->uid;
  }
  const User user = UserOf(session);
  const uint64_t cost = 1 + std::min(std::visit(Cost(), event), kMostCost);
  users_.Push(user, {});
  calls_[user].Push(session, {std::move(event), cost});
}

Event CallQueue::Pop() {
  const User user = users_.FirstJob();
  FairQueue<Waiting, Session, uint64_t>& calls = calls_[user];
  const uint64_t cost = calls.First().cost;
  calls.Charge(cost);
  users_.Charge(cost);
  Event event = calls.Pop().event;
  users_.Pop();
  // Its sessions begin anew, with equal rights.
  if (calls.empty()) calls_.erase(user);
  if (const auto* gone = std::get_if<ClientGone>(&event)) uids_.erase(gone->session);
  return event;
}

void CallQueue::Clear() {
  while (!empty()) Pop();
}

}  // namespace memtide
