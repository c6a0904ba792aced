// FairQueue: the transfers that wait for one drive in one direction, fair between jobs.
//
// One transfer is served at a time, to its end: a drive moves one long range faster than parts of
// several. Then comes the oldest transfer of the job that has had the fewest bytes (start-time fair
// queueing). A job that had nothing to transfer for a while gets nothing extra for that.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_DAEMON_IO_FAIR_QUEUE_H_
#define MEMTIDE_DAEMON_IO_FAIR_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <vector>

#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/ids.h"

namespace memtide {

// Item: what is left of a transfer.
template <typename Item>
class FairQueue {
 public:
  size_t size() const { return size_; }

  void Push(JobId job, Item item) {
    Job& entry = jobs_[job];
    if (entry.items.empty()) entry.served = std::max(entry.served, now_);
    entry.items.push_back(std::move(item));
    ++size_;
  }

  // The item that is served now. It stays the first until it is popped. REQUIRES: size() > 0.
  Item& First() {
    if (!serving_) serving_ = Next();
    return jobs_[*serving_].items.front();
  }
  // Counts bytes of First().
  void Charge(Bytes bytes) { jobs_[*serving_].served += bytes; }
  // Removes First().
  void Pop() {
    jobs_[*serving_].items.pop_front();
    serving_.reset();
    --size_;
  }

  // Removes the items for which `chosen` is true and returns them.
  template <typename Chosen>
  std::vector<Item> Take(JobId job, const Chosen& chosen) {
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
  struct Job {
    std::deque<Item> items;
    Bytes served;
  };

  JobId Next() {
    MEMTIDE_CHECK(size_ > 0);
    absl::optional<JobId> next;
    for (auto entry = jobs_.begin(); entry != jobs_.end();) {
      const Job& job = entry->second;
      // What an idle job was served counts until the others have had as much.
      if (job.items.empty() && job.served <= now_) {
        entry = jobs_.erase(entry);
        continue;
      }
      if (!job.items.empty() && (!next || job.served < jobs_[*next].served)) next = entry->first;
      ++entry;
    }
    now_ = jobs_[*next].served;
    return *next;
  }

  std::map<JobId, Job> jobs_;
  absl::optional<JobId> serving_;
  Bytes now_;  // What the job that is served had been served when its turn came.
  size_t size_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_FAIR_QUEUE_H_
