#include "daemon/service/call_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {
namespace {

// More than this no call costs: the engine refuses what is larger without a look at it.
constexpr uint64_t kMostCost = 32768;

// Whether it is a call, and not a report of an edge.
template <typename OneEvent, typename = void>
struct IsCall : std::false_type {};
template <typename OneEvent>
struct IsCall<OneEvent, std::void_t<decltype(OneEvent::call)>> : std::true_type {};

uint64_t CostOf(const Event& event) {
  return std::visit(
      [](const auto& one) -> uint64_t {
        if constexpr (IsCall<std::decay_t<decltype(one)>>::value) return one.Cost();
        return 0;
      },
      event);
}

absl::optional<SessionId> SessionIn(const Event& event) {
  return std::visit([](const auto& one) { return SessionOf<std::decay_t<decltype(one)>>::In(one); },
                    event);
}

}  // namespace

bool CallQueue::Takes(const Event& event) {
  return SessionIn(event).has_value() ||
         std::visit([](const auto& one) { return IsCall<std::decay_t<decltype(one)>>::value; },
                    event);
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
  const uint64_t cost = 1 + std::min(CostOf(event), kMostCost);
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
