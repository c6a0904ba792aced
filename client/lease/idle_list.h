// IdleList: the places whose leases are held and in no use, in the order of their last use.
//
// Pure bookkeeping. Thread-compatible.
#ifndef MEMTIDE_CLIENT_LEASE_IDLE_LIST_H_
#define MEMTIDE_CLIENT_LEASE_IDLE_LIST_H_

#include <cstdint>
#include <vector>

namespace memtide::client {

class IdleList {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit IdleList(uint32_t places) : neighbours_(places) {}

  // REQUIRES: the place is not in the list.
  void PushNewest(uint32_t place) {
    neighbours_[place] = {newest_, kNone};
    (newest_ == kNone ? oldest_ : neighbours_[newest_].newer) = place;
    newest_ = place;
    ++size_;
  }
  // REQUIRES: the place is in the list.
  void Remove(uint32_t place) {
    const Neighbours of = neighbours_[place];
    (of.older == kNone ? oldest_ : neighbours_[of.older].newer) = of.newer;
    (of.newer == kNone ? newest_ : neighbours_[of.newer].older) = of.older;
    --size_;
  }

  uint32_t size() const { return size_; }
  // kNone: the list is empty.
  uint32_t oldest() const { return oldest_; }
  // kNone: the place is the newest. REQUIRES: it is in the list.
  uint32_t NewerThan(uint32_t place) const { return neighbours_[place].newer; }

 private:
  struct Neighbours {
    uint32_t older = kNone, newer = kNone;
  };

  std::vector<Neighbours> neighbours_;  // By place.
  uint32_t oldest_ = kNone, newest_ = kNone;
  uint32_t size_ = 0;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LEASE_IDLE_LIST_H_
