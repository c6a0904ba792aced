// KeptMappings: which region each place of a GPU's address range maps, also where no lease holds
// the place any more.
//
// To map and unmap a chunk costs a GPU's driver some 30 us, and hundreds while copies run. A region
// belongs to one job as long as it exists, and a chunk mostly comes back to the slot that it had.
// So a released place keeps its mapping, and a lease of the same region needs no call of the
// driver. A region that the daemon takes back is unmapped at all places first (Forget).
//
// A kernel that uses a chunk without a lease finds other bytes where a mapping is kept, and ends
// the process where none is. So mappings are kept only from the third iteration on in which the
// program does nothing that it has not done before (Protect ends that), and one place in kSample,
// others in each iteration, is unmapped all the same: each chunk is covered in kSample iterations.
//
// Not thread-safe: the space's lock guards it.
#ifndef MEMTIDE_CLIENT_CUDA_KEPT_MAPPINGS_H_
#define MEMTIDE_CLIENT_CUDA_KEPT_MAPPINGS_H_

#include <cstdint>
#include <vector>

#include "client/memory/place.h"
#include "client/memory/region.h"

namespace memtide::client {

class KeptMappings {
 public:
  static constexpr uint64_t kSample = 64;
  static constexpr uint64_t kQuietIterations = 2;

  // `keeps`: false for a space that protects all places, always.
  KeptMappings(uint32_t places, bool keeps) : keeps_(keeps), entries_(places) {}

  const Region* mapped(PlaceId place) const { return entries_[place.value()].region; }
  bool is_held(PlaceId place) const { return entries_[place.value()].held; }
  // The place maps the region from now on, and a lease holds it.
  void Hold(PlaceId place, const Region* region) { entries_[place.value()] = {region, true}; }
  void Unmapped(PlaceId place) { entries_[place.value()] = {}; }
  // The lease on the place ends. False: the place must be unmapped.
  bool Release(PlaceId place);
  // The places without a lease that map something: `region`, or any with null.
  std::vector<PlaceId> Kept(const Region* region) const;

  void EndIteration();
  // The program does something new: no mapping is kept until kQuietIterations have ended.
  void Protect() { quiet_ = 0; }
  // Iterations in which each released place was unmapped.
  uint64_t protected_iterations() const { return protected_; }

 private:
  struct Entry {
    const Region* region = nullptr;
    bool held = false;
  };
  const bool keeps_;
  uint64_t quiet_ = 0;  // Iterations in a row without anything new.
  uint64_t iterations_ = 0, protected_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CUDA_KEPT_MAPPINGS_H_
