// RegionTable: the memory that a session was lent, by the name that leases use.
//
// Regions come on another socket than the leases that name them, so a lease can be first: Find
// waits for its region. Thread-safe.
#ifndef MEMTIDE_CLIENT_REGIONS_H_
#define MEMTIDE_CLIENT_REGIONS_H_

#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "client/lender.h"
#include "client/region.h"

namespace memtide::client {

class RegionTable {
 public:
  // Nothing to be said about a descriptor that is not memory of the region's size: leases that name
  // it fail.
  void Add(RegionId id, Region region);
  // Unknown: nothing happens.
  void Remove(RegionId id);
  void RemoveAll();
  // No region comes any more: whoever waits gets UNAVAILABLE.
  void Close();

  // The region of the lease. INTERNAL: the lease is not inside it, or the region did not come in
  // kPatience.
  absl::StatusOr<std::shared_ptr<Region>> Find(const Lease& lease, Bytes chunk_size);

 private:
  static constexpr Duration kPatience = std::chrono::seconds(10);

  Mutex mutex_;
  CondVar changed_;
  std::map<RegionId, std::shared_ptr<Region>> regions_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_REGIONS_H_
