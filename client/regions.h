// RegionTable: the shared memory that a session was lent, by the name that leases use.
//
// Descriptors come on another socket than the leases that name them, so a lease can be first:
// Find waits for its region. Thread-safe.
#ifndef MEMTIDE_CLIENT_REGIONS_H_
#define MEMTIDE_CLIENT_REGIONS_H_

#include <map>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "client/descriptor.h"
#include "client/lender.h"

namespace memtide::client {

class RegionTable {
 public:
  // Nothing to be said about a descriptor that is not memory of `size`: leases that name it fail.
  void Add(RegionId region, Descriptor memory, Bytes size);
  // No region comes any more: whoever waits gets UNAVAILABLE.
  void Close();

  // The memory of the lease's region. INTERNAL: the lease is not inside it, or the region did not
  // come in kPatience. The descriptor lives as long as the table.
  absl::StatusOr<int> Find(const Lease& lease, Bytes chunk_size);

 private:
  struct Region {
    Descriptor memory;
    Bytes size;
  };
  static constexpr Duration kPatience = std::chrono::seconds(10);

  Mutex mutex_;
  CondVar changed_;
  std::map<RegionId, Region> regions_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_REGIONS_H_
