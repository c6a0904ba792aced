#include "daemon/engine/tables/work_list.h"

#include <set>
#include <utility>

namespace memtide {

void WorkList::CheckInvariants() const {
  chunks_.CheckInvariants();
  std::set<std::pair<const ListedWork*, Tier>> checks;
  for (const Listed& check : room_checks_) {
    MEMTIDE_CHECK(check.work->room_checks_.has(check.tier));
    MEMTIDE_CHECK(checks.insert({check.work, check.tier}).second) << "a room check stands twice";
  }
  std::set<const ListedWork*> prefetching;
  for (const ListedWork* work : prefetching_) {
    MEMTIDE_CHECK(work->prefetch_);
    MEMTIDE_CHECK(prefetching.insert(work).second) << "a job that prefetches stands twice";
  }
}

}  // namespace memtide
