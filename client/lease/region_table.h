// RegionTable: the memory regions lent to this session, by the ids that leases name.
//
// Regions arrive on another socket than leases, so a lease can arrive first; Find waits for its
// region. Thread-safe.
#ifndef MEMTIDE_CLIENT_LEASE_REGION_TABLE_H_
#define MEMTIDE_CLIENT_LEASE_REGION_TABLE_H_

#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "client/memory/region.h"
#include "client/rpc/daemon_session.h"

namespace memtide::client {

class RegionTable {
 public:
  // Does not fail if the descriptor is not memory of the region's size; Find then fails for each
  // lease in the region.
  void Add(RegionId id, Region region);
  // Returns the region, or null if the table has none of this id.
  std::shared_ptr<Region> Remove(RegionId id);
  void RemoveAll();
  // No further region arrives: Find calls that wait return UNAVAILABLE.
  void Close();

  // Returns the region that the lease names. INTERNAL: the lease exceeds the region, or the region
  // did not arrive within kArrivalTimeout.
  absl::StatusOr<std::shared_ptr<Region>> Find(const Lease& lease, Bytes chunk_size);

  // Memory of this process: `at` is the first byte of the lease, as long as `region` is held.
  struct Address {
    std::shared_ptr<Region> region;
    char* at = nullptr;
  };
  // Maps the whole host region that the lease names, once. INTERNAL: as Find, or the region is not
  // host memory. RESOURCE_EXHAUSTED: no addresses.
  absl::StatusOr<Address> Map(const Lease& lease, Bytes chunk_size);

 private:
  static constexpr Duration kArrivalTimeout = std::chrono::seconds(10);

  Mutex mutex_;
  CondVar changed_;
  std::map<RegionId, std::shared_ptr<Region>> regions_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LEASE_REGION_TABLE_H_
