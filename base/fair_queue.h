// FairQueue: what waits for one resource, fair between jobs, or between users.
//
// One item is served at a time, to its end or to the end of a piece. Then comes the oldest item of
// the job that has cost least (start-time fair queueing). A job that had nothing to be served for a
// while gets nothing extra for that. So an item waits for the one that is served, and then at most
// for one of each other job, however many these have queued.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_BASE_FAIR_QUEUE_H_
#define MEMTIDE_BASE_FAIR_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/ids.h"

namespace memtide {

// Item: what is left of a transfer, a task or a call. Cost: what the resource gives, in units of
// its own that are added up.
template <typename Item, typename Job = JobId, typename Cost = Bytes>
class FairQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  size_t size(const Job& job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? 0 : found->second.items.size();
  }

  void Push(const Job& job, Item item) { Enter(job).items.push_back(std::move(item)); }
  // The rest of an item of the job that was popped: it is the job's next one.
  void PushRest(const Job& job, Item item) { Enter(job).items.push_front(std::move(item)); }

  // The item that is served now, and its job. They stay the first until the item is popped.
  // REQUIRES: size() > 0.
  Item& First() {
    if (!serving_) serving_ = Next();
    return jobs_[*serving_].items.front();
  }
  const Job& FirstJob() {
    First();
    return *serving_;
  }
  // Counts the cost of First(), or of a part of it.
  void Charge(Cost cost) { jobs_[*serving_].served += cost; }
  // Removes First() and returns it.
  Item Pop() {
    First();
    std::deque<Item>& items = jobs_[*serving_].items;
    Item item = std::move(items.front());
    items.pop_front();
    serving_.reset();
    --size_;
    return item;
  }

  // Removes the items for which `chosen` is true and returns them.
  template <typename Chosen>
  std::vector<Item> Take(const Job& job, const Chosen& chosen) {
    std::vector<Item> taken;
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return taken;
    std::deque<Item>& items = found->second.items;
    // The next item of the job would otherwise be served as the rest of the first one.
    if (serving_ == job && !items.empty() && chosen(items.front())) serving_.reset();
    std::deque<Item> rest;
    for (Item& item : items) {
      if (chosen(item)) {
        taken.push_back(std::move(item));
      } else {
        rest.push_back(std::move(item));
      }
    }
    items = std::move(rest);
    size_ -= taken.size();
    return taken;
  }

 private:
  struct Queue {
    std::deque<Item> items;
    Cost served{};
  };

  Queue& Enter(const Job& job) {
    Queue& queue = jobs_[job];
    if (queue.items.empty()) queue.served = std::max(queue.served, now_);
    ++size_;
    return queue;
  }

  Job Next() {
    MEMTIDE_CHECK(size_ > 0);
    auto next = jobs_.end();
    for (auto entry = jobs_.begin(); entry != jobs_.end();) {
      const Queue& queue = entry->second;
      // The cost of an idle job counts until the others have had as much.
      if (queue.items.empty() && queue.served <= now_) {
        entry = jobs_.erase(entry);
        continue;
      }
      const bool waits = !queue.items.empty();
      if (waits && (next == jobs_.end() || queue.served < next->second.served)) next = entry;
      ++entry;
    }
    now_ = next->second.served;
    return next->first;
  }

  std::map<Job, Queue> jobs_;
  absl::optional<Job> serving_;
  Cost now_{};  // Queue::served of the job that is served, when its turn came.
  size_t size_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_BASE_FAIR_QUEUE_H_
